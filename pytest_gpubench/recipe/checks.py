"""Contradictions that are found before any node is held."""

from __future__ import annotations

from pytest_gpubench.recipe.images import image_allowed, image_problem, is_squashfs
from pytest_gpubench.recipe.parallel import launcher_owned
from pytest_gpubench.recipe.slurm_forms import time_seconds
from pytest_gpubench.recipe.source import Allocation, Source
from pytest_gpubench.recipe.types import Deployment, Load, Parallel
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = [
    "check_arguments",
    "check_gloo",
    "check_idle",
    "check_image",
    "check_one_host",
    "check_server_command",
    "check_time_limits",
    "load_problem",
    "misfit",
]


def misfit(deployment: Deployment) -> str | None:
    """Why the parallel sizes cannot run on the allocation, None when they can; roles are checked apart."""
    parallel, nodes, per_node = deployment.parallel, deployment.num_nodes, deployment.gpus_per_node
    needed, held = parallel.world_size, nodes * per_node
    if deployment.prefill is not None:
        return None
    if needed > held:
        return (
            f"{_sizes(parallel)} needs {needed} GPUs, but {held} are allocated ({nodes} nodes x {per_node})"
        )
    if needed % nodes != 0:
        return f"{_sizes(parallel)} = {needed} GPUs do not divide by {nodes} nodes"
    if parallel.tp % parallel.dcp != 0:
        return f"tensor parallel {parallel.tp} does not divide by decode context parallel {parallel.dcp}"
    return None


def check_idle(source: Source, allocation: Allocation, parallel: Parallel, where: KeyPath) -> None:
    """Idle GPUs are worth a warning."""
    needed, held = parallel.world_size, allocation.gpus
    if needed < held and needed % allocation.num_nodes == 0:
        source.problems.warn(
            where,
            f"{_sizes(parallel)} uses {needed} of {held} GPUs allocated ({allocation.num_nodes} nodes x "
            f"{allocation.gpus_per_node}): {held - needed} are idle, and per-GPU figures divide by {held}",
        )


def _sizes(parallel: Parallel) -> str:
    return " x ".join(
        f"{name}{getattr(parallel, name)}"
        for name in ("tp", "pp", "dp", "pcp")
        if name == "tp" or getattr(parallel, name) > 1
    )


def check_one_host(source: Source, num_nodes: int, where: KeyPath) -> None:
    """Docker and native know this host only."""
    runtime = source.profile.runtime
    if runtime != "slurm" and num_nodes > 1:
        source.problems.add(
            where,
            f"profile {source.profile.name} has the runtime {runtime}, which is this host alone; "
            f"more nodes need runtime slurm (got {num_nodes})",
        )


def check_arguments(source: Source, deployment: Deployment, where: KeyPath) -> None:
    """No serve argument sets what the launcher sets."""
    arguments = list(deployment.serve_args)
    for role in (deployment.prefill, deployment.decode):
        arguments += role.serve_args if role is not None else ()
    for text in launcher_owned(arguments, deployment.num_nodes):
        source.problems.add(where, f"the launcher owns this: {text}; remove it")


def check_gloo(source: Source, deployment: Deployment, where: KeyPath) -> None:
    """Gloo wants one interface name; NCCL's patterns crash it."""
    name = "GLOO_SOCKET_IFNAME"
    for env in (deployment.env, *(role.env for role in (deployment.prefill, deployment.decode) if role)):
        value = dict(env).get(name)
        if value is None or not ("^" in value or "," in value or "=" in value):
            continue
        text = f"Gloo takes one interface name, no list and no ^ pattern (got {value!r})"
        own, recipe = (*where, "env", name), ("vllm", "env", name)
        if source.file.holds(own):
            source.problems.add(own, text)
        elif source.file.holds(recipe):
            source.problems.add(recipe, text)
        else:
            source.problems.add((source.profile.name, "env", name), text, file=source.profile_file)


