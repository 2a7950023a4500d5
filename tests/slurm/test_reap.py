from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pytest_gpubench.cli.reap import run
from pytest_gpubench.slurm.journal import Journal, journal_folder, open_jobs
from pytest_gpubench.slurm.owner import Owner
from pytest_gpubench.slurm.types import JobId
from pytest_gpubench.world import CommandResult

from .fakes import NO_ACCOUNTING, REFUSED_CONNECTION, FakeClock, FakeRunner, client, row, said

DEAD = replace(Owner.current(), start="1")


class Queue:
    """A small Slurm: names and states by id; scancel moves a job to COMPLETING, then it ends."""

    def __init__(self, **jobs: tuple[int, str]) -> None:
        self.jobs = {number: [name.replace("_", "-"), state] for name, (number, state) in jobs.items()}
        self.clock = FakeClock()
        self.lingers = 10.0
        self.cancelled: dict[int, float] = {}
        self.down = False
        self.runner = FakeRunner(self.clock, squeue=self.squeue, scancel=self.scancel, scontrol=self.scontrol)
        self.runner.programs["sacct"] = [NO_ACCOUNTING]

    def squeue(self, argv: Sequence[str]) -> CommandResult:
        if self.down:
            return REFUSED_CONNECTION
        for number, when in self.cancelled.items():
            self.jobs[number][1] = "COMPLETING" if self.clock.now - when < self.lingers else "CANCELLED"
        return said("".join(row(number, state, name=name) for number, (name, state) in self.jobs.items()))

    def scontrol(self, argv: Sequence[str]) -> CommandResult:
        return said(err="slurm_load_jobs error: Invalid job id specified", code=1)

    def scancel(self, argv: Sequence[str]) -> CommandResult:
        self.cancelled.setdefault(int(argv[-1]), self.clock.now)
        return said()

    def reap(self, results: Path, *options: str) -> tuple[int, list[str]]:
        said_lines: list[str] = []
        code = run(
            ["--results", str(results), *options],
            client=client(self.runner, self.clock),
            clock=self.clock,
            say=said_lines.append,
        )
        return code, said_lines


