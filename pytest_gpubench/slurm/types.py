"""What the rest of the package knows of Slurm: ids, states, and the client protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

__all__ = ["CancelResult", "JobId", "JobInfo", "JobState", "SlurmClient", "Submission"]


@dataclass(frozen=True)
class JobId:
    """A job id, with its cluster when sbatch named one (federations, ``--clusters``)."""

    number: int
    cluster: str | None = None

    def __str__(self) -> str:
        return str(self.number)


class JobState(Enum):
    """Slurm's states folded to what a launcher must tell apart. UNKNOWN is a state, never "finished"."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"  # also CONFIGURING, SUSPENDED, STOPPED, SIGNALING, RESIZING
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    REQUEUED = "REQUEUED"  # also REQUEUE_HOLD, SPECIAL_EXIT, REQUEUE_FED
    GONE = "GONE"  # left the queue, outcome unknown: no command knows the id any more
    UNKNOWN = "UNKNOWN"  # no usable answer

    @property
    def ended(self) -> bool:
        """True when the job holds no nodes and never will again (COMPLETING still holds them)."""
        return self not in {
            JobState.PENDING,
            JobState.RUNNING,
            JobState.COMPLETING,
            JobState.REQUEUED,
            JobState.UNKNOWN,
        }


@dataclass(frozen=True)
class JobInfo:
    """One answer about one job. ``nodes`` are host names in rank order, empty while pending."""

    id: JobId
    state: JobState
    reason: str = ""  # Slurm's own text, whole (may hold commas and blanks)
    nodes: tuple[str, ...] = ()
    name: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    restarts: int = 0
    cancelled_by: str | None = None  # uid from "CANCELLED by 1234"
    source: str = ""  # squeue | scontrol | sacct
    raw: str = ""


@dataclass(frozen=True)
class CancelResult:
    """``done``: Slurm accepted, or does not know the id (any more). ``text``: its words otherwise."""

    done: bool
    text: str = ""


@dataclass(frozen=True)
class Submission:
    """What to submit. ``options`` are complete sbatch options without ``--parsable`` and the script."""

    script: str
    job_name: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class SlurmClient(Protocol):
    """Everything the product asks of Slurm. Errors: SlurmError with what the command itself said."""

    def submit(self, submission: Submission) -> JobId:
        """Submit; a timed-out sbatch that did queue is found by its unique job name and adopted."""
        ...

    def info(self, ids: Sequence[JobId]) -> dict[JobId, JobInfo]:
        """One squeue for all ids; what squeue does not know is asked of scontrol, then sacct."""
        ...

    def find(self, job_name: str, cluster: str | None = None) -> JobInfo | None:
        """The job of exactly this name, or None when the queue surely has none."""
        ...

    def cancel(self, job: JobId) -> CancelResult:
        """Cancel by id, never by name or user; pending jobs too."""
        ...

    def node_address(self, node: str) -> str:
        """The address that Slurm itself uses for the node (NodeAddr), else its name."""
        ...

    def version(self) -> str | None:
        """Slurm's version text, None when it cannot be had."""
        ...
