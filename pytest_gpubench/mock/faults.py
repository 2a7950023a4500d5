"""What can be made to go wrong, by name. A test injects a fault, the commands of the mock look for it when it
matters.

Common to all: ``match`` is a pattern of job names (server and client faults: of the job they run in). A
*phase* is one of PHASES; ``seconds`` count from its beginning.
"""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "FAULTS",
    "PHASES",
    "CancelledExternally",
    "ClientExits",
    "ClientHangs",
    "ContainerLocked",
    "ControllerDown",
    "ControllerHangs",
    "DiskFull",
    "EngineDeadButHealthy",
    "Fault",
    "FaultBox",
    "ForeignServer",
    "ImportFails",
    "ImportSlow",
    "LoadHangs",
    "LogNoise",
    "NeverHealthy",
    "NodeFails",
    "OutOfMemory",
    "PortTaken",
    "Preempted",
    "RequestFailures",
    "Requeued",
    "ResultLate",
    "ResultMissing",
    "SbatchAnswers",
    "SbatchHangsButQueues",
    "SbatchRefuses",
    "ServerExits",
    "SlowQueue",
    "SqueueTimesOut",
    "StuckCompleting",
    "TimeLimit",
    "parse",
    "unparse",
]

PHASES = ("pending", "running", "import", "loading", "ready", "benching")
"""Submitted; started; first container being unpacked; a server process began; it is ready; it got a
request."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    match: str = field(default="*", kw_only=True)

    def __post_init__(self) -> None:
        phase = getattr(self, "phase", None)
        if phase is not None and phase not in PHASES:
            raise ValueError(
                f"{type(self).__name__}: phase must be one of {', '.join(PHASES)} (got {phase!r})"
            )


# -- Slurm ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlowQueue(Fault):
    """The job stays PENDING for ``seconds`` after its submission, with this reason; the text is given back
    whole."""

    seconds: float
    reason: str = "Priority"


@dataclass(frozen=True)
class SbatchRefuses(Fault):
    """sbatch submits nothing, says ``text`` on standard error, and exits 1."""

    text: str = "sbatch: error: Batch job submission failed: Invalid account or account/partition specified"


@dataclass(frozen=True)
class SbatchHangsButQueues(Fault):
    """The controller takes the job, but its answer does not reach sbatch, which waits for ``seconds`` and
    gives up."""

    seconds: float = 3600.0


@dataclass(frozen=True)
class SbatchAnswers(Fault):
    """sbatch prints ``text`` in place of its answer (``{id}`` is the job's id) and exits 0."""

    text: str


@dataclass(frozen=True)
class SqueueTimesOut(Fault):
    """squeue says that its socket timed out; for the next ``calls`` calls, or for ``seconds``, or until
    cleared."""

    exit_code: int = 1
    calls: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ControllerDown(Fault):
    """No command reaches slurmctld, for ``seconds`` or until cleared; what runs on the nodes goes on."""

    seconds: float | None = None


@dataclass(frozen=True)
class ControllerHangs(Fault):
    """slurmctld takes requests and answers none, for ``seconds`` or until cleared.

    A command gives up after the cluster's ``message_timeout``; what it asked for happens all the same when
    the controller goes on.
    """

    seconds: float | None = None


@dataclass(frozen=True)
class CancelledExternally(Fault):
    """Somebody else cancels the job."""

    phase: str = "running"
    seconds: float = 0.0
    uid: int = 1234


@dataclass(frozen=True)
class Requeued(Fault):
    """The administrator requeues the job (once); it starts again under its id."""

    phase: str = "running"
    seconds: float = 0.0


@dataclass(frozen=True)
class Preempted(Fault):
    """A job of a higher priority takes the nodes; with ``requeue`` it comes back under its id."""

    phase: str = "running"
    seconds: float = 0.0
    requeue: bool = False


@dataclass(frozen=True)
class NodeFails(Fault):
    """A node (by name, or by its index in the job's allocation) goes down with all its processes."""

    node: str = "0"
    phase: str = "running"
    seconds: float = 0.0


@dataclass(frozen=True)
class TimeLimit(Fault):
    """The job reaches its time limit after ``seconds`` of run time."""

    seconds: float


@dataclass(frozen=True)
class OutOfMemory(Fault):
    """The kernel kills the job's processes for their memory."""

    phase: str = "running"
    seconds: float = 0.0


@dataclass(frozen=True)
class StuckCompleting(Fault):
    """The job holds its nodes in COMPLETING for ``seconds`` after its end."""

    seconds: float


# -- containers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportFails(Fault):
    """Unpacking the image fails with ``text``, on the step of ``rank`` (by position of its node) or on
    all."""

    text: str = "[ERROR] No such file or directory: the image could not be fetched"
    rank: int | None = None


@dataclass(frozen=True)
class ImportSlow(Fault):
    """Unpacking the image takes ``seconds``."""

    seconds: float


@dataclass(frozen=True)
class ContainerLocked(Fault):
    """A second start of one ``--container-name`` on a node within ``seconds`` fails on the root file system's
    lock."""

    seconds: float = 1.0


# -- servers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerExits(Fault):
    """``vllm serve`` of ``rank`` ends with ``code`` (negative: a signal kills it) after saying ``text``.

    When: ``seconds`` after ``phase`` began for the job, or after ``after_requests`` requests were answered.
    """

    rank: int = 0
    code: int = 1
    phase: str = "loading"
    seconds: float = 0.0
    after_requests: int | None = None
    text: str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@dataclass(frozen=True)
class NeverHealthy(Fault):
    """The server runs and logs, but /health answers 503 for ever."""


@dataclass(frozen=True)
class LoadHangs(Fault):
    """Loading of ``rank`` stops half way; the process lives, nothing listens."""

    rank: int = 0


@dataclass(frozen=True)
class PortTaken(Fault):
    """The HTTP port is in use: the head says so and exits 1."""


@dataclass(frozen=True)
class ForeignServer(Fault):
    """Another server, of ``model``, answers on the head's port; our own cannot bind it and exits 1."""

    model: str = "other/model"


@dataclass(frozen=True)
class LogNoise(Fault):
    """The log holds colours, NUL, BEL, carriage returns and a byte that is not UTF-8."""


@dataclass(frozen=True)
class RequestFailures(Fault):
    """A share of the requests (0 to 1, evenly spread) is answered with ``status``."""

    rate: float
    status: int = 500


@dataclass(frozen=True)
class EngineDeadButHealthy(Fault):
    """/health goes on saying 200, but completions fail after ``after_requests`` (or hang)."""

    after_requests: int = 0
    hang: bool = False


# -- the client ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultLate(Fault):
    """The result file appears ``seconds`` after the client ended, as over NFS."""

    seconds: float


@dataclass(frozen=True)
class ResultMissing(Fault):
    """The client exits 0 and writes no result."""


@dataclass(frozen=True)
class DiskFull(Fault):
    """Writing the result fails half way: the file is cut, the client exits 1."""


@dataclass(frozen=True)
class ClientHangs(Fault):
    """The client measures, then never ends and never writes."""


@dataclass(frozen=True)
class ClientExits(Fault):
    """The client exits with ``code`` (negative: a signal) before it measures."""

    code: int = 1
    text: str = "ValueError: the client failed"


FAULTS: dict[str, type[Fault]] = {kind.__name__: kind for kind in Fault.__subclasses__()}
"""Every fault by its name."""

F = TypeVar("F", bound=Fault)


def parse(data: Mapping[str, Any]) -> Fault:
    """A fault from ``{"fault": NAME, field: value}``; ValueError names what is wrong."""
    name = data.get("fault")
    if name not in FAULTS:
        raise ValueError(f"unknown fault {name!r}; known: {', '.join(sorted(FAULTS))}")
    kind = FAULTS[name]
    given = {key: value for key, value in data.items() if key != "fault"}
    unknown = sorted(set(given) - {item.name for item in fields(kind)})
    if unknown:
        raise ValueError(
            f"fault {name}: unknown fields {unknown}; known: {[item.name for item in fields(kind)]}"
        )
    try:
        return kind(**given)
    except TypeError as err:
        raise ValueError(f"fault {name}: {err}") from err


def unparse(fault: Fault) -> dict[str, Any]:
    """The JSON form that ``parse`` reads."""
    return {"fault": type(fault).__name__, **asdict(fault)}


class FaultBox:
    """The faults in force, in a file of the state folder, so that running commands see a change at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "faults.json"

    @contextmanager
    def _locked(self) -> Iterator[list[dict[str, Any]]]:
        with open(self._path.with_suffix(".lock"), "ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            entries = self._entries()
            yield entries
            aside = self._path.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps(entries))
            aside.replace(self._path)

    def _entries(self) -> list[dict[str, Any]]:
        try:
            data: list[dict[str, Any]] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return []
        return data

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        with self._locked() as entries:
            entries.append({"data": unparse(fault), "since": time.time(), "used": 0, "jobs": []})

    def clear(self, kind: type[Fault] | None = None) -> None:
        """Take faults of a kind (or all) out of force."""
        with self._locked() as entries:
            entries[:] = [item for item in entries if kind and item["data"]["fault"] != kind.__name__]

    def all(self) -> list[Fault]:
        """What is in force."""
        return [parse(item["data"]) for item in self._entries()]

    def find(self, kind: type[F], job_name: str = "", **wanted: Any) -> F | None:
        """The first fault of a kind in force for a job; ``wanted`` are fields that must have a value (None:
        any)."""
        for item in self._entries():
            fault = self._match(item, kind, job_name)
            if fault is not None and all(
                getattr(fault, key) in (None, value) for key, value in wanted.items()
            ):
                return fault
        return None

    def take(self, kind: type[F], job_name: str = "") -> F | None:
        """Like ``find``, and counts the use: for faults that last for a number of calls."""
        if not any(item["data"]["fault"] == kind.__name__ for item in self._entries()):
            return None
        with self._locked() as entries:
            for item in entries:
                fault = self._match(item, kind, job_name)
                if fault is not None:
                    item["used"] += 1
                    return fault
        return None

    def once(self, kind: type[Fault], job_id: int) -> None:
        """Note that a fault of a kind struck a job: it does not strike it again."""
        with self._locked() as entries:
            for item in entries:
                if item["data"]["fault"] == kind.__name__:
                    item["jobs"].append(job_id)

    def struck(self, kind: type[Fault], job_id: int) -> bool:
        """True when ``once`` was said for this job."""
        return any(
            item["data"]["fault"] == kind.__name__ and job_id in item["jobs"] for item in self._entries()
        )

    @staticmethod
    def _match(item: Mapping[str, Any], kind: type[F], job_name: str) -> F | None:
        if item["data"]["fault"] != kind.__name__:
            return None
        fault = parse(item["data"])
        assert isinstance(fault, kind)
        if not fnmatch.fnmatchcase(job_name, fault.match):
            return None
        calls = getattr(fault, "calls", None)
        if calls is not None and item["used"] >= calls:
            return None
        # Other faults' seconds count from a phase; only these last for a time after their injection.
        lasts = (
            fault.seconds if isinstance(fault, SqueueTimesOut | ControllerDown | ControllerHangs) else None
        )
        return None if lasts is not None and time.time() > item["since"] + lasts else fault
