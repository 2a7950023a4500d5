"""GPU profiles: perf-eval's ``gpu_profiles.yaml`` as it is, and our typed form, as one :class:`Profile`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe import types
from pytest_gpubench.recipe.fields import Count, EnvName, EnvValue, Flag, Seconds, Text, Texts, YamlModel
from pytest_gpubench.recipe.models import DeadlinesModel
from pytest_gpubench.recipe.perf_eval_env import FoldedSettings, fold_settings
from pytest_gpubench.recipe.problems import Problems, near, validate
from pytest_gpubench.recipe.slurm_forms import gres_gpus, mount_problem, time_seconds
from pytest_gpubench.recipe.yaml import KeyPath, YamlFile, load_yaml, written

__all__ = ["PLATFORMS", "ProfileModel", "find_profiles", "load_profile", "profile_of", "with_recipe_env"]

PLATFORMS = ("gb300", "gb200", "b300", "b200", "h200", "h100", "mi300x", "mi325x", "mi355x")
"""Platforms that have a marker of their own."""

RUNTIMES = ("slurm", "docker", "native")


def _slurm_time(value: object) -> object:
    """Slurm's own text; a bare number is minutes, as Slurm has it."""
    text = written(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError("expected a Slurm time such as 03:00:00")
    time_seconds(text)
    return text.strip()


def _off_word(value: object) -> object:
    return {False: "off", "no": "off"}.get(value, value) if isinstance(value, (bool, str)) else value


class SlurmModel(YamlModel):
    """What the site asks of Slurm."""

    partition: Text | None = None
    gres: Text | None = None
    exclusive: Flag = False
    time: Annotated[str, BeforeValidator(_slurm_time)] | None = None
    account: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    segment: Count | None = None
    extra_sbatch_args: Texts = ()
    extra_srun_args: Texts = ()
    mpi: Text | None = None
    reuse_allocation: Flag = False
    max_pending: Seconds | None = None
    server_command: Text | None = None
    launcher: Text | None = None


class ContainerModel(YamlModel):
    """How ranks get their image."""

    runtime: Literal["pyxis", "none", "auto"] = "auto"
    mounts: Texts = ()
    workdir: Text | None = None
    remap_root: Flag = False
    entrypoint: Flag = False


class ProfileClient(YamlModel):
    """Where the benchmark client runs."""

    node: Literal["head", "last", "extra"] = "head"


class ModelsModel(YamlModel):
    """Where models are staged."""

    root: Text | None = None
    staged: Annotated[Literal["required", "preferred", "off"], BeforeValidator(_off_word)] = "off"
    scenarios: Annotated[Texts, Field(min_length=1)] = ("fixed-seq-len",)
    paths: dict[str, Text] = Field(default_factory=dict)


class ProfileModel(YamlModel):
    """One entry of ``gpu_profiles.yaml``: perf-eval's keys and ours."""

    platform: Text | None = None
    runtime: Literal["slurm", "docker", "native"] | None = None
    server_runtime: Literal["slurm", "docker", "native"] | None = None
    queue: Text | None = None
    k8s_plugin: Text | None = None
    hf_home: Text | None = None
    image_repo: Text | None = None
    env: dict[EnvName, EnvValue] | None = None
    slurm: SlurmModel | None = None
    container: ContainerModel | None = None
    client: ProfileClient = ProfileClient()
    models: ModelsModel = ModelsModel()
    allowed_images: Texts = ()
    local_images_only: Flag = False
    deadlines: DeadlinesModel = DeadlinesModel()


def find_profiles(recipe: Path, fallback: Path | None) -> Path:
    """The profile file of a recipe: beside it, else ``../lib/`` as perf-eval has it, else ``fallback``."""
    beside = recipe.parent / "gpu_profiles.yaml"
    perf_eval = recipe.parent.parent / "lib" / "gpu_profiles.yaml"
    for candidate in (beside, perf_eval, fallback):
        if candidate is not None and candidate.is_file():
            return candidate
    tried = ", ".join(str(path) for path in (beside, perf_eval, fallback) if path is not None)
    raise RecipeError(
        f"{recipe}: gpu: no gpu_profiles.yaml found (looked for {tried}); "
        "put one beside the recipe or name one with the ini option gpubench_profiles"
    )


def load_profile(path: Path, name: str, problems: Problems) -> tuple[types.Profile, YamlFile]:
    """The profile ``name`` of the file. ``problems`` belongs to the recipe that asks, for an unknown name."""
    file = load_yaml(path)
    if not isinstance(file.value, dict):
        raise file.error((), "expected a mapping of profiles")
    if name not in file.value:
        names = ", ".join(file.value)
        problems.add(("gpu",), f"{path} has no profile {name!r}{near(name, file.value)} (it has {names})")
        problems.finish()
    return profile_of(file, name), file


def profile_of(file: YamlFile, name: str) -> types.Profile:
    """The entry ``name`` of a parsed profile file. Raises RecipeError with every problem of the entry."""
    data = file.value[name]
    model = validate(ProfileModel, file, {} if data is None else data, (name,))
    problems = Problems(file)
    if model.runtime and model.server_runtime and model.runtime != model.server_runtime:
        problems.add(
            (name, "server_runtime"),
            f"contradicts runtime: {model.runtime} (got {model.server_runtime!r}); keep one of the two",
        )
    folded = fold_settings(model.env or {}, (name, "env"), problems)
    slurm = _slurm(model.slurm, folded)
    container = _container(model.container, folded)
    _check(problems, slurm, container, (name,), (name, "env"))
    problems.finish()
    return types.Profile(
        name=name,
        platform=(model.platform or platform_of(name)).lower(),
        runtime=_runtime(model),
        queue=model.queue,
        hf_home=model.hf_home,
        image_repo=model.image_repo,
        env=tuple((model.env or {}).items()),
        slurm=slurm,
        container=container,
        client_node=model.client.node,
        models=types.ModelStaging(
            model.models.root, model.models.staged, model.models.scenarios, tuple(model.models.paths.items())
        ),
        allowed_images=model.allowed_images,
        local_images_only=model.local_images_only,
        deadlines=deadlines_of(
            types.Deadlines(),
            model.deadlines,
            queue=model.slurm.max_pending if model.slurm else None,
        ),
        sha256=hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest(),
    )


def _runtime(model: ProfileModel) -> str:
    if model.runtime or model.server_runtime:
        return model.runtime or model.server_runtime or "docker"
    return "slurm" if model.slurm is not None else "docker"  # perf-eval's default


def platform_of(name: str) -> str:
    """The platform that a profile's name speaks of: ``GB300_SLURM`` is gb300; else the name itself."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((platform for platform in PLATFORMS if platform in words), name.lower())


def deadlines_of(
    base: types.Deadlines, model: DeadlinesModel, *, queue: float | None = None
) -> types.Deadlines:
    """``base`` with what the file sets; ``queue`` is a profile's ``max_pending``."""
    given: dict[str, Any] = {phase: value for phase, value in model.model_dump().items() if value is not None}
    if queue is not None:
        given.setdefault("queue", queue)
    return replace(base, **given)


def _slurm(model: SlurmModel | None, folded: FoldedSettings) -> types.SlurmSettings:
    own = model.model_dump(exclude={"max_pending"}, exclude_unset=True) if model is not None else {}
    return types.SlurmSettings(**{**folded.slurm, **own})


def _container(model: ContainerModel | None, folded: FoldedSettings) -> types.ContainerSettings:
    own = model.model_dump(exclude_unset=True) if model is not None else {}
    return types.ContainerSettings(**{**folded.container, **own})


def _check(
    problems: Problems,
    slurm: types.SlurmSettings,
    container: types.ContainerSettings,
    base: KeyPath,
    env: KeyPath,
) -> None:
    """Mounts and gres, written below ``base`` or as perf-eval's keys in the environment at ``env``."""
    mounts: KeyPath = (*base, "container", "mounts")
    gres: KeyPath = (*base, "slurm", "gres")
    for index, mount in enumerate(container.mounts):
        problem = mount_problem(mount)
        if problem is not None:
            where = (
                (*mounts, index)
                if problems.file.holds(mounts)
                else (*env, "PERF_EVAL_SLURM_CONTAINER_MOUNTS")
            )
            problems.add(where, f"{problem} (got {mount!r})")
    if container.workdir is not None and not container.workdir.startswith("/"):
        problems.add(
            (*base, "container", "workdir"), f"expected an absolute path (got {container.workdir!r})"
        )
    if slurm.gres is not None:
        where = gres if problems.file.holds(gres) else (*env, "PERF_EVAL_SLURM_GRES")
        try:
            gres_gpus(slurm.gres)
        except ValueError as error:
            problems.add(where, f"{error} (got {slurm.gres!r})")


def with_recipe_env(profile: types.Profile, env: Mapping[str, str], problems: Problems) -> types.Profile:
    """The profile with the launcher's keys of a recipe's own ``vllm.env``, which win as in perf-eval."""
    where: KeyPath = ("vllm", "env")
    folded = fold_settings(env, where, problems)
    if not folded.slurm and not folded.container:
        return profile
    slurm = replace(profile.slurm, **folded.slurm)
    container = replace(profile.container, **folded.container)
    own_container = types.ContainerSettings(**folded.container)
    own_slurm = types.SlurmSettings(gres=folded.slurm.get("gres"))
    _check(problems, own_slurm, own_container, (), where)
    return replace(profile, slurm=slurm, container=container)
