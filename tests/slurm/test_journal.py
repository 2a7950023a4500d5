from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpubench.slurm.journal import Journal, journal_folder, open_jobs
from pytest_gpubench.slurm.owner import Life, Owner
from pytest_gpubench.slurm.types import JobId


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_the_life_of_a_job(tmp_path: Path) -> None:
    folder = journal_folder(tmp_path / "results")
    assert open_jobs(folder) == []
    journal = Journal(folder)
    assert not folder.exists()  # a run without jobs leaves nothing
    journal.intend("j1", cluster="gbclu")
    (entry,) = open_jobs(folder)
    assert (entry.job_name, entry.id, entry.cluster, entry.cancelled) == ("j1", None, "gbclu", False)
    assert entry.owner == Owner.current()
    assert entry.at > 1e9
    job = JobId(4711, "gbclu")
    journal.submitted("j1", job)
    (entry,) = open_jobs(folder)
    assert entry.id == job
    assert journal.open() == [replace(entry, file="")]
    journal.cancelled(job)
    assert open_jobs(folder)[0].cancelled
    journal.released(job, "left the queue")
    assert open_jobs(folder) == []
    assert journal.open() == []
    assert [record["event"] for record in lines(folder)] == [
        *("owner", "intend", "submitted", "cancelled", "released"),
    ]


def test_a_refused_submission_leaves_nothing_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.intend("j1")
    journal.abandoned("j1", "refused")
    assert open_jobs(tmp_path) == []


def test_an_id_that_slurm_gives_again_is_another_job(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for name in ("old", "new"):
        journal.intend(name)
        journal.submitted(name, JobId(1))
        if name == "old":
            journal.released(JobId(1), "over")
    assert [entry.job_name for entry in open_jobs(tmp_path)] == ["new"]


def test_one_process_closes_what_another_opened(tmp_path: Path) -> None:
    Journal(tmp_path).intend("j1")
    (entry,) = open_jobs(tmp_path)
    reaper = Journal(tmp_path)
    reaper.submitted("j1", JobId(5))
    reaper.released(JobId(5), "reaped")
    other = Journal(tmp_path)
    other.adopt(replace(entry, id=JobId(5)))
    assert len(other.open()) == 1
    assert open_jobs(tmp_path) == []
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_loses_that_line_only(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    journal.intend("j1")
    journal.submitted("j1", JobId(4711))
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    (entry,) = open_jobs(tmp_path)
    assert entry.job_name == "j1"
    assert entry.id in {None, JobId(4711)}


def test_rubbish_in_a_journal_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.intend("j1")
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'\xff\x00\n[1]\n"x"\n{"event":"submitted","name":5,"id":true}\n')
        file.write(b'{"event":"submitted","name":"j2","id":"x"}\n')
    assert [(entry.job_name, entry.id) for entry in open_jobs(tmp_path)] == [("j2", None), ("j1", None)]


def test_a_full_disk_is_a_warning_and_is_made_up_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    journal = Journal(tmp_path, warn=warnings.append)
    journal.intend("j1")
    real_write = os.write

    def full(handle: int, data: bytes) -> int:
        real_write(handle, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_gpubench.slurm.journal.os.write", full)
    journal.submitted("j1", JobId(4711))
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert "j1" in warnings[0]
    assert journal.open()[0].id == JobId(4711)
    assert open_jobs(tmp_path)[0].id is None
    monkeypatch.undo()
    journal.cancelled(JobId(4711))
    (entry,) = open_jobs(tmp_path)
    assert entry.id == JobId(4711)
    assert entry.cancelled


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    journal = Journal(tmp_path / "file" / "journal", warn=warnings.append)
    journal.intend("j1")
    assert warnings
    assert [entry.job_name for entry in journal.open()] == ["j1"]


SCRIPT = """
import pathlib, sys, time
from pytest_gpubench.slurm.journal import Journal
from pytest_gpubench.slurm.types import JobId
journal = Journal(pathlib.Path(sys.argv[1]))
journal.intend("killed-1")
journal.submitted("killed-1", JobId(4711))
journal.intend("killed-2")
print("ready", flush=True)
time.sleep(60)
"""


def test_after_a_kill_the_journal_names_the_jobs_and_the_owner_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        entries = open_jobs(tmp_path)
        assert [(entry.job_name, entry.id) for entry in entries] == [
            ("killed-1", JobId(4711)),
            ("killed-2", None),
        ]
        assert {entry.owner.life() for entry in entries} == {Life.ALIVE}
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert {entry.owner.life() for entry in open_jobs(tmp_path)} == {Life.GONE}


def test_life_of_an_owner() -> None:
    mine = Owner.current()
    assert mine.life() is Life.ALIVE
    assert replace(mine, start="1").life() is Life.GONE  # the pid was given to another process
    assert replace(mine, boot_id="another boot").life() is Life.GONE
    assert replace(mine, host="elsewhere").life() is Life.ELSEWHERE
    assert replace(mine, namespace="pid:[1]").life() is Life.ELSEWHERE
    assert replace(mine, pid=0).life() is Life.ELSEWHERE
    assert str(os.getpid()) in str(mine)
