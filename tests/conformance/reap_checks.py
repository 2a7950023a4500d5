"""``gpubench reap`` on either cluster: what a killed process left, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_gpubench.cli import reap
from pytest_gpubench.slurm.journal import Journal, journal_folder, open_jobs
from pytest_gpubench.slurm.types import JobState

from .backends import Backend
from .client_desk import ClientDesk

_WRITER = """
import sys
from pathlib import Path
from pytest_gpubench.slurm.journal import Journal, journal_folder
from pytest_gpubench.slurm.types import JobId
journal = Journal(journal_folder(Path(sys.argv[1])))
for word in sys.argv[2:]:
    name, _, number = word.partition("=")
    journal.intend(name)
    if number:
        journal.submitted(name, JobId(int(number)))
"""


def _left_behind(results: Path, *entries: str) -> None:
    """A journal of a process that is gone; an entry is ``name`` or ``name=id``."""
    subprocess.run([sys.executable, "-c", _WRITER, str(results), *entries], check=True, timeout=30)


def check_cancels_what_the_journal_names(backend: Backend, folder: Path) -> None:
    """Running and pending jobs, one whose id was never seen, one that is over; bystanders stay."""
    desk = ClientDesk(backend, folder)
    results = folder / "results"
    names = [desk.name(what) for what in ("running", "pending", "unseen", "over", "bystander", "living")]
    running, unseen, over, bystander, living = (
        desk.submit(body, name=name)
        for body, name in zip(
            ("sleep 300\n", "sleep 300\n", "true\n", "sleep 300\n", "sleep 300\n"),
            (names[0], names[2], names[3], names[4], names[5]),
            strict=True,
        )
    )
    pending = desk.submit("true\n", "--hold", name=names[1])
    desk.wait(over, JobState.COMPLETED)
    gone = f"{desk.name('gone')}=60000001"
    _left_behind(
        results, f"{names[0]}={running}", f"{names[1]}={pending}", names[2], f"{names[3]}={over}", gone
    )
    ours = Journal(journal_folder(results))
    ours.intend(names[5])
    ours.submitted(names[5], living)
    said: list[str] = []
    assert reap.run(["--results", str(results)], client=desk.slurm, say=said.append) == 0, said
    for job in (running, pending, unseen):
        assert desk.info(job).state is JobState.CANCELLED, said
    assert {desk.wait(job, JobState.RUNNING).state for job in (bystander, living)} == {JobState.RUNNING}
    assert [entry.job_name for entry in open_jobs(journal_folder(results))] == [names[5]]
    assert all(len(call) == 2 and call[1].isdigit() for call in desk.runner.calls if call[0] == "scancel")
    for job in (bystander, living):
        assert desk.slurm.cancel(job).done


def check_says_when_slurm_does_not_answer(backend: Backend, folder: Path) -> None:
    """Nothing is written off that could not be looked at."""
    desk = ClientDesk(backend, folder)
    results = folder / "results"
    name = desk.name()
    job = desk.submit("sleep 300\n", name=name)
    desk.wait(job, JobState.RUNNING)
    _left_behind(results, f"{name}={job}")
    said: list[str] = []
    with backend.controller_down():
        assert reap.run(["--results", str(results), "--timeout=1"], client=desk.slurm, say=said.append) == 1
    assert len(said) == 1
    assert "unknown" in said[0]
    assert reap.run(["--results", str(results)], client=desk.slurm, say=said.append) == 0
    assert desk.info(job).state is JobState.CANCELLED


CHECKS = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}
"""All, by name."""
