"""One submission that is never made twice: what to do when sbatch's answer is lost or unclear."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.slurm.answers import Answer, classify, describe, parse_sbatch
from pytest_gpubench.slurm.types import JobId, JobInfo, Submission
from pytest_gpubench.world import Clock, CommandResult

__all__ = ["backoff", "cluster_option", "submit_once"]

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)

Find = Callable[[str], Sequence[JobInfo]]
"""All jobs of exactly this name; raises SlurmError when the queue cannot be read."""


def backoff(first: float = 1.0, most: float = 15.0) -> Iterator[float]:
    """Growing pauses, in seconds, without end: 1 2 4 8 15 15 ..."""
    delay = first
    while True:
        yield min(delay, most)
        delay *= 2


def cluster_option(options: Sequence[str]) -> str | None:
    """The one cluster that sbatch options name (``-M X``, ``-MX``, ``--clusters X``, ``--clusters=X``)."""
    for index, option in enumerate(options):
        value = None
        if option in {"-M", "--clusters", "--cluster"} and index + 1 < len(options):
            value = options[index + 1]
        elif option.startswith(("--clusters=", "--cluster=")):
            value = option.split("=", 1)[1]
        elif option.startswith("-M") and len(option) > 2:
            value = option[2:]
        if value:
            return value if "," not in value else None
    return None


def submit_once(
    submission: Submission,
    *,
    run: Callable[[Sequence[str]], CommandResult],
    find: Find,
    drop: Callable[[JobId], object],
    clock: Clock,
    command_timeout: float,
    adopt: float,
    settle: float,
    total: float,
) -> JobId:
    """Submit, or adopt the job that an unclear answer did queue; SlurmError when neither works.

    ``run`` runs sbatch, ``find`` lists the jobs of the unique name, ``drop`` cancels one by id.
    Seconds: ``adopt`` is how long a job of an unclear answer is looked for, ``settle`` how long the
    queue must lack it before a lost request is sent again, ``total`` how long an unreachable
    controller is asked.
    """
    if not _NAME.fullmatch(submission.job_name):
        raise ValueError(f"job name {submission.job_name!r}: expected letters, digits and ._- only")
    argv = ["sbatch", "--parsable", *submission.options, submission.script]
    look = _Look(submission.job_name, find, clock)
    deadline = clock.monotonic() + total
    lost_requests = 0
    for delay in backoff(first=2.0):
        result = run(argv)
        job = parse_sbatch(result.stdout)
        if job is not None and (result.ok or result.timed_out):
            if lost_requests:
                _drop_duplicates(job, look, drop)
            return job
        answer = classify(result)
        said = describe(result, command_timeout)
        if result.missing:
            raise _error(Reason.SLURM_UNREACHABLE, f"sbatch cannot be started: {said}")
        if result.ok or result.timed_out or job is not None:
            # It may have been queued and must not be asked for again: find it, or say that it is unclear.
            found = look.until(clock.monotonic() + max(adopt, total), settle=adopt)
            if found is not None:
                return found
            raise _error(Reason.SUBMIT_UNCLEAR, look.unclear(said, adopt))
        if answer not in {Answer.UNREACHABLE, Answer.UNCLEAR}:
            raise _error(Reason.SUBMIT_REFUSED, f"sbatch refused job {submission.job_name}: {said}")
        # The known hazard: "Socket timed out" although the controller did queue the job.
        lost_requests += answer is Answer.UNCLEAR
        found = look.until(deadline, settle=settle if answer is Answer.UNCLEAR else 0.0)
        if found is not None:
            return found
        if look.trouble is not None:
            raise _error(
                Reason.SLURM_UNREACHABLE,
                f"Slurm did not answer for {total:g} s while job {submission.job_name} was submitted: "
                f"{said}; the queue cannot be read either: {look.trouble}",
            )
        if clock.monotonic() + delay >= deadline:
            raise _error(
                Reason.SLURM_UNREACHABLE,
                f"sbatch did not reach the controller for {total:g} s, no job {submission.job_name} "
                f"is in the queue: {said}",
            )
        clock.sleep(delay)
    raise AssertionError("backoff never ends")


def _error(reason: Reason, message: str) -> SlurmError:
    return SlurmError(reason, message, phase=Phase.QUEUE)


class _Look:
    """Looks for the job by its unique name. ``trouble``: why the last look was no answer, or None."""

    def __init__(self, name: str, find: Find, clock: Clock) -> None:
        self.name = name
        self.trouble: str | None = None
        self._find = find
        self._clock = clock

    def jobs(self) -> list[JobId] | None:
        """The ids of that name, None when the queue cannot be read."""
        try:
            found = [info.id for info in self._find(self.name)]
        except SlurmError as err:
            self.trouble = err.message
            return None
        self.trouble = None
        return found

    def until(self, deadline: float, *, settle: float) -> JobId | None:
        """The job, or None: surely absent for ``settle`` seconds, or ``trouble`` up to ``deadline``."""
        absent_since: float | None = None
        for delay in backoff(most=5.0):
            jobs = self.jobs()
            now = self._clock.monotonic()
            if jobs:
                return jobs[0]
            if jobs is None:
                absent_since = None
            else:
                absent_since = now if absent_since is None else absent_since
                if now - absent_since >= settle:
                    return None
            if now >= deadline:
                return None
            self._clock.sleep(min(delay, max(deadline - now, 0.1)))
        raise AssertionError("backoff never ends")

    def unclear(self, said: str, seconds: float) -> str:
        """The message when the answer was unclear and the job was not found."""
        queue = (
            f"no job of that name appeared within {seconds:g} s"
            if self.trouble is None
            else f"whether it is queued is unknown: {self.trouble}"
        )
        return f"sbatch gave no job id for {self.name}: {said}; {queue}"


def _drop_duplicates(job: JobId, look: _Look, drop: Callable[[JobId], object]) -> None:
    """A lost request may have been queued after all, late: the unique name makes all of them ours."""
    for other in look.jobs() or ():
        if other.number != job.number:
            drop(other)
