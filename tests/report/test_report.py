"""The document: self-contained, escaped, complete, and what it says when something is missing."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.cli.report import run
from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.results.report import Source, build_report, load_source, load_sources
from pytest_gpubench.results.report.payload import embedded_json, make_payload, result_text
from pytest_gpubench.results.report.provenance_html import flatten
from report.demo import STEM, demo_folder, demo_rows, demo_run, demo_source

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


class Outline(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside in {"script", "style"} else self.text).append(data)


def payload_of(document: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.S)
    assert match is not None
    return json.loads(match[1])


def test_nothing_is_loaded_from_elsewhere() -> None:
    document = build_report([demo_source()])
    outline = Outline(document)
    assert not [attrs for tag, attrs in outline.tags if "src" in attrs]
    assert [attrs["href"] for tag, attrs in outline.tags if tag == "link"] == ["data:,"]
    policy = next(a["content"] for _, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "plotly.js" in document


def test_texts_of_rows_cannot_become_markup() -> None:
    rows = demo_rows()
    for key in ("workload", "deployment", "point", "message", "reason", "model", "status"):
        rows[0][key] = EVIL
    rows[0]["known_issue"] = EVIL
    document = build_report([Source(EVIL, {"run_id": EVIL, EVIL: EVIL}, rows, path=EVIL)], title=EVIL)
    outline = Outline(document)
    assert sum(tag == "script" for tag, _ in outline.tags) == 4
    assert not [tag for tag, attrs in outline.tags if tag == "img" or "onerror" in attrs]
    assert EVIL in "".join(outline.text)
    assert payload_of(document)["texts"]["run"]["values"] == [EVIL]


def test_every_row_is_in_the_data() -> None:
    payload = payload_of(build_report([demo_source(), demo_source("demo-2", failing=False)]))
    assert payload["count"] == 26
    points = payload["texts"]["point"]
    assert [points["values"][index] for index in points["index"][:13]] == [r["point"] for r in demo_rows()]
    assert payload["numbers"]["tput_per_gpu"][12] is None
    assert payload["numbers"]["conc"][12] == 1024
    assert sorted({series["name"] for series in payload["series"]})[:2] == ["dp8 · demo-1", "dp8 · demo-2"]


def test_not_finite_figures_become_null() -> None:
    rows = demo_rows()
    rows[0]["tput_per_gpu"] = float("nan")
    rows[1]["median_ttft"] = float("inf")
    payload = json.loads(embedded_json(make_payload([Source("x", {}, rows)])))
    assert payload["numbers"]["tput_per_gpu"][0] is None
    assert payload["numbers"]["median_ttft"][1] is None


def test_the_banner_says_simulated() -> None:
    rows = demo_rows()
    assert "Simulated: these rows" in build_report([Source("x", {}, rows)])
    rows[0]["simulated"] = False
    assert "Some of these rows are simulated" in build_report([Source("x", {}, rows)])
    measured = Outline(build_report([Source("x", {}, rows[:1])]))
    assert not [attrs for _, attrs in measured.tags if attrs.get("role") == "note"]


def test_no_rows_is_an_error() -> None:
    with pytest.raises(GpubenchError, match="no rows"):
        build_report([Source("x", {}, [])])


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(GpubenchError, match=r"pip install 'pytest-gpubench\[report\]'"):
        build_report([demo_source()])


def test_a_folder_brings_logs_and_gates(tmp_path: Path) -> None:
    source = load_source(demo_folder(tmp_path / "results"), secrets=["gb300-secret"])
    assert source.label == "demo-1"
    assert [log.name for log in source.logs(STEM, "dp8")] == ["follower-1.log", "head.log"]
    document = build_report([source])
    text = "".join(Outline(document).text)
    assert "ERROR NCCL <error> & timeout" in text
    assert "ended with exit code 1" in text
    assert {limit["label"] for limit in payload_of(document)["limits"]} == {
        "floor 90 tok/s/GPU", "ceiling 1 s", "ceiling 60 s",
    }  # fmt: skip


def test_secrets_in_logs_are_masked(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "results")
    (folder / STEM / "dp8" / "head.log").write_text("token is hf_abcdefghij\n")
    (log,) = [
        log
        for log in load_source(folder, secrets=["hf_abcdefghij"]).logs(STEM, "dp8")
        if log.name == "head.log"
    ]
    assert log.text == "token is ***"


def test_a_copied_ingest_file_has_no_logs(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "results")
    copy = tmp_path / "elsewhere" / "ingest.json"
    copy.parent.mkdir()
    copy.write_bytes((folder / "ingest.json").read_bytes())
    source = load_source(copy)
    assert source.folder is None
    assert "made without the results folder" in build_report([source])
    # Beside its folders the same file has them.
    assert load_source(folder / "ingest.json").folder == folder


def test_rows_cannot_make_the_report_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.log").write_text("secret")
    source = Source("x", {}, [], folder=tmp_path / "results")
    (tmp_path / "results").mkdir()
    assert source.logs("..", "secret") == []
    assert source.logs("../secret", ".") == []


def test_an_unfinished_run_gives_its_rows_so_far(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "results")
    (folder / "ingest.json").unlink()
    source = load_source(folder)
    assert len(source.rows) == 13
    assert source.label == "demo-1"


def test_equal_labels_are_told_apart(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "results")
    assert [source.label for source in load_sources([folder, folder])] == ["demo-1", "demo-1 (2)"]


def test_only_what_is_shown_is_kept(tmp_path: Path) -> None:
    source = load_source(demo_folder(tmp_path / "results"))
    assert "spread" not in source.rows[0]
    assert "message" in source.rows[0]


def test_accuracy_and_slo_rows_show_their_result() -> None:
    scores: Any = [{"task": "gsm8k", "metric": "exact_match", "value": 0.9123}, {"value": None}]
    assert result_text({"scores": scores}) == "gsm8k exact_match 0.9123"
    assert result_text({"slo_best": 128.0, "slo": {"over": "concurrency"}}) == "best concurrency 128"
    assert result_text({"slo_best": None, "slo": {"over": "concurrency"}}) == ""


def test_provenance_is_flat_and_leaves_out_what_is_unknown() -> None:
    facts = dict(flatten(demo_run()))
    assert facts["git.commit"] == "0123456789abcdef"
    assert facts["images.name"] == "vllm/vllm-openai:nightly"
    assert "ci.branch" not in facts


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = demo_folder(tmp_path / "results")
    out = tmp_path / "out" / "report.html"
    assert run([str(folder), "--out", str(out), "--title", "My sweep"], env={}) == 0
    assert capsys.readouterr().out == f"{out}: 13 points of 1 run\n"
    assert "<title>My sweep</title>" in out.read_text("utf-8")


@pytest.mark.parametrize("content", [None, "{", '{"rows": 3}'])
def test_the_command_names_what_cannot_be_read(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ingest.json"
    if content is not None:
        path.write_text(content)
    assert run([str(path), "--out", str(tmp_path / "r.html")], env={}) == 1
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
