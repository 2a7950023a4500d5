"""The environment of server and client: one list that serves Pyxis, docker and native alike.

Values travel in the environment of the submitting process, never in a script or an option: Slurm
splits ``--export`` at commas, and a script on a shared disk must not hold a token. Only the *names*
are written, in ``--container-env`` (Pyxis: an image's own ENV beats the job's unless a variable is
named there, NVIDIA/pyxis#124) or as ``docker run -e NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_gpubench.plan.ranks import RankPlan
from pytest_gpubench.recipe.types import Deployment

__all__ = [
    "DEFAULT_FROM_HOST",
    "SERVER_COMMAND_NAMES",
    "forwarded_names",
    "is_secret",
    "launcher_names",
    "masked",
    "process_environment",
]

DEFAULT_FROM_HOST = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Taken along when the caller has them: gated models need them."""

SERVER_COMMAND_NAMES = (
    "GPUBENCH_RANK", "GPUBENCH_NNODES", "PERF_EVAL_PORT", "PERF_EVAL_MODEL", "PERF_EVAL_IMAGE",
    "PERF_EVAL_SERVE_ARGS", "PERF_EVAL_NUM_NODES", "PERF_EVAL_GPUS_PER_NODE", "PERF_EVAL_NUM_GPUS",
    "PERF_EVAL_NODE_RANK", "PERF_EVAL_MASTER_ADDR", "PERF_EVAL_MASTER_PORT",
)  # fmt: skip
"""What a site's own server command finds in the environment of each rank."""

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|PASSWORD", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """True when a variable of this name may hold a secret, so that its value is never written."""
    return bool(_SECRET.search(name))


def process_environment(deployment: Deployment, caller: Mapping[str, str]) -> dict[str, str]:
    """Name -> value of all that the recipe, the profile and the caller's tokens give to every process."""
    values = {name: caller[name] for name in _from_host(deployment) if name in caller}
    values.update(deployment.env)
    return values


def forwarded_names(
    deployment: Deployment, caller: Mapping[str, str], rank: RankPlan | None = None
) -> tuple[str, ...]:
    """The names to write in ``--container-env`` or ``docker -e``, in a stable order, none twice.

    ``rank``: for that process, with its role's variables and the launcher's; None for a client.
    """
    names = [*dict(deployment.env), *(name for name in _from_host(deployment) if name in caller)]
    if rank is not None:
        role = deployment.role(rank.role)
        names += [*(dict(role.env) if role is not None else {}), *launcher_names(deployment, rank)]
    return tuple(dict.fromkeys(names))


def launcher_names(deployment: Deployment, rank: RankPlan) -> tuple[str, ...]:
    """The variables that the rank script sets itself for a process."""
    names = ["GPUBENCH_STARTED"]
    if rank.role == "router":
        return tuple(names)
    if deployment.check_model_path:
        names.append("GPUBENCH_MODEL_PATH")
    if rank.num_nodes == 1:
        # Servers that share a node race for internal ports above VLLM_PORT; several nodes must not share it.
        names.append("VLLM_PORT")
    if deployment.kv_transfer is not None and "Nixl" in deployment.kv_transfer:
        # NIXL's side channel: its default port is the same for every worker.
        names += ["VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"]
    if rank.command is not None:
        names += SERVER_COMMAND_NAMES
    return tuple(names)


def masked(pairs: Mapping[str, str]) -> dict[str, str]:
    """For plan.json: the values of secret names replaced."""
    return {name: "***" if is_secret(name) else value for name, value in pairs.items()}


def _from_host(deployment: Deployment) -> tuple[str, ...]:
    return (*DEFAULT_FROM_HOST, *deployment.env_from_host)