def check_image(source: Source, *, nightly_run: bool) -> None:
    """The image has a usable form, may be used on this profile, and is one that the profile allows."""
    image, profile = source.image, source.profile
    where: KeyPath = ("vllm", "image") if image.source == "recipe" else ("gpu",)
    origin = "" if image.source == "recipe" else f" ({image.source})"
    if profile.runtime == "native" or (profile.runtime == "slurm" and profile.container.runtime == "none"):
        return  # vLLM is installed where it runs; no image is started
    problem = image_problem(image.name)
    if problem is not None:
        source.problems.add(where, f"{problem} (got {image.name!r}){origin}")
    if profile.local_images_only and not is_squashfs(image.name):
        source.problems.add(
            where,
            f"profile {profile.name} allows .sqsh files only, nothing is imported from a registry there "
            f"(got {image.name!r}){origin}; set VLLM_IMAGE or vllm.image to a .sqsh path",
        )
    if not image_allowed(image.name, profile.allowed_images):
        error = source.model.nightly or nightly_run
        source.problems.foreign_image(where, image.name, profile, origin, error=error)


def check_server_command(source: Source, num_nodes: int) -> None:
    """A site's own server command must not be the module that ignores ``--headless``."""
    command = source.profile.slurm.server_command
    if command and num_nodes > 1 and "api_server" in command:
        source.problems.add(
            ("gpu",),
            f"profile {source.profile.name} starts {command!r}, which ignores --headless: each follower of "
            f"{num_nodes} nodes would act as a head (vllm#36875); use `vllm serve`",
        )


def check_time_limits(source: Source) -> None:
    """Deadlines that are written down fit the job's time limit and the recipe's own timeout."""
    own = source.model.deadlines.model_dump(exclude={"queue"})
    phases = {phase: value for phase, value in own.items() if value is not None}
    profile_key: KeyPath = (source.profile.name, "deadlines")
    for phase in ("image", "load", "ready", "bench", "teardown"):
        if source.profile_file.holds((*profile_key, phase)):
            phases.setdefault(phase, getattr(source.profile.deadlines, phase))
    if not phases:
        return
    total = sum(phases.values())
    spelled = " + ".join(f"{phase} {value:g} s" for phase, value in phases.items())
    where: KeyPath = ("deadlines",) if source.file.holds(("deadlines",)) else ("gpu",)
    limit = source.profile.slurm.time
    seconds = time_seconds(limit) if limit is not None and source.profile.runtime == "slurm" else None
    if seconds is not None and total > seconds:
        source.problems.add(
            where,
            f"{spelled} = {total:g} s do not fit the job's time limit of {limit} ({seconds:g} s); raise "
            f"slurm.time of profile {source.profile.name} or lower the deadlines",
        )
    minutes = source.model.timeout_in_minutes
    if minutes is not None and total > minutes * 60:
        source.problems.add(
            where, f"{spelled} = {total:g} s do not fit timeout_in_minutes {minutes:g} ({minutes * 60:g} s)"
        )


def load_problem(load: Load, max_len: int | None) -> str | None:
    """Why the load cannot be what it says: too few prompts for its concurrency, or longer than the model."""
    if load.concurrency is not None and load.num_prompts < load.concurrency:
        return (
            f"{load.num_prompts} prompts can never be {load.concurrency} in flight "
            f"(num_prompts {load.num_prompts}, concurrency {load.concurrency})"
        )
    if max_len is None or load.isl is None or load.osl is None:
        return None
    longest = load.isl + load.osl
    spread = ""
    if load.random_range_ratio:
        longest = int((load.isl + load.osl) * (1 + load.random_range_ratio))
        spread = f" with random_range_ratio {load.random_range_ratio:g}: up to {longest}"
    if longest > max_len:
        return f"input {load.isl} + output {load.osl} tokens{spread} exceed --max-model-len {max_len}"
    return None
