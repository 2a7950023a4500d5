"""Ingest against a real HTTP server on the loopback: retried, refused, hung, never twice, never lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.cli import push as push_cli
from pytest_gpubench.errors import OptionError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.ingest import IngestSettings, dashboard_row, push, queue_rows, send_rows
from pytest_gpubench.results.outcome import Failure, Outcome, RunInfo
from pytest_gpubench.results.row import build_row
from pytest_gpubench.results.spool import Spool, idempotency_key
from results.points import DATA, RUN, good_json, make_load, make_point, outcome_of

TOKEN = "t0ken-that-must-not-show"


class Dashboard:
    """Answers with the given statuses in turn, the last one for ever; keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], str]] = [(200, {}, "ok")]
        self.hang = threading.Event()
        self.hangs = False
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                dashboard.seen.append((dict(self.headers), json.loads(body)))
                if dashboard.hangs:
                    dashboard.hang.wait(10)
                    return
                position = min(len(dashboard.seen), len(dashboard.answers)) - 1
                status, headers, text = dashboard.answers[position]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/ingest"

    def close(self) -> None:
        self.hang.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


class FakeSleep:
    """Sleeps that only take note; the clock moves with them."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float, /) -> None:
        self.slept.append(seconds)

    def monotonic(self) -> float:
        return time.monotonic() + sum(self.slept)


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Dashboard()
    yield server
    server.close()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool.of(tmp_path)


def settings(url: str, **changes: Any) -> IngestSettings:
    return replace(IngestSettings(url, TOKEN, connect_timeout=1.0, read_timeout=1.0), **changes)


def row(point: str = "p1", **changes: JSON) -> dict[str, JSON]:
    return {**build_row(make_point(), outcome_of(good_json()), RUN), "point": point, **changes}


def test_a_row_is_posted_once_with_token_and_key(dashboard: Dashboard, spool: Spool) -> None:
    report = send_rows([row()], spool, settings(dashboard.url))
    assert report.sent == ("flash p1",)
    assert report.complete
    ((headers, body),) = dashboard.seen
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Idempotency-Key"] == idempotency_key(row())
    assert headers["Content-Type"] == "application/json"
    assert body["tput_per_gpu"] == 512.0
    assert list(spool.entries()) == []


def test_the_posted_fields_are_exactly_the_dashboards() -> None:
    reference = json.loads((DATA / "results" / "ingest_expected.json").read_text())
    case = next(case for case in reference["rows"] if case["id"] == "I02-gb300")
    raw = reference["raw_results"]["I02"]["json"]
    full = build_row(make_point(), outcome_of(raw), RunInfo("r", date=RUN.date), keep_untrusted=True)
    payload = dashboard_row(full)
    present = {name: value for name, value in payload.items() if value is not None}
    assert set(present) == set(case["expected_row"])
    assert "nightly" not in payload
    assert dashboard_row({**full, "nightly": True})["nightly"] is True
    assert not {"status", "reason", "violations", "spread", "run_id", "completed"} & set(payload)
    assert payload["p95_ttft"] is None


def test_a_failed_measurement_is_posted_without_figures(dashboard: Dashboard, spool: Spool) -> None:
    dead = build_row(make_point(), outcome_of(good_json(completed=0, failed=128, mean_ttft_ms=0.0)), RUN)
    error = build_row(make_point(), Outcome(failure=Failure(Reason.NODE_FAILED, "n2")), RUN)
    send_rows([dead, {**error, "point": "p2"}], spool, settings(dashboard.url))
    assert len(dashboard.seen) == 2
    for _, body in dashboard.seen:
        assert body["mean_ttft"] is body["tput_per_gpu"] is None


def test_simulated_rows_and_other_kinds_are_never_posted(dashboard: Dashboard, spool: Spool) -> None:
    unsaid = row()
    del unsaid["simulated"]
    rows = [row(simulated=True), unsaid, row(kind="accuracy"), row(kind="slo")]
    report = send_rows(rows, spool, settings(dashboard.url))
    assert (report.sent, dashboard.seen) == ((), [])
    assert report.complete


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_passing_trouble_is_retried_with_growing_waits(
    dashboard: Dashboard, spool: Spool, status: int
) -> None:
    dashboard.answers = [(status, {}, "later"), (status, {}, "later"), (201, {}, "ok")]
    sleep = FakeSleep()
    report = push_of(spool, dashboard, sleep)
    assert report.complete
    assert len(dashboard.seen) == 3
    assert len({headers["Idempotency-Key"] for headers, _ in dashboard.seen}) == 1
    assert 0 < sleep.slept[0] < sleep.slept[1] < 5


def push_of(spool: Spool, dashboard: Dashboard, sleep: FakeSleep, **changes: Any) -> Any:
    queue_rows([row()], spool)
    return push(spool, settings(dashboard.url, **changes), sleep=sleep, monotonic=sleep.monotonic)


@pytest.mark.parametrize(
    ("after", "waited"), [("3", 3.0), ("999999", 30.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
)
def test_retry_after_is_honoured_and_bounded(
    dashboard: Dashboard, spool: Spool, after: str, waited: float
) -> None:
    dashboard.answers = [(429, {"Retry-After": after}, ""), (200, {}, "")]
    sleep = FakeSleep()
    assert push_of(spool, dashboard, sleep).complete
    assert sleep.slept == [waited]


def test_an_unreadable_retry_after_is_ignored(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.answers = [(503, {"Retry-After": "soon"}, ""), (200, {}, "")]
    sleep = FakeSleep()
    assert push_of(spool, dashboard, sleep).complete
    assert 0 < sleep.slept[0] < 2


def test_the_budget_of_a_row_bounds_its_tries(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.answers = [(503, {"Retry-After": "25"}, "busy")]
    sleep = FakeSleep()
    report = push_of(spool, dashboard, sleep, tries=100)
    assert report.kept == (("flash p1", "HTTP 503: busy"),)
    assert sum(sleep.slept) <= 90


def test_a_refused_row_is_shown_and_kept_and_not_retried(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.answers = [(400, {}, "unknown column \x1b[31mfoo\x1b[0m " + "x" * 100_000)]
    sleep = FakeSleep()
    report = push_of(spool, dashboard, sleep)
    assert len(dashboard.seen) == 1
    ((label, why),) = report.refused
    assert label == "flash p1"
    assert why.startswith("HTTP 400: unknown column foo x")
    assert len(why) <= 2000
    (entry,) = spool.entries()
    assert (entry.tries, entry.refused) == (1, why)
    assert any("refused, kept" in line for line in report.lines())


def test_a_redirect_is_not_followed(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.answers = [(302, {"Location": dashboard.url}, "")]
    assert push_of(spool, dashboard, FakeSleep()).refused == (("flash p1", "HTTP 302: no text"),)
    assert len(dashboard.seen) == 1


def test_a_hanging_dashboard_costs_its_timeouts_and_loses_nothing(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.hangs = True
    queue_rows([row(f"p{n}") for n in range(5)], spool)
    sleep, start = FakeSleep(), time.monotonic()
    report = push(spool, settings(dashboard.url, read_timeout=0.2, tries=2), sleep=sleep)
    assert time.monotonic() - start < 5
    assert len(report.kept) == 5
    assert "ReadTimeout" in report.kept[0][1]
    assert [why for _, why in report.kept[2:]] == ["not tried: the dashboard does not answer"] * 3
    assert len(dashboard.seen) == 3  # two tries of the first row, one of the second
    assert len(list(spool.entries())) == 5


def test_an_unreachable_dashboard_keeps_the_row_and_hides_the_token(spool: Spool) -> None:
    queue_rows([row()], spool)
    report = push(spool, settings("http://127.0.0.1:9/", tries=1), sleep=FakeSleep())
    ((_, why),) = report.kept
    assert "ConnectionError" in why
    assert TOKEN not in "\n".join(report.lines())
    (entry,) = spool.entries()
    assert (entry.tries, entry.error) == (1, why)


def test_an_answer_that_repeats_the_token_does_not_show_it(dashboard: Dashboard, spool: Spool) -> None:
    dashboard.answers = [(401, {}, f"bad token {TOKEN}")]
    report = push_of(spool, dashboard, FakeSleep())
    assert report.refused == (("flash p1", "HTTP 401: bad token ***"),)
    assert all(TOKEN not in path.read_text() for path in spool.folder.iterdir())
    assert TOKEN not in repr(settings(dashboard.url))


def test_a_netrc_entry_does_not_replace_the_token(
    dashboard: Dashboard, spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert push_of(spool, dashboard, FakeSleep()).complete
    assert dashboard.seen[0][0]["Authorization"] == f"Bearer {TOKEN}"


def test_keys_differ_by_run_point_recipe_and_attempt() -> None:
    changes: list[dict[str, JSON]] = [
        {},
        {"run_id": "x"},
        {"point": "x"},
        {"recipe_sha256": "x"},
        {"attempt": 2},
        {"workload": "x"},
    ]
    assert len({idempotency_key({**row(), **change}) for change in changes}) == 6
    assert idempotency_key(row(message="other")) == idempotency_key(row())


def test_foreign_files_in_the_spool_are_left_alone(dashboard: Dashboard, spool: Spool) -> None:
    queue_rows([row()], spool)
    (entry,) = spool.entries()
    text = (spool.folder / f"{entry.key}.json").read_text()
    for name, content in (
        ("torn.json", "{"),
        ("list.json", "[]"),
        ("copy.json", text),
        ("x.json", '{"payload": {}}'),
    ):
        (spool.folder / name).write_text(content)
    assert push(spool, settings(dashboard.url), sleep=FakeSleep()).sent == ("flash p1",)
    assert sorted(path.name for path in spool.folder.iterdir()) == [
        "copy.json",
        "list.json",
        "torn.json",
        "x.json",
    ]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PERF_INGEST_URL": "ftp://x/", "INGEST_BEARER_TOKEN": "t"}, "expected a http"),
        ({"PERF_INGEST_URL": "http://", "INGEST_BEARER_TOKEN": "t"}, "expected a http"),
        ({"PERF_INGEST_URL": "http://h/", "INGEST_BEARER_TOKEN": "secret\nvalue"}, "cannot carry"),
        ({"PERF_INGEST_URL": "http://h/", "INGEST_BEARER_TOKEN": "secretü"}, "cannot carry"),
    ],
)
def test_bad_settings_are_usage_errors_without_the_token(env: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        IngestSettings.from_env(env)
    assert "secret" not in str(caught.value)


def test_both_variables_are_needed() -> None:
    assert IngestSettings.from_env({}) is None
    assert IngestSettings.from_env({"PERF_INGEST_URL": "http://h/"}) is None
    assert IngestSettings.from_env({"INGEST_BEARER_TOKEN": "t"}) is None
    found = IngestSettings.from_env({"PERF_INGEST_URL": " http://h/ ", "INGEST_BEARER_TOKEN": " t\n"})
    assert found is not None
    assert (found.url, found.token) == ("http://h/", "t")


def test_push_command(
    dashboard: Dashboard, spool: Spool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--results", str(tmp_path)]
    env = {"PERF_INGEST_URL": dashboard.url, "INGEST_BEARER_TOKEN": TOKEN}
    assert push_cli.run(argv, env) == 0
    assert "nothing waits" in capsys.readouterr().out

    queue_rows([row()], spool)
    assert push_cli.run(argv, {}) == 4
    assert "1 rows wait" in capsys.readouterr().err
    assert push_cli.run(argv, {**env, "PERF_INGEST_URL": "nonsense"}) == 4

    dashboard.answers = [(400, {}, "no"), (200, {}, "")]
    assert push_cli.run(argv, env) == 1
    assert "flash p1: refused, kept: HTTP 400: no" in capsys.readouterr().out
    assert push_cli.run([*argv, "--list"], env) == 0
    assert "flash p1: 1 tries: HTTP 400: no" in capsys.readouterr().out
    assert push_cli.run(argv, env) == 0
    assert "1 rows sent" in capsys.readouterr().out


def test_a_load_with_other_lengths_has_its_own_labels(dashboard: Dashboard, spool: Spool) -> None:
    other = build_row(make_point(load=make_load(isl=None, dataset="sharegpt")), outcome_of(good_json()), RUN)
    send_rows([other], spool, settings(dashboard.url))
    assert dashboard.seen[0][1]["isl"] is None
