"""What the mock keeps of a job, a step and the cluster, and how it is written to the state folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

__all__ = ["ACTIVE", "SHORT", "ClusterSpec", "Job", "Partition", "Step"]

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING")
"""States that squeue lists without being asked."""

SHORT = {
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
    "BOOT_FAIL": "BF",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
"""Slurm's states and their two letters, in the order of its own messages."""

T = TypeVar("T")


def _load(kind: type[T], data: Mapping[str, Any]) -> T:
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in data.items() if key in names})


@dataclass
class Partition:
    """A partition; limits in minutes, -1 is no limit."""

    nodes: str = "ALL"
    default: bool = True
    max_minutes: int = 240
    default_minutes: int = 30
    max_nodes: int = -1


@dataclass
class ClusterSpec:
    """What does not change while the cluster runs."""

    nodes: str = "gb300-[01-02]"
    gres: dict[str, int] = field(default_factory=lambda: {"gpu:b300": 4})
    cpus: int = 72
    memory_mb: int = 900_000
    partitions: dict[str, Partition] = field(default_factory=lambda: {"batch": Partition()})
    name: str = "gpubench"
    version: str = "22.05.8"
    mpi: tuple[str, ...] = ("none", "pmi2", "pmix")
    pyxis: bool = True
    accounting: bool = False
    image_env: dict[str, str] = field(default_factory=dict)
    kill_wait: float = 2.0
    """Seconds from SIGTERM to SIGKILL of a job that ends before its time (Slurm's default is 30)."""
    min_job_age: float = 300.0
    """Seconds until a finished job is forgotten."""
    completing: float = 0.0
    """Seconds that a job shows COMPLETING after its last process ended."""
    requeue_delay: float = 2.0
    """Seconds that a requeued job waits for (BeginTime); Slurm's own is 120."""
    message_timeout: float = 10.0
    """Seconds after which a command gives up a controller that does not answer."""
    minute: float = 60.0
    """Seconds that a minute of a time limit lasts here; smaller values make limits testable."""
    test_exec: bool = False
    """LaunchParameters=test_exec: srun looks for an absolute program path on its own host before it starts a
    step."""
    poll: float = 0.05
    """Seconds between two looks of a waiting process."""

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> ClusterSpec:
        """From the JSON of the state folder."""
        spec = _load(cls, data)
        spec.partitions = {name: _load(Partition, part) for name, part in data["partitions"].items()}
        spec.mpi = tuple(spec.mpi)
        return spec

    def dump(self) -> dict[str, Any]:
        """For the JSON of the state folder."""
        return asdict(self)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, to compare."""
        return tuple(int(part) for part in self.version.split(".")[:2])


@dataclass
class Job:
    """A job as the controller knows it. Times are seconds since the epoch, 0 when not yet."""

    id: int
    name: str
    user: str
    uid: int
    partition: str
    state: str = "PENDING"
    reason: str = "None"
    submit: float = 0.0
    begin: float = 0.0
    start: float = 0.0
    end: float = 0.0
    nodes_min: int = 1
    nodes_max: int = 1
    tasks: int = 1
    tasks_per_node: int = 0
    wanted: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    counted: bool = False
    """The number of tasks was asked for."""
    cpus_per_task: int = 0
    memory_mb: int = 0
    gres: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the GPUs that it has, by node."""
    exclusive: bool = False
    minutes: int = 30
    nodes: list[str] = field(default_factory=list)
    completing_nodes: list[str] = field(default_factory=list)
    exit_code: int = 0
    exit_signal: int = 0
    restarts: int = 0
    requeue: bool = True
    held: bool = False
    batch: bool = True
    command: str = ""
    argv: list[str] = field(default_factory=list)
    workdir: str = "/"
    submit_dir: str = "/"
    export: str | None = None
    stdout: str = ""
    stderr: str = ""
    stdin: str = "/dev/null"
    append: bool = False
    account: str = ""
    qos: str = ""
    comment: str = ""
    container: dict[str, str] = field(default_factory=dict)
    signal: int = 0
    """Sent ``signal_before`` seconds before the time limit, to the steps or to the batch script."""
    signal_before: float = 60.0
    signal_batch: bool = False
    order: str = ""
    """What the keeper must do: cancel, requeue, node_fail, preempt, release; "" for nothing."""
    order_text: str = ""
    final: str = ""
    """The state that follows COMPLETING."""
    owner: int = 0
    """The srun that holds an allocation of its own; the job ends with it."""
    owner_start: str = ""
    next_step: int = 0

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Job:
        """From the JSON of the state folder."""
        return _load(cls, data)

    def dump(self) -> dict[str, Any]:
        """For the JSON of the state folder."""
        return dict(self.__dict__)

    @property
    def ended(self) -> bool:
        """True when it holds nothing and never will."""
        return self.state not in ACTIVE


@dataclass
class Step:
    """A running step. ``tasks`` are (process id, its start time, node, rank)."""

    job: int
    id: int
    name: str
    nodes: list[str]
    overlap: bool
    keeper: int = 0
    keeper_start: str = ""
    start: float = 0.0
    container: str = ""
    tasks: list[tuple[int, str, str, int]] = field(default_factory=list)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Step:
        """From the JSON of the state folder."""
        return _load(cls, data)

    def dump(self) -> dict[str, Any]:
        """For the JSON of the state folder."""
        return dict(self.__dict__)
