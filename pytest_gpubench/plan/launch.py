"""What every runtime's plan has in common: ranks with their commands, paths, and the rank script. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from pytest_gpubench.plan.paths import Mount, container_path
from pytest_gpubench.plan.ranks import RankPlan, WorkerPlan
from pytest_gpubench.plan.script import rank_script
from pytest_gpubench.recipe.types import Deployment

__all__ = [
    "EXIT_HEARTBEAT",
    "EXIT_IMPORT",
    "EXIT_MODEL_MISSING",
    "EXIT_PORTS",
    "EXIT_REQUEUED",
    "EXIT_UNWRITABLE",
    "LaunchPlan",
    "Site",
]

EXIT_MODEL_MISSING = 66
"""A rank's exit code when the staged model path is not on its node."""
EXIT_HEARTBEAT = 75
"""The script's exit code when the controlling process is gone."""
EXIT_PORTS = 76
"""The script's exit code when no free ports were found."""
EXIT_UNWRITABLE = 74
"""The script's exit code when it cannot write into the results folder."""
EXIT_REQUEUED = 77
"""The script's exit code when Slurm starts it again."""
EXIT_IMPORT = 78
"""The script's exit code when the image could not be imported."""


@dataclass(frozen=True)
class Site:
    """What a plan needs to know of this run. Paths are absolute host paths, shared with the nodes."""

    folder: str  # the deployment's folder: script, logs, state
    checkout: str  # where the run was started; decides the container workdir
    job_name: str
    caller_env: Mapping[str, str]
    pyxis: bool = False
    heartbeat_limit: float = 120.0
    grace: float = 10.0


@dataclass(frozen=True)
class LaunchPlan:
    """``commands`` holds one command per rank, in the order of ``ranks``; ``router`` stands beside them."""

    deployment: Deployment
    site: Site
    workers: tuple[WorkerPlan, ...]
    mounts: tuple[Mount, ...]
    workdir: PurePosixPath | None
    commands: tuple[tuple[str, ...], ...] = ()
    router: RankPlan | None = None
    router_command: tuple[str, ...] = ()
    staged_check: tuple[str, ...] = ()  # succeeds when the preferred model path is on every node

    @property
    def contained(self) -> bool:
        """Whether the processes see the mounts instead of the host's paths."""
        return False

    @property
    def imports(self) -> str | None:
        """The registry image that the script imports once for all steps, None when it imports none."""
        return None

    @property
    def scheduled(self) -> bool:
        """Whether Slurm gives the nodes; else everything runs on this host."""
        return True

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """All ranks of all workers."""
        return tuple(rank for worker in self.workers for rank in worker.ranks)

    @cached_property
    def script(self) -> str:
        """The script that starts and watches the ranks."""
        return rank_script(self)

    @property
    def script_name(self) -> str:
        """Its file name in the deployment's folder."""
        return "job.sbatch" if self.scheduled else "ranks.sh"

    @property
    def state(self) -> str:
        """The state folder (host path)."""
        # Of this start alone: the job of a run that was killed may still watch and write its own.
        return f"{self.site.folder}/state/{self.site.job_name}"

    @property
    def num_nodes(self) -> int:
        """Nodes of the allocation, an extra client node included."""
        extra = self.scheduled and self.deployment.profile.client_node == "extra"
        return self.deployment.num_nodes + (1 if extra else 0)

    def in_container(self, host: str) -> str:
        """A host path as the processes see it."""
        if not self.contained:
            return host
        path = container_path(host, self.mounts)
        return host if path is None else str(path)