def left_by(results: Path, owner: Owner, *jobs: tuple[str, int | None], at: float = 0.0) -> None:
    """A journal as a killed process leaves it."""
    folder = journal_folder(results)
    folder.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, object]] = [{"event": "owner", **asdict(owner)}]
    for name, number in jobs:
        records.append({"event": "intend", "name": name, "cluster": None, "at": at})
        if number is not None:
            records.append({"event": "submitted", "name": name, "id": number, "cluster": None})
    number_of_files = len(list(folder.iterdir()))
    (folder / f"dead-{number_of_files}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def test_nothing_left(tmp_path: Path) -> None:
    code, lines = Queue().reap(tmp_path)
    assert code == 0
    assert "no job is left" in lines[0]


def test_a_missing_results_folder_is_named(tmp_path: Path) -> None:
    code, lines = Queue().reap(tmp_path / "nowhere")
    assert code == 1
    assert "--results" in lines[0]


def test_jobs_of_a_dead_owner_are_cancelled_by_id_and_waited_for(tmp_path: Path) -> None:
    queue = Queue(gpubench_a=(1, "RUNNING"), gpubench_b=(2, "PENDING"), other=(3, "RUNNING"))
    left_by(tmp_path, DEAD, ("gpubench-a", 1), ("gpubench-b", 2))
    code, lines = queue.reap(tmp_path)
    assert code == 0
    assert lines == ["gpubench-a: cancelled (job 1: CANCELLED)", "gpubench-b: cancelled (job 2: CANCELLED)"]
    assert queue.runner.called("scancel") == [("scancel", "1"), ("scancel", "2")]
    assert queue.clock.now - 1000 >= queue.lingers
    assert open_jobs(journal_folder(tmp_path)) == []
    assert queue.reap(tmp_path)[0] == 0
    assert len(queue.runner.called("scancel")) == 2


def test_a_job_without_a_known_id_is_found_by_its_exact_name(tmp_path: Path) -> None:
    queue = Queue(gpubench_a_10=(8, "RUNNING"), gpubench_a_1=(9, "PENDING"))
    left_by(tmp_path, DEAD, ("gpubench-a-1", None))
    code, lines = queue.reap(tmp_path)
    assert code == 0
    assert lines == ["gpubench-a-1: cancelled (job 9: CANCELLED)"]
    assert queue.runner.called("scancel") == [("scancel", "9")]
    assert open_jobs(journal_folder(tmp_path)) == []


def test_a_job_that_was_never_queued_is_closed_after_sbatch_can_no_longer_queue_it(tmp_path: Path) -> None:
    queue = Queue()
    left_by(tmp_path, DEAD, ("gpubench-a", None), at=queue.clock.time() - 20)
    code, lines = queue.reap(tmp_path)
    assert code == 0
    assert lines == ["gpubench-a: was never queued"]
    assert 40 <= queue.clock.now - 1000 <= 50
    left_by(tmp_path, DEAD, ("gpubench-b", None), at=queue.clock.time() - 3600)
    before = queue.clock.now
    assert queue.reap(tmp_path) == (0, ["gpubench-b: was never queued"])
    assert queue.clock.now == before


def test_a_living_owner_is_left_alone(tmp_path: Path) -> None:
    queue = Queue(gpubench_a=(1, "RUNNING"))
    journal = Journal(journal_folder(tmp_path))
    journal.intend("gpubench-a")
    journal.submitted("gpubench-a", JobId(1))
    code, lines = queue.reap(tmp_path)
    assert code == 0
    assert "is alive" in lines[0]
    assert queue.runner.calls == []
    assert queue.reap(tmp_path, "--force")[0] == 0
    assert queue.runner.called("scancel") == [("scancel", "1")]


def test_an_owner_on_another_host_needs_force(tmp_path: Path) -> None:
    queue = Queue(gpubench_a=(1, "RUNNING"))
    left_by(tmp_path, replace(DEAD, host="login9"), ("gpubench-a", 1))
    code, lines = queue.reap(tmp_path)
    assert code == 1
    assert "login9 cannot be seen from here" in lines[0]
    assert queue.runner.calls == []
    assert queue.reap(tmp_path, "--force")[0] == 0


def test_dry_run_cancels_nothing_and_changes_nothing(tmp_path: Path) -> None:
    queue = Queue(gpubench_a=(1, "RUNNING"), gpubench_c=(3, "RUNNING"))
    left_by(tmp_path, DEAD, ("gpubench-a", 1), ("gpubench-b", 2), ("gpubench-c", None))
    before = open_jobs(journal_folder(tmp_path))
    code, lines = queue.reap(tmp_path, "--dry-run")
    assert code == 1
    assert lines == [
        "gpubench-a: would be cancelled (job 1)",
        "gpubench-b: is over (job 2: GONE)",
        "gpubench-c: would be cancelled (job 3)",
    ]
    assert not queue.runner.called("scancel")
    assert open_jobs(journal_folder(tmp_path)) == before


def test_an_id_that_belongs_to_another_job_by_now_is_not_cancelled(tmp_path: Path) -> None:
    queue = Queue(someone_elses=(1, "RUNNING"))
    left_by(tmp_path, DEAD, ("gpubench-a", 1))
    code, lines = queue.reap(tmp_path)
    assert (code, lines) == (0, ["gpubench-a: is over: job 1 is another one by now (someone-elses)"])
    assert not queue.runner.called("scancel")


def test_a_job_that_does_not_leave_in_time_is_an_error(tmp_path: Path) -> None:
    queue = Queue(gpubench_a=(1, "RUNNING"))
    queue.lingers = 1e9
    left_by(tmp_path, DEAD, ("gpubench-a", 1))
    code, lines = queue.reap(tmp_path, "--timeout", "30")
    assert code == 1
    assert lines == ["gpubench-a: cancelled, but job 1 is still COMPLETING after 30 s"]
    assert open_jobs(journal_folder(tmp_path))[0].cancelled
    assert queue.clock.now - 1000 <= 40


def test_a_slurm_that_does_not_answer_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    queue = Queue()
    queue.down = True
    left_by(tmp_path, DEAD, *((f"gpubench-{n}", n) for n in range(1, 5)), ("gpubench-x", None))
    code, lines = queue.reap(tmp_path, "--timeout", "60")
    assert code == 1
    assert len(lines) == 5
    assert all("not cancelled" in line and "Unable to contact" in line for line in lines)
    assert queue.clock.now - 1000 <= 70
    assert len(open_jobs(journal_folder(tmp_path))) == 5


def test_help_names_what_it_never_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["--help"])
    assert caught.value.code == 0
    assert "never touched" in capsys.readouterr().out
