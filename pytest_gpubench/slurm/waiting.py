"""Bounded waits on the queue: for jobs to leave it, and for the job of a submission cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.slurm.submission import backoff
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, SlurmClient
from pytest_gpubench.world import Clock

__all__ = ["find_intended", "wait_ended", "wait_known"]


def wait_ended(
    client: SlurmClient, clock: Clock, jobs: Iterable[JobId], *, timeout: float
) -> dict[JobId, JobInfo]:
    """Wait until every job has ended (COMPLETING still holds nodes) or ``timeout`` seconds are over.

    Returns the last answer about each job; look at ``state.ended``.
    """
    answers: dict[JobId, JobInfo] = {}
    open_jobs = list(jobs)
    deadline = clock.monotonic() + timeout
    for delay in backoff(most=5.0):
        if not open_jobs:
            break
        answers.update(client.info(open_jobs))
        open_jobs = [job for job in open_jobs if not answers[job].state.ended]
        left = deadline - clock.monotonic()
        if not open_jobs or left <= 0:
            break
        clock.sleep(min(delay, left))
    return answers


def wait_known(client: SlurmClient, clock: Clock, job: JobId, *, timeout: float) -> JobInfo:
    """The first usable answer about the job, or the last UNKNOWN one after ``timeout`` seconds."""
    deadline = clock.monotonic() + timeout
    for delay in backoff(most=5.0):
        info = client.info([job])[job]
        left = deadline - clock.monotonic()
        if info.state is not JobState.UNKNOWN or left <= 0:
            return info
        clock.sleep(min(delay, left))
    raise AssertionError("backoff never ends")


def find_intended(
    find: Callable[[], JobInfo | None], clock: Clock, *, patience: float, timeout: float
) -> JobInfo | None:
    """The job of a submission whose answer was never seen (the process was interrupted or killed).

    ``find`` looks for its unique name. sbatch outlives its caller, so None is returned only when the
    queue lacks the name ``patience`` seconds from now; SlurmError when it cannot be read within
    ``timeout`` seconds.
    """
    start = clock.monotonic()
    for delay in backoff(most=5.0):
        trouble: SlurmError | None = None
        try:
            found = find()
        except SlurmError as err:
            trouble, found = err, None
        waited = clock.monotonic() - start
        if found is not None:
            return found
        if trouble is None and waited >= patience:
            return None
        if waited >= max(timeout, patience):
            if trouble is not None:
                raise trouble
            return None
        clock.sleep(delay)
    raise AssertionError("backoff never ends")
