"""A deployment on Slurm: the sbatch options, the srun line of every rank, the batch script. Pure.

The batch script is the part of the supervisor that lives inside the allocation. It starts one
``srun`` per node (one step per node: two ranks of one step collide while Enroot unpacks the image),
notes each rank's exit, and ends the job when any rank ends, whatever its exit code: followers
outlive a dead head (vllm#32136) and an exit code of 0 is a death too (NeMo-RL#3386). It also ends
the job when the controlling process stops changing the heartbeat file.

Containers have no names: a step that starts a named container while another one of that name starts on
the node fails on its lock, and Pyxis leaves a named container's root file system on the node after the
job. So that ranks and clients do not each import a registry image, the script imports it once, into a
file that every step then starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pytest_gpubench.plan.environment import forwarded_names
from pytest_gpubench.plan.launch import LaunchPlan, Site
from pytest_gpubench.plan.paths import Mount, container_path, container_workdir, parse_mount
from pytest_gpubench.plan.ranks import RankPlan, plan_router, plan_workers
from pytest_gpubench.plan.script import IMAGE_VARIABLE, RANK_WRAPPER
from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.plan.site_hooks import launcher_argv
from pytest_gpubench.recipe.images import is_squashfs, pyxis_form
from pytest_gpubench.recipe.types import Deployment

__all__ = ["SlurmPlan", "plan_slurm"]


@dataclass(frozen=True)
class SlurmPlan(LaunchPlan):
    """Everything that is submitted; ``commands`` are the srun lines."""

    sbatch_options: tuple[str, ...] = ()

    @property
    def contained(self) -> bool:
        """Pyxis, with an image to run."""
        return self.site.pyxis and self.deployment.image is not None

    def client_node(self, nodes: Sequence[str]) -> str:
        """Where the benchmark client runs: with the head, or on the allocation's last node."""
        return nodes[0] if self.deployment.profile.client_node == "head" else nodes[-1]

    def client_options(self, values: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """srun options of a client step: the container, without GPUs.

        ``values`` are the run-time values: of them the file that the image was imported into is taken.
        """
        options = (*self._step_common(), *self.deployment.profile.slurm.extra_srun_args)
        imported = (values or {}).get(IMAGE_VARIABLE)
        return tuple(imported if imported and word == self.imports else word for word in options)

    def submit_argv(self, script: str) -> list[str]:
        """The command that asks for the nodes: sbatch with the script, or the site's launcher."""
        if self.deployment.profile.slurm.launcher is not None:
            return launcher_argv(self)
        return ["sbatch", "--parsable", *self.sbatch_options, script]

    @property
    def imports(self) -> str | None:
        """The registry image that the job imports before its first step, as Pyxis spells it."""
        image = self.deployment.image
        if not self.contained or image is None or is_squashfs(image):
            return None
        # A local daemon's images are on its own node only.
        return None if image.startswith(("dockerd://", "podman://")) else pyxis_form(image)

    def container_options(self, names: Sequence[str]) -> tuple[str, ...]:
        """The Pyxis options; empty when the site has no Pyxis. ``names``: for ``--container-env``."""
        container = self.deployment.profile.container
        if not self.contained or self.deployment.image is None:
            return ()
        options = ["--container-image", pyxis_form(self.deployment.image)]
        if self.mounts:
            options += ["--container-mounts", ",".join(map(str, self.mounts))]
        if self.workdir is not None:
            options += ["--container-workdir", str(self.workdir)]
        options.append("--container-remap-root" if container.remap_root else "--no-container-remap-root")
        # The image's entrypoint is often `vllm serve`, which would swallow our command.
        options.append("--container-entrypoint" if container.entrypoint else "--no-container-entrypoint")
        if names:
            options += ["--container-env", ",".join(names)]
        return tuple(options)

    def _step_common(self) -> list[str]:
        names = forwarded_names(self.deployment, self.site.caller_env)
        slurm = self.deployment.profile.slurm
        mpi = ["--mpi", slurm.mpi] if slurm.mpi else []
        return [*mpi, *self.container_options(names)]


def plan_slurm(deployment: Deployment, site: Site) -> SlurmPlan:
    """The whole plan; pure."""
    mounts = tuple(parse_mount(text) for text in deployment.profile.container.mounts)
    if site.pyxis and container_path(site.folder, mounts) is None:
        # Results are written from inside the container: without a mount they would be lost with it.
        results = PurePosixPath(site.folder).parent.parent
        mounts = (*mounts, Mount(results, results))
    workdir = None
    if site.pyxis:
        workdir = container_workdir(deployment.profile.container.workdir, site.checkout, mounts)
    plan = SlurmPlan(
        deployment, site, plan_workers(deployment), mounts, workdir, router=plan_router(deployment)
    )
    return replace(
        plan,
        sbatch_options=tuple(_sbatch_options(plan)),
        commands=tuple(_rank_srun(plan, rank) for rank in plan.ranks),
        router_command=_rank_srun(plan, plan.router) if plan.router is not None else (),
        staged_check=_staged_check(plan),
    )


def _staged_check(plan: SlurmPlan) -> tuple[str, ...]:
    """One task per node that looks for the preferred path as the container sees it."""
    path = plan.deployment.preferred_path
    if path is None:
        return ()
    nodes = str(plan.num_nodes)
    argv = ["srun", "--overlap", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1"]
    argv += plan.client_options()
    return (*argv, "bash", "-c", 'test -e "$1"', "staged-check", path)


def _sbatch_options(plan: SlurmPlan) -> list[str]:
    slurm = plan.deployment.profile.slurm
    folder = plan.site.folder
    options = ["--job-name", plan.site.job_name]
    options += ["--nodes", str(plan.num_nodes), "--ntasks-per-node", "1"]
    options += ["--output", f"{folder}/slurm.log", "--error", f"{folder}/slurm.log"]
    options += ["--chdir", folder]
    # A restarted job has other nodes and a cold server: what it measures is not what was asked for.
    options += ["--no-requeue"]
    for name, value in (
        ("--gres", slurm.gres),
        ("--partition", slurm.partition),
        ("--account", slurm.account),
        ("--qos", slurm.qos),
        ("--reservation", slurm.reservation),
        ("--segment", None if slurm.segment is None else str(slurm.segment)),
        ("--time", slurm.time),
    ):
        if value is not None:
            options += [name, value]
    if slurm.exclusive and "--exclusive" not in slurm.extra_sbatch_args:
        options.append("--exclusive")
    options += slurm.extra_sbatch_args
    return options


def _rank_srun(plan: SlurmPlan, rank: RankPlan) -> tuple[str, ...]:
    slurm = plan.deployment.profile.slurm
    role = plan.deployment.role(rank.role)
    names = forwarded_names(plan.deployment, plan.site.caller_env, rank)
    argv = ["env", *(f"{name}={value}" for name, value in role.env)] if role and role.env else []
    argv += ["srun", "--overlap", "--nodes", "1", "--ntasks", "1"]
    argv += ["--nodelist", Runtime(f"${{GPUBENCH_NODE_{rank.node}}}")]
    if slurm.gres is not None and rank.role != "router":
        argv += ["--gres", slurm.gres]
    if slurm.mpi:
        argv += ["--mpi", slurm.mpi]
    argv += [*plan.container_options(names), *slurm.extra_srun_args]
    return (*argv, "bash", "-c", RANK_WRAPPER, rank.name, *rank.words)
