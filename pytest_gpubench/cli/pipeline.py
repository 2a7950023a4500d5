"""``gpubench pipeline``: a Buildkite pipeline on stdout, for ``buildkite-agent pipeline upload``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE
from pytest_gpubench.cli.pipeline_steps import PipelineOptions, make_pipeline
from pytest_gpubench.errors import OptionError, RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.select import recipe_files, select_recipes, split_names
from pytest_gpubench.recipe.types import Recipe

__all__ = ["parser", "run"]

_TRUE = {"1", "true", "yes", "on"}
NOTHING_SELECTED = 5
"""pytest's own code for it."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench pipeline``."""
    defaults = PipelineOptions()
    made = argparse.ArgumentParser(
        prog="gpubench pipeline",
        usage="gpubench pipeline [options] [RECIPE...] [-- PYTEST-ARGUMENT...]",
        description="Write a Buildkite pipeline: one step per recipe on its profile's queue, then, whatever "
        "happened, a reap per queue. A step is repeated only when its agent went away or when `gpubench ci` "
        f"ends with {EXIT_INFRASTRUCTURE}: only the infrastructure failed.",
    )
    made.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="stem, name, path or glob, as --workload has it; default: $WORKLOADS, else every recipe of the "
        "workloads folder",
    )
    made.add_argument(
        "--nightly",
        action="store_true",
        help="a nightly run: sets NIGHTLY=1 in the steps and, unless recipes are named, takes only those "
        "with `nightly: true` (also with NIGHTLY=1 in the environment)",
    )
    made.add_argument(
        "--workloads", type=Path, default=Path("workloads"), metavar="DIR", help="default: workloads"
    )
    made.add_argument(
        "--profiles", type=Path, metavar="FILE", help="for recipes without profiles beside them"
    )
    made.add_argument(
        "--results",
        default=defaults.results,
        metavar="DIR",
        help=f"results folder of the steps; may hold $BUILDKITE_… (default: {defaults.results}). An absolute "
        "path on the shared file system lets the reap step see what another agent started",
    )
    made.add_argument(
        "--retries",
        type=int,
        default=defaults.retries,
        metavar="N",
        help=f"repetitions after infrastructure failures (default: {defaults.retries}; 0: none)",
    )
    made.add_argument("--queue", metavar="NAME", help="queue for profiles that name none")
    made.add_argument(
        "--test-collector", metavar="VERSION", help="also send JUnit to Test Engine by this plugin version"
    )
    return made


def run(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Exit status: 0 the pipeline is printed, 4 bad usage or a broken recipe, 5 no recipe is selected."""
    arguments, extra = _split(argv)
    options = parser().parse_args(arguments)
    environment = os.environ if env is None else env
    base = Path.cwd() if cwd is None else cwd
    nightly = options.nightly or environment.get("NIGHTLY", "").strip().lower() in _TRUE
    try:
        settings = PipelineOptions(
            results=options.results,
            nightly=nightly,
            retries=options.retries,
            queue=options.queue,
            pytest_args=tuple(extra),
            test_collector=options.test_collector,
            build_id=environment.get("BUILDKITE_BUILD_ID"),
        )
        recipes = _recipes(options, environment, base, nightly)
    except (OptionError, RecipeError) as err:
        print(f"gpubench pipeline: {err}", file=sys.stderr)
        return 4
    if not recipes:
        kind = "nightly recipe" if nightly else "recipe"
        print(f"gpubench pipeline: no {kind} in {base / options.workloads}", file=sys.stderr)
        return NOTHING_SELECTED
    for recipe, path in recipes:
        if not (recipe.profile.queue or settings.queue):
            print(
                f"gpubench pipeline: {path}: profile {recipe.profile.name} has no queue: any agent may take "
                "the step; set queue: in the profile or --queue",
                file=sys.stderr,
            )
    sys.stdout.write(
        yaml.safe_dump(make_pipeline(recipes, settings), sort_keys=False, width=10_000, allow_unicode=True)
    )
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, []
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _recipes(
    options: argparse.Namespace, env: Mapping[str, str], base: Path, nightly: bool
) -> list[tuple[Recipe, str]]:
    folder = base / options.workloads
    names = list(options.recipes) or split_names([env.get("WORKLOADS", "")])
    paths = select_recipes(names, [folder], base) if names else recipe_files(folder)
    context = LoadContext(env=env, profiles=options.profiles)
    problems: list[str] = []
    found: list[tuple[Recipe, str]] = []
    for path in paths:
        try:
            recipe = load_recipe(path, context)
        except RecipeError as err:
            problems += err.problems
            continue
        if names or recipe.nightly or not nightly:
            found.append((recipe, _from(base, path)))
    if problems:
        raise RecipeError(problems)
    return found


def _from(base: Path, path: Path) -> str:
    """The path as a step in a fresh checkout can use it."""
    try:
        return path.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        return path.as_posix()
