"""Load a recipe: from a file to frozen points, or to one error with everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpubench.recipe.checks import check_image, check_server_command, check_time_limits
from pytest_gpubench.recipe.expand import expand
from pytest_gpubench.recipe.images import is_nightly, resolve_image
from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.recipe.pd_serving import apply_serving
from pytest_gpubench.recipe.problems import Problems, validate
from pytest_gpubench.recipe.profiles import find_profiles, load_profile, with_recipe_env
from pytest_gpubench.recipe.source import Source
from pytest_gpubench.recipe.types import Recipe
from pytest_gpubench.recipe.yaml import load_yaml

__all__ = ["LoadContext", "load_recipe"]


@dataclass(frozen=True)
class LoadContext:
    """What a recipe's meaning depends on outside its file.

    ``env``: of it only ``VLLM_IMAGE``, ``VLLM_COMMIT`` and ``NIGHTLY`` are read, and what the mounts of a
    ``serving`` block name. ``profiles``: the profile file used when none lies beside the recipe or in
    ``../lib``.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    profiles: Path | None = None


def load_recipe(path: Path, context: LoadContext) -> Recipe:
    """Read a recipe and its profile. Pure but for reading the two files: no clock, no environment.

    Raises RecipeError with every problem that was found, each with its file, line, column and key.
    """
    file = load_yaml(path)
    if not isinstance(file.value, dict):
        raise file.error((), "expected a mapping of keys at the top of the file")
    model = validate(RecipeModel, file, file.value)
    problems = Problems(file)
    profile, profile_file = load_profile(find_profiles(path, context.profiles), model.gpu, problems)
    profile = with_recipe_env(profile, model.vllm.env or {}, problems)
    model, profile = apply_serving(model, profile, context.env, problems)
    model = _with_startup(model, problems)
    problems.finish()
    image = resolve_image(context.env, model.vllm.image, profile.image_repo)
    source = Source(path.stem, file, model, profile, profile_file, image, problems)
    check_image(source, nightly_run=is_nightly(context.env))
    check_time_limits(source)
    points = expand(source)
    check_server_command(source, max(point.num_nodes for point in points))
    problems.finish()
    return Recipe(
        stem=path.stem,
        name=model.name or path.stem,
        path=str(path),
        sha256=file.sha256,
        profile=profile,
        points=tuple(points),
        nightly=model.nightly,
        timeout_minutes=model.timeout_in_minutes,
        warnings=tuple(dict.fromkeys(problems.warnings)),
        foreign_images=tuple(problems.foreign_images),
        source=file.value,
    )


def _with_startup(model: RecipeModel, problems: Problems) -> RecipeModel:
    """perf-eval's ``startup_timeout`` is the load deadline, where the recipe has none of its own."""
    vllm = model.vllm
    if vllm.startup_timeout is not None and vllm.startup_timeout_s is not None:
        problems.add(("vllm", "startup_timeout_s"), "startup_timeout says the same; keep one", key=True)
    seconds = vllm.startup_timeout if vllm.startup_timeout is not None else vllm.startup_timeout_s
    if seconds is None or model.deadlines.load is not None:
        return model
    return model.model_copy(update={"deadlines": model.deadlines.model_copy(update={"load": seconds})})
