"""The results folder: whole files at any moment, rows of several workers, resume, unwritable folders."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError, InfraError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.store import ResultsStore, atomic_write, read_ingest, safe_part

RUN_BLOCK: dict[str, JSON] = {"run_id": "r1"}


def row(point: str = "p1", **changes: Any) -> dict[str, JSON]:
    values: dict[str, JSON] = {
        "workload": "flash",
        "point": point,
        "run_id": "r1",
        "status": "passed",
        "reason": None,
        "attempt": 1,
        "recipe_sha256": "abc",
        "image": "img:1",
        "simulated": False,
        **changes,
    }
    return values


def points(path: Path) -> list[JSON]:
    return [found["point"] for found in read_ingest(path)[1]]


def test_layout(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    assert store.write_row(row()) == tmp_path / "flash" / "p1" / "row.json"
    assert store.write_plan("flash", "p1", {"a": 1}) == tmp_path / "flash" / "p1" / "plan.json"
    assert store.make_dir("flash", "tp2") == tmp_path / "flash" / "tp2"
    assert store.assemble(RUN_BLOCK, run_id="r1") == tmp_path / "ingest.json"
    assert json.loads((tmp_path / "ingest.json").read_text()) == {
        "schema_version": 1,
        "run": RUN_BLOCK,
        "rows": [row()],
    }


def test_rows_of_several_workers_make_one_file_without_doubles(tmp_path: Path) -> None:
    for worker, names in enumerate((["p3", "p1"], ["p2", "p1"])):
        for name in names:
            ResultsStore(tmp_path).write_row(row(name, job_id=str(worker)))
    path = ResultsStore(tmp_path).assemble(RUN_BLOCK, run_id="r1")
    assert points(path) == ["p1", "p2", "p3"]
    before = path.read_bytes()
    ResultsStore(tmp_path).assemble(RUN_BLOCK, run_id="r1")
    assert path.read_bytes() == before


def test_rows_of_an_earlier_run_count_only_when_resumed(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.write_row(row("old", run_id="r0"))
    store.write_row(row("kept", run_id="r0"))
    store.write_row(row("new"))
    path = store.assemble(RUN_BLOCK, run_id="r1", resumed={("flash", "kept")}, path=tmp_path / "x" / "i.json")
    assert points(path) == ["kept", "new"]


def test_torn_foreign_and_copied_files_are_passed_over_and_named(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.write_row(row())
    for name, content in (
        ("torn", b'{"workload": "flash", "poi'),
        ("list", b"[]"),
        ("bytes", b"\xff"),
        ("deep", b"[" * 100_000),
        ("copy", json.dumps(row()).encode()),
    ):
        folder = tmp_path / "flash" / name
        folder.mkdir()
        (folder / "row.json").write_bytes(content)
    (tmp_path / "flash" / "p1" / ".row.json.1.tmp").write_text("{")
    (tmp_path / "notes.txt").write_text("mine")
    ignored: list[str] = []
    assert [found["point"] for found in store.read_rows(ignored)] == ["p1"]
    assert len(ignored) == 5
    assert ResultsStore(tmp_path / "none").read_rows() == []


def test_an_earlier_attempt_stays_beside_the_later_one(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.write_row(row(status="error", reason="node_failed"))
    store.write_row(row(attempt=2))
    folder = tmp_path / "flash" / "p1"
    assert json.loads((folder / "row-attempt-1.json").read_text())["reason"] == "node_failed"
    assert json.loads((folder / "row.json").read_text())["attempt"] == 2
    assert len(store.read_rows()) == 1


@pytest.mark.parametrize(
    ("changes", "asked", "valid"),
    [
        ({}, {}, True),
        ({"status": "failed", "reason": "gate_missed"}, {}, True),
        ({"status": "failed", "reason": "output_tokens_off"}, {}, False),
        ({"status": "error", "reason": "node_failed"}, {}, False),
        ({}, {"recipe_sha256": "other"}, False),
        ({}, {"image": "img:2"}, False),
        ({"simulated": True}, {}, False),
        ({"simulated": True}, {"simulated": True}, True),
    ],
)
def test_resume_takes_only_a_trusted_row_of_the_same_recipe_and_image(
    tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any], valid: bool
) -> None:
    store = ResultsStore(tmp_path)
    store.write_row(row(**changes))
    wanted = {"recipe_sha256": "abc", "image": "img:1", **asked}
    assert (store.valid_row("flash", "p1", **wanted) is not None) == valid
    assert store.valid_row("flash", "p2", **wanted) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "a\0", "ü", "x" * 201, "a\n"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpubenchError, match="cannot name a results folder"):
        safe_part(name)
    with pytest.raises(GpubenchError):
        ResultsStore(tmp_path).write_row(row(name))
    assert list(tmp_path.iterdir()) == []


def test_a_row_must_name_its_point(tmp_path: Path) -> None:
    with pytest.raises(GpubenchError, match="must name its workload and point"):
        ResultsStore(tmp_path).write_row({"workload": "flash"})


def test_what_is_written_is_strict_clean_and_masked(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path, secrets=["hf_secret"])
    content = row(
        message="\x1b[31mERROR\x1b[0m\0 \ud800 hf_secret", mean_ttft=float("nan"), tput=[float("inf")]
    )
    text = store.write_row(content).read_bytes().decode("utf-8")
    found = json.loads(text, parse_constant=lambda token: pytest.fail(token))
    assert found["message"] == "ERROR  ***"
    assert (found["mean_ttft"], found["tput"]) == (None, [None])
    plan = store.write_plan("flash", "p1", {"argv": ["a\rb\x1b[0m", "hf_secret", "\udcff"]})
    assert json.loads(plan.read_text())["argv"] == ["a\rb\x1b[0m", "***", "\ufffd"]


def test_an_unwritable_folder_is_an_infrastructure_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "flash").write_text("a file where a folder should be")
    with pytest.raises(InfraError, match=r"cannot write .*flash") as caught:
        ResultsStore(tmp_path).write_row(row())
    assert caught.value.reason is Reason.RESULTS_UNWRITABLE


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "row.json"
    atomic_write(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfraError, match=r"cannot write .*row\.json: No space left"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_while_writing_leaves_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "row.json", b"new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such ingest file"),
        (b"{", "cannot be read as an ingest file"),
        (b"\xff", "cannot be read as an ingest file"),
        (b"[]", "not an ingest file"),
        (b'{"schema_version": 2, "rows": []}', "schema_version 2, this version reads 1"),
        (b'{"schema_version": 1, "rows": [3]}', "a row is not an object"),
    ],
)
def test_a_file_that_is_no_ingest_file_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "ingest.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GpubenchError, match=words) as caught:
        read_ingest(path)
    assert str(caught.value).startswith(f"{path}: ")


WRITER = """
import sys
from pathlib import Path
from pytest_gpubench.results.store import ResultsStore
store = ResultsStore(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    row = {"workload": "flash", "point": f"p{number % 5}", "run_id": "r1", "status": "passed",
           "attempt": 1, "number": number, "filler": "x" * 20000}
    store.write_row(row)
    store.assemble({"run_id": "r1", "number": number}, run_id="r1")
"""


def test_files_are_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    """A writer is killed at random moments; whatever lies there then is a whole file."""
    dice = random.Random(7)
    path = tmp_path / "ingest.json"
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.15))
            writer.send_signal(signal.SIGKILL)
        ignored: list[str] = []
        found = ResultsStore(tmp_path).read_rows(ignored)
        assert ignored == []
        assert all(len(str(entry["filler"])) == 20000 for entry in found)
        assert len({str(entry["point"]) for entry in found}) == len(found)
        _, rows = read_ingest(path)
        assert rows
        path.unlink()
