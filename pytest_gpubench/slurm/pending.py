"""Which pending reasons never clear by themselves, and when to believe one."""

from __future__ import annotations

import re

from pytest_gpubench.slurm.types import JobInfo, JobState
from pytest_gpubench.world import Clock

__all__ = ["PendingJudge", "never_clears"]

# The request itself breaks a limit, names what does not exist, or somebody must release the job.
# Group and per-user limits (AssocGrp..., QOSMaxJobsPerUserLimit), Priority, Resources,
# ReqNodeNotAvail, Licenses, BeginTime, PartitionDown and the like pass: max_pending decides there.
_NEVER = frozenset(
    {
        "AccountNotAllowed",
        "AssociationTimeLimit",
        "BadConstraints",
        "DeadLine",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "JobHoldMaxRequeue",
        "MaxMemPerLimit",
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
        "QOSTimeLimit",
        "ReservationDeleted",
    }
)
_PER_JOB_LIMIT = re.compile(r"(?:Assoc|QOS)Max\w*Per(?:Job|Node)(?:Limit)?", re.ASCII)
_BELOW_MINIMUM = re.compile(r"QOSMin\w+", re.ASCII)
_HELD = re.compile(r"requeued (?:in )?held", re.IGNORECASE)


def never_clears(reason: str) -> bool:
    """True for a reason that keeps this job pending until a person changes something."""
    word = re.split(r"[\s,:(]", reason.strip().strip("()"), maxsplit=1)[0]
    return (
        word in _NEVER
        or _PER_JOB_LIMIT.fullmatch(word) is not None
        or _BELOW_MINIMUM.fullmatch(word) is not None
        or _HELD.search(reason) is not None
    )


class PendingJudge:
    """Believes a reason only after ``sightings`` in a row over ``seconds``: Slurm shows some in passing.

    One judge per job, fed with every answer about it; a poller's cached answer, the same object again,
    is no further sighting.
    """

    def __init__(self, clock: Clock, *, sightings: int = 3, seconds: float = 10.0) -> None:
        self._clock = clock
        self._sightings = sightings
        self._seconds = seconds
        self._count = 0
        self._since = 0.0
        self._last: JobInfo | None = None
        self.last_reason = ""
        """Slurm's latest pending reason, whole, for the message of ``max_pending``."""

    def feed(self, info: JobInfo) -> str | None:
        """The reason that will never clear, as soon as it is believed; else None.

        An UNKNOWN answer says nothing for or against.
        """
        if info.state is JobState.UNKNOWN or info is self._last:
            return None
        self._last = info
        if info.state is JobState.PENDING and info.reason:
            self.last_reason = info.reason
        if info.state is not JobState.PENDING or not never_clears(info.reason):
            self._count = 0
            return None
        now = self._clock.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        if self._count >= self._sightings and now - self._since >= self._seconds:
            return info.reason
        return None
