"""perf-eval's site hooks: the environment that a site's own server command or launcher is given. Pure.

A server command replaces the command of every rank; a launcher replaces the whole submission. Both read
``PERF_EVAL_*``, as in perf-eval, and what only this project knows as ``GPUBENCH_*``.
"""

from __future__ import annotations

import json
import shlex
import zlib
from typing import TYPE_CHECKING

from pytest_gpubench.plan.ranks import RankPlan, head_variable, port_variable
from pytest_gpubench.plan.record import role_record, source_settings
from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.recipe.types import Deployment, Profile

if TYPE_CHECKING:
    from pytest_gpubench.plan.launch import LaunchPlan

__all__ = ["launcher_argv", "launcher_environment", "rank_exports"]

_FIRST_PORT, _PORTS = 10_000, 20_000


def rank_exports(deployment: Deployment, rank: RankPlan) -> dict[str, str]:
    """Name -> value for one rank of a site's server command: the names of ``SERVER_COMMAND_NAMES``."""
    model = Runtime("${GPUBENCH_MODEL}") if deployment.preferred_path else deployment.model_path
    known = _known(deployment)
    return {
        "GPUBENCH_RANK": str(rank.rank),
        "GPUBENCH_NNODES": str(rank.num_nodes),
        "PERF_EVAL_PORT": Runtime(f"${{{port_variable('API', rank.worker)}}}"),
        "PERF_EVAL_MODEL": model,
        "PERF_EVAL_IMAGE": known["PERF_EVAL_IMAGE"],
        "PERF_EVAL_SERVE_ARGS": known["PERF_EVAL_SERVE_ARGS"],
        "PERF_EVAL_NUM_NODES": str(rank.num_nodes),
        "PERF_EVAL_GPUS_PER_NODE": known["PERF_EVAL_GPUS_PER_NODE"],
        "PERF_EVAL_NUM_GPUS": known["PERF_EVAL_NUM_GPUS"],
        "PERF_EVAL_NODE_RANK": str(rank.rank),
        "PERF_EVAL_MASTER_ADDR": Runtime(f"${{{head_variable(rank.worker)}}}"),
        "PERF_EVAL_MASTER_PORT": Runtime(f"${{{port_variable('MASTER', rank.worker)}}}"),
    }


def launcher_argv(plan: LaunchPlan) -> list[str]:
    """The command that runs the site's launcher in the checkout, where its path may be relative to."""
    launcher = plan.deployment.profile.slurm.launcher or ""
    words = shlex.split(launcher)
    return ["bash", "-c", 'cd "$1" && shift && exec "$@"', "launcher", plan.site.checkout, *words]


def launcher_environment(plan: LaunchPlan) -> dict[str, str]:
    """Everything that a launcher needs beside the recipe's own environment, which it inherits."""
    deployment, name = plan.deployment, plan.site.job_name
    values = {
        **_slurm_settings(deployment.profile),
        **_known(deployment),
        "PERF_EVAL_CONTAINER_NAME": name,
        # The job is found by this name should the launcher's answer get lost.
        "PERF_EVAL_SLURM_JOB_NAME": name,
        "PERF_EVAL_PORT": str(_FIRST_PORT + zlib.crc32(name.encode()) % _PORTS),
        "PERF_EVAL_ENDPOINT_FILE": f"{plan.state}/endpoint",
        "PERF_EVAL_ENV_FILE": f"{plan.state}/environment",
        "PERF_EVAL_RESULTS_DIR": plan.site.folder,
        "GPUBENCH_FRAMEWORK": deployment.framework,
        "GPUBENCH_PARALLEL": json.dumps(_sizes(deployment)),
        # What the source says beside all this, such as InferenceX's srt-recipe and router.
        "GPUBENCH_SOURCE": json.dumps(source_settings(deployment.extra)),
    }
    for role in (deployment.prefill, deployment.decode):
        if role is not None:
            values[f"GPUBENCH_{role.name.upper()}"] = json.dumps(role_record(deployment, role))
    return values


def _known(deployment: Deployment) -> dict[str, str]:
    return {
        "PERF_EVAL_MODEL": deployment.model_path,
        "PERF_EVAL_IMAGE": deployment.image or "",
        "PERF_EVAL_SERVE_ARGS": shlex.join(deployment.serve_args),
        "PERF_EVAL_NUM_NODES": str(deployment.num_nodes),
        "PERF_EVAL_GPUS_PER_NODE": str(deployment.gpus_per_node),
        "PERF_EVAL_NUM_GPUS": str(deployment.gpu_count),
    }


def _sizes(deployment: Deployment) -> dict[str, int]:
    parallel = deployment.parallel
    return {name: getattr(parallel, name) for name in ("tp", "pp", "dp", "ep", "pcp", "dcp")}


def _slurm_settings(profile: Profile) -> dict[str, str]:
    """The typed settings under perf-eval's names, so that both forms of a profile serve a launcher."""
    slurm, container = profile.slurm, profile.container
    sbatch = [*slurm.extra_sbatch_args]
    if slurm.exclusive and "--exclusive" not in sbatch:
        sbatch.append("--exclusive")
    texts = {
        "PARTITION": slurm.partition,
        "GRES": slurm.gres,
        "TIME": slurm.time,
        "ACCOUNT": slurm.account,
        "QOS": slurm.qos,
        "RESERVATION": slurm.reservation,
        "MPI": slurm.mpi,
        "EXTRA_SBATCH_ARGS": shlex.join(sbatch),
        "EXTRA_SRUN_ARGS": shlex.join(slurm.extra_srun_args),
        "CONTAINER_RUNTIME": container.runtime,
        "CONTAINER_MOUNTS": ",".join(container.mounts),
        "CONTAINER_WORKDIR": container.workdir,
        "NO_CONTAINER_REMAP_ROOT": "0" if container.remap_root else "1",
    }
    return {f"PERF_EVAL_SLURM_{name}": text for name, text in texts.items() if text}
