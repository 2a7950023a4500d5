"""Notices that a job was started again under the same id: squeue does not count restarts itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_gpubench.slurm.answers import SqueueRow
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState

__all__ = ["RestartWatch"]


@dataclass
class _Seen:
    ran: bool = False
    start: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0


class RestartWatch:
    """Counts, per job, what can only be a new start: pending after running, other nodes, other start."""

    def __init__(self) -> None:
        self._seen: dict[JobId, _Seen] = {}

    def apply(self, row: SqueueRow) -> JobInfo:
        """The answer with ``restarts`` as far as this process saw them."""
        info = row.info
        seen = self._seen.setdefault(info.id, _Seen())
        if info.state is JobState.PENDING and seen.ran:
            self._seen[info.id] = seen = _Seen(restarts=seen.restarts + 1)
        elif info.state is JobState.RUNNING:
            moved = bool(seen.nodes and info.nodes) and seen.nodes != info.nodes
            began_anew = bool(seen.start and row.start) and seen.start != row.start
            seen.restarts += seen.ran and (moved or began_anew)
            seen.ran = True
            seen.start = row.start or seen.start
            seen.nodes = info.nodes or seen.nodes
        return replace(info, restarts=max(info.restarts, seen.restarts))
