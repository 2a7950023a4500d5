"""A deployment on this host: plain processes (``native``) or docker containers. Pure.

The same rank script as on Slurm starts and watches the ranks, so supervision, heartbeat and state
files are the same; only the commands differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pytest_gpubench.plan.environment import forwarded_names
from pytest_gpubench.plan.launch import LaunchPlan, Site
from pytest_gpubench.plan.paths import Mount, container_path, container_workdir, parse_mount
from pytest_gpubench.plan.ranks import RankPlan, plan_router, plan_workers
from pytest_gpubench.plan.script import RANK_WRAPPER
from pytest_gpubench.recipe.images import docker_form
from pytest_gpubench.recipe.types import Deployment

__all__ = ["CLIENT_WRAPPER", "LocalPlan", "client_command", "plan_local"]

CLIENT_WRAPPER = 'echo "$$" >"$0"; exec "$@"'
"""What a client in a container runs before the command."""


@dataclass(frozen=True)
class LocalPlan(LaunchPlan):
    """Ranks on this host; ``runtime`` of the deployment is ``native`` or ``docker``."""

    @property
    def scheduled(self) -> bool:
        """Nothing is asked of Slurm."""
        return False

    @property
    def contained(self) -> bool:
        """Docker sees the mounts."""
        return self.deployment.runtime == "docker"

    def container_id_file(self, rank: str) -> str:
        """Where docker writes a rank's container id: containers are removed by id, never by name."""
        return f"{self.state}/{rank}.cid"


def plan_local(deployment: Deployment, site: Site) -> LocalPlan:
    """The whole plan; pure."""
    docker = deployment.runtime == "docker"
    mounts = _mounts(deployment, site) if docker else ()
    explicit = deployment.profile.container.workdir
    workdir = container_workdir(explicit, site.checkout, mounts) if docker else None
    plan = LocalPlan(
        deployment, site, plan_workers(deployment), mounts, workdir, router=plan_router(deployment)
    )
    make = _docker_run if docker else _native
    return replace(
        plan,
        commands=tuple(make(plan, rank) for rank in plan.ranks),
        router_command=make(plan, plan.router) if plan.router is not None else (),
        staged_check=("test", "-e", deployment.preferred_path) if deployment.preferred_path else (),
    )


def _mounts(deployment: Deployment, site: Site) -> tuple[Mount, ...]:
    """The profile's mounts; then what the processes need, at the same place, where no mount covers it."""
    mounts = tuple(parse_mount(text) for text in deployment.profile.container.mounts)
    results = str(PurePosixPath(site.folder).parent.parent)
    home = dict(deployment.env).get("HF_HOME")
    for text in (results, home, deployment.model_path, deployment.preferred_path):
        path = PurePosixPath(text or "")
        if not path.is_absolute():  # a model of the hub, or nothing
            continue
        # HF_HOME and a model's path are the container's: a mount may put another folder there.
        reached = any(mount.target == path or mount.target in path.parents for mount in mounts)
        if reached or (text == results and container_path(path, mounts) is not None):
            continue
        mounts = (*mounts, Mount(path, path))
    return mounts


def client_command(
    plan: LocalPlan, argv: Sequence[str], container_id: str | None, pid_file: str
) -> list[str]:
    """The benchmark client: inside the head's container, or beside the server on this host.

    In a container it notes its process id in ``pid_file``: ``docker exec`` passes no signal on.
    """
    if container_id is None:
        return list(argv)
    names = forwarded_names(plan.deployment, plan.site.caller_env)
    flags = [word for name in names for word in ("-e", name)]
    workdir = ["-w", str(plan.workdir)] if plan.workdir is not None else []
    noted = ["bash", "-c", CLIENT_WRAPPER, plan.in_container(pid_file), *argv]
    return ["docker", "exec", *flags, *workdir, container_id, *noted]


def _native(plan: LocalPlan, rank: RankPlan) -> tuple[str, ...]:
    role = plan.deployment.role(rank.role)
    prefix = ["env", *(f"{name}={value}" for name, value in role.env)] if role and role.env else []
    return (*prefix, "bash", "-c", RANK_WRAPPER, rank.name, *rank.words)


def _docker_run(plan: LocalPlan, rank: RankPlan) -> tuple[str, ...]:
    deployment = plan.deployment
    role = deployment.role(rank.role)
    prefix = ["env", *(f"{name}={value}" for name, value in role.env)] if role and role.env else []
    argv = [*prefix, "docker", "run", "--rm", "--init", "--network", "host", "--ipc", "host"]
    argv += ["--cidfile", plan.container_id_file(rank.name)]
    if rank.role != "router":
        argv += _gpus(deployment)
    for name in forwarded_names(deployment, plan.site.caller_env, rank):
        # Without a value docker takes it from its own environment: nothing secret is on the command line.
        argv += ["-e", name]
    for mount in plan.mounts:
        argv += ["-v", str(mount)]
    if plan.workdir is not None:
        argv += ["-w", str(plan.workdir)]
    argv += ["--entrypoint", "bash", docker_form(deployment.image or "")]
    return (*argv, "-c", RANK_WRAPPER, rank.name, *rank.words)


def _gpus(deployment: Deployment) -> list[str]:
    if deployment.profile.platform.startswith("mi"):  # AMD: devices instead of the NVIDIA runtime
        return ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
    return ["--gpus", "all"]
