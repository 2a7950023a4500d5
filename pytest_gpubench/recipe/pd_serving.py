"""perf-eval's ``serving:`` block in this project's terms: roles, Slurm settings, mounts, deadlines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_gpubench.recipe.models import DeploymentModel, RecipeModel, RoleModel, RouterModel
from pytest_gpubench.recipe.parallel import SIZE_FLAGS, find_option, has_option
from pytest_gpubench.recipe.pd_models import MountModel, PdRole, PdRouter, ServingModel
from pytest_gpubench.recipe.problems import Problems
from pytest_gpubench.recipe.serve_args import split_text
from pytest_gpubench.recipe.slurm_forms import mount_problem
from pytest_gpubench.recipe.types import Profile
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["apply_serving"]

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_SAYS_TOO = ("num_nodes", "gpus_per_node", "deployment", "serve")


def apply_serving(
    model: RecipeModel, profile: Profile, env: Mapping[str, str], problems: Problems
) -> tuple[RecipeModel, Profile]:
    """The recipe and profile with the block folded in; unchanged without one.

    Of ``env`` only the variables that the mounts' sources name are read.
    """
    serving = model.serving
    if serving is None:
        return model, profile
    for name in _SAYS_TOO:
        if getattr(model, name) is not None:
            problems.add((name,), "serving describes this; keep one of the two", key=True)
    if model.vllm.serve_args is not None or model.vllm.serve is not None:
        key = "serve_args" if model.vllm.serve_args is not None else "serve"
        problems.add(("vllm", key), "arguments that all roles share are serving.common_serve_args", key=True)
    per_node = serving.roles[0].gpus_per_node
    deployment = DeploymentModel(
        router=_router(serving.router, problems), kv_transfer=serving.kv_transfer, **_roles(serving, problems)
    )
    vllm = model.vllm.model_copy(update={"serve_args": serving.common_serve_args or ""})
    changed = {
        "vllm": vllm,
        "deployment": deployment,
        "gpus_per_node": per_node,
        "deadlines": _deadlines(model, serving),
    }
    return model.model_copy(update=changed), _profile(profile, serving, env, per_node, problems)


def _roles(serving: ServingModel, problems: Problems) -> dict[str, RoleModel]:
    shared = _words(serving.common_serve_args, ("serving", "common_serve_args"), problems)
    found: dict[str, RoleModel] = {}
    for index, role in enumerate(serving.roles):
        where: KeyPath = ("serving", "roles", index)
        if role.gpus_per_node != serving.roles[0].gpus_per_node:
            problems.add(
                (*where, "gpus_per_node"),
                f"expected {serving.roles[0].gpus_per_node} as for the other role: one allocation has nodes "
                f"of one size (got {role.gpus_per_node})",
            )
        if role.kv_role not in (None, _KV_ROLES[role.role]):
            problems.add((*where, "kv_role"), f"expected {_KV_ROLES[role.role]} (got {role.kv_role!r})")
        own = _words(role.serve_args, (*where, "serve_args"), problems)
        for short, flag in SIZE_FLAGS.items():
            if short in ("tp", "dp") and find_option(own, flag) is not None:
                problems.add(
                    (*where, "serve_args"), f"--{flag} follows from tensor_parallel_size and the role's GPUs"
                )
        found[role.role] = _role(role, where, has_option([*shared, *own], "enable-expert-parallel"), problems)
    return found


def _role(role: PdRole, where: KeyPath, expert: bool, problems: Problems) -> RoleModel:
    gpus = role.nodes_per_instance * role.gpus_per_node
    tp = role.tensor_parallel_size
    if role.gpus_per_node % tp != 0:
        problems.add(
            (*where, "tensor_parallel_size"),
            f"expected a size that divides the {role.gpus_per_node} GPUs of a node (got {tp})",
        )
    return RoleModel(
        workers=role.count,
        tp=tp,
        dp=max(1, gpus // tp),
        ep=expert,
        nodes=role.count * role.nodes_per_instance,
        serve_args=role.serve_args,
        env=role.env,
    )


def _words(text: str | None, where: KeyPath, problems: Problems) -> list[str]:
    try:
        return split_text(text or "")
    except ValueError as error:
        problems.add(where, str(error))
        return []


def _router(router: PdRouter, problems: Problems) -> RouterModel:
    if router.repo_path is not None or router.command:
        problems.warn(
            ("serving", "router"),
            "the router is the vllm-router of the image: repo_path, command and env are not used",
        )
    arguments = ["--policy", router.policy] if router.policy is not None else []
    if router.intra_node_data_parallel_size > 1:
        arguments += ["--intra-node-data-parallel-size", str(router.intra_node_data_parallel_size)]
    return RouterModel(version=router.revision, args=tuple(arguments))


def _deadlines(model: RecipeModel, serving: ServingModel) -> Any:
    """The block's waits where the recipe has no deadlines of its own."""
    health = [role.health_check.timeout_s for role in serving.roles]
    grace = serving.slurm.grace_period_s
    waits = {
        "load": max((seconds for seconds in health if seconds is not None), default=None),
        "ready": serving.router.health_check.timeout_s,
        "teardown": None if grace is None else max(180, grace + 60),
    }
    own = model.deadlines
    update = {
        phase: float(seconds)
        for phase, seconds in waits.items()
        if seconds is not None and getattr(own, phase) is None
    }
    return own.model_copy(update=update)


def _profile(
    profile: Profile, serving: ServingModel, env: Mapping[str, str], per_node: int, problems: Problems
) -> Profile:
    """The profile on Slurm with Pyxis, with the block's partition, time and mounts in front of its own."""
    mounts = []
    for index, mount in enumerate(serving.slurm.container.mounts):
        where: KeyPath = ("serving", "slurm", "container", "mounts", index)
        text = _mount(mount, env, where, problems)
        if text is not None:
            mounts.append(text)
    asked = serving.slurm
    slurm = replace(
        profile.slurm,
        partition=asked.partition or profile.slurm.partition,
        time=asked.time_limit or profile.slurm.time,
        gres=profile.slurm.gres or f"gpu:{per_node}",
    )
    container = replace(
        profile.container, runtime="pyxis", mounts=tuple(dict.fromkeys((*mounts, *profile.container.mounts)))
    )
    return replace(profile, runtime="slurm", slurm=slurm, container=container)


def _mount(mount: MountModel, env: Mapping[str, str], where: KeyPath, problems: Problems) -> str | None:
    named = env.get(mount.source_env, "") if mount.source_env is not None else ""
    source = named or mount.source
    if source is None:
        problems.add(where, f"set {mount.source_env}: the mount of {mount.target} has no other source")
        return None
    missing = []

    def fill(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not env.get(name):
            missing.append(name)
        return env.get(name, "")

    filled = re.sub(r"\$\{(\w+)\}|\$(\w+)", fill, source)
    if missing:
        names = " and ".join(dict.fromkeys(missing))
        problems.add((*where, "source"), f"{names} is not set, so the source is unknown (got {source!r})")
        return None
    text = f"{filled}:{mount.target}" + (":ro" if mount.read_only else "")
    problem = mount_problem(text)
    if problem is not None:
        problems.add(where, f"{problem} (got {text!r})")
        return None
    return text
