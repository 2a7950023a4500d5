"""What the supervisor needs of a place where servers run: Slurm, docker, or this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_gpubench.errors import InfraError, LogTail
from pytest_gpubench.world import ProcessHandle

__all__ = ["Api", "Backend", "Hardware", "Look"]


@dataclass(frozen=True)
class Api:
    """One HTTP API: a worker's head, or the router. ``label`` is for messages: ``server``, ``prefill-0``."""

    label: str
    host: str
    port: int
    node: str = ""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Look:
    """What can be seen now, without waiting.

    ``failure`` is the backend's own verdict; once it is set the deployment is over. ``started`` holds the
    ranks whose process is up (its container exists), ``detail`` is Slurm's pending reason or the like.
    """

    pending: bool
    detail: str = ""
    nodes: tuple[str, ...] = ()
    apis: tuple[Api, ...] = ()
    started: frozenset[str] = frozenset()
    exits: Mapping[str, int] = field(default_factory=dict)
    failure: InfraError | None = None
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hardware:
    """GPU names of the head node, its driver, and the Slurm that gave it."""

    gpu_names: tuple[str, ...] = ()
    driver_version: str | None = None
    slurm_version: str | None = None


class Backend(Protocol):
    """One deployment in one place. All methods are bounded in time."""

    @property
    def rank_names(self) -> tuple[str, ...]:
        """Names of all ranks, heads first within their worker."""
        ...

    @property
    def log_folder(self) -> Path:
        """Where the ranks' logs lie, ``<rank>.log``."""
        ...

    @property
    def job_id(self) -> str | None:
        """The job or container id, None before there is one."""
        ...

    def launch(self, previous: Backend | None = None) -> None:
        """Ask for the nodes (or take over those of ``previous``) and start the ranks; does not wait."""
        ...

    def held_seconds(self) -> float:
        """How long the nodes have been held so far, as far as can be told."""
        ...

    def look(self) -> Look:
        """What can be seen now."""
        ...

    def hardware(self) -> Hardware:
        """What the servers run on, as far as it is known."""
        ...

    def start_router(self) -> None:
        """The backends are ready: start the router in front of them."""
        ...

    def start_client(self, argv: Sequence[str], log: str, name: str) -> ProcessHandle:
        """Start a client beside the server: a step of the same allocation, without standard input."""
        ...

    def client_path(self, host: str) -> str:
        """A host path as the client sees it."""
        ...

    def tails(self) -> list[LogTail]:
        """The last lines of every rank's log, the first rank to die first."""
        ...

    def stop(self) -> bool:
        """Give everything back; idempotent, bounded; False when it could not be confirmed."""
        ...
