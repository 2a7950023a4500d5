"""``gpubench reap``: cancel what killed runs left behind, by the journal and by job id only."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.slurm.client import CliSlurm
from pytest_gpubench.slurm.journal import Journal, JournalEntry, journal_folder, open_jobs
from pytest_gpubench.slurm.owner import Life
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, SlurmClient
from pytest_gpubench.slurm.waiting import find_intended, wait_ended, wait_known
from pytest_gpubench.world import Clock, SystemClock, SystemRunner

__all__ = ["parser", "run"]

_SBATCH_OUTLIVES = 60.0
"""Seconds within which an sbatch whose caller was killed may still queue its job."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench reap``."""
    made = argparse.ArgumentParser(
        prog="gpubench reap",
        description="Cancel the Slurm jobs of runs that are gone, as their journals name them. "
        "Jobs are cancelled by id; jobs that no journal names are never touched. "
        "Exit 0 when none is left, else 1.",
    )
    made.add_argument(
        "--results", type=Path, default=Path("results"), help="results folder (default: results)"
    )
    made.add_argument("--dry-run", action="store_true", help="say what would be done, cancel nothing")
    made.add_argument(
        "--force",
        action="store_true",
        help="also jobs of runs that are alive, or on another host where that cannot be told",
    )
    made.add_argument(
        "--timeout",
        type=float,
        default=180.0,
        metavar="SECONDS",
        help="how long to wait until jobs left the queue",
    )
    return made


def run(
    argv: list[str],
    *,
    client: SlurmClient | None = None,
    clock: Clock | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Run the command with these arguments; prints one line a job, returns the exit code."""
    options = parser().parse_args(argv)
    clock = clock or SystemClock()
    folder = journal_folder(options.results)
    if not options.results.is_dir():
        say(f"gpubench reap: no results folder {options.results}; name it with --results")
        return 1
    reaper = _Reaper(
        client or CliSlurm(SystemRunner(), clock), clock, Journal(folder, warn=say), options, say
    )
    entries = open_jobs(folder)
    if not entries:
        say(f"gpubench reap: no job is left in the journals of {options.results}")
    return 0 if reaper.reap(entries) else 1


class _Reaper:
    """``say`` gets one line a job."""

    def __init__(
        self,
        client: SlurmClient,
        clock: Clock,
        journal: Journal,
        options: argparse.Namespace,
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._journal = journal
        self._options = options
        self._say = say
        self._deadline = clock.monotonic() + options.timeout  # for a Slurm that does not answer

    def reap(self, entries: list[JournalEntry]) -> bool:
        """True when no job is left of a run that is gone, or that cannot be told to be alive."""
        clean = True
        cancelled: dict[JobId, JournalEntry] = {}
        for entry in entries:
            life = entry.owner.life()
            if life is not Life.GONE and not self._options.force:
                clean &= life is Life.ALIVE  # a living run gives its nodes back itself
                why = "is alive" if life is Life.ALIVE else "cannot be seen from here"
                self._line(entry, f"left alone: its {entry.owner} {why} (--force cancels it all the same)")
                continue
            job = self._locate(entry)
            if isinstance(job, str):
                clean = False
                self._line(entry, job)
            elif job is not None and self._options.dry_run:
                clean = False
                self._line(entry, f"would be cancelled (job {job})")
            elif job is not None:
                result = self._client.cancel(job)
                if result.done:
                    self._journal.cancelled(job)
                    cancelled[job] = entry
                else:
                    clean = False
                    self._line(entry, result.text)
        return self._wait(cancelled) and clean

    def _locate(self, entry: JournalEntry) -> JobId | str | None:
        """The id to cancel; None when there is no job any more; or why that cannot be told."""
        try:
            info = self._ask(entry)
        except SlurmError as err:
            return f"not cancelled: {err.message}"
        if info is not None and info.state is JobState.UNKNOWN:
            return f"not cancelled: the state of job {info.id} is unknown: {info.reason}"
        if info is None:
            how = "was never queued"
        elif info.name and info.name != entry.job_name:
            how = f"is over: job {info.id} is another one by now ({info.name})"
        elif info.state.ended:
            how = f"is over (job {info.id}: {info.state.value})"
        else:
            if self._options.dry_run or entry.id is not None:
                self._journal.adopt(entry)
            else:
                self._journal.submitted(entry.job_name, info.id)
            return info.id
        self._line(entry, how)
        if not self._options.dry_run:
            self._journal.abandoned(entry.job_name, how)
        return None

    def _ask(self, entry: JournalEntry) -> JobInfo | None:
        left = max(0.0, self._deadline - self._clock.monotonic())
        if entry.id is not None:
            return wait_known(self._client, self._clock, entry.id, timeout=left)
        young = _SBATCH_OUTLIVES - (self._clock.time() - entry.at)
        return find_intended(
            lambda: self._client.find(entry.job_name, entry.cluster),
            self._clock,
            patience=min(max(0.0, young), _SBATCH_OUTLIVES),
            timeout=left,
        )

    def _wait(self, cancelled: dict[JobId, JournalEntry]) -> bool:
        answers = wait_ended(self._client, self._clock, cancelled, timeout=self._options.timeout)
        clean = True
        for job, entry in cancelled.items():
            state = answers[job].state
            if state.ended:
                self._journal.released(job, "reaped")
                self._line(entry, f"cancelled (job {job}: {state.value})")
            else:
                clean = False
                self._line(
                    entry,
                    f"cancelled, but job {job} is still {state.value} after {self._options.timeout:g} s",
                )
        return clean

    def _line(self, entry: JournalEntry, text: str) -> None:
        self._say(f"{entry.job_name}: {text}")
