"""``gpubench doctor``: checks a login node before anything is submitted; says what to put in the profile."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_gpubench.cli.doctor_files import check_image, check_model, check_mounts, check_results
from pytest_gpubench.errors import OptionError, RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.profiles import profile_of
from pytest_gpubench.recipe.select import select_recipes, split_names
from pytest_gpubench.recipe.types import Deployment, Profile, Recipe
from pytest_gpubench.recipe.yaml import load_yaml
from pytest_gpubench.slurm.doctor import (
    Ask,
    Finding,
    Partition,
    check_commands,
    check_controller,
    check_partition,
    check_pyxis,
    check_submission,
)
from pytest_gpubench.slurm.environment import clean_env
from pytest_gpubench.world import Clock, CommandResult, CommandRunner, SystemClock, SystemRunner

__all__ = ["parser", "run"]

COMMAND_TIMEOUT = 30.0
_PROFILE_FILES = ("workloads/gpu_profiles.yaml", "gpu_profiles.yaml", "lib/gpu_profiles.yaml")


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench doctor``."""
    made = argparse.ArgumentParser(
        prog="gpubench doctor",
        description="Check this node: Slurm, partition, GRES, Pyxis, image, model, results folder, clock. "
        "Nothing is submitted or changed. Exit 1 when a check fails.",
    )
    made.add_argument("--profile", metavar="NAME", help="profile of gpu_profiles.yaml to check against")
    made.add_argument(
        "--recipe", action="append", default=[], metavar="NAME", help="recipe to check; as --workload has it"
    )
    made.add_argument(
        "--workloads", type=Path, default=Path("workloads"), metavar="DIR", help="default: workloads"
    )
    made.add_argument(
        "--profiles", type=Path, metavar="FILE", help=f"default: the first of {', '.join(_PROFILE_FILES)}"
    )
    made.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    return made


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    runner: CommandRunner | None = None,
    clock: Clock | None = None,
    cwd: Path | None = None,
) -> int:
    """Exit status: 0 no check failed, 1 one did, 4 bad usage or a broken recipe or profile."""
    options = parser().parse_args(list(argv))
    environment = dict(os.environ if env is None else env)
    base = Path.cwd() if cwd is None else cwd
    try:
        recipes = _recipes(options, environment, base)
        profiles = _profiles(options, recipes, base)
    except (OptionError, RecipeError) as err:
        print(f"gpubench doctor: {err}", file=sys.stderr)
        return 4
    commands = runner or SystemRunner(environment)
    cleaned = clean_env(environment)

    def ask(command: Sequence[str]) -> CommandResult:
        return commands.run(command, timeout=COMMAND_TIMEOUT, env=cleaned)

    failed = False
    for finding in _findings(ask, clock or SystemClock(), profiles, recipes, base / options.results):
        failed |= finding.level == "fail"
        text = " ".join(finding.text.split())  # Slurm's own words may be many lines
        print(f"{finding.level:<5} {finding.topic:<15} {text}", flush=True)
        if finding.advice:
            print(f"{'':<21} -> {finding.advice}", flush=True)
    return 1 if failed else 0


def _findings(
    ask: Ask, clock: Clock, profiles: Sequence[Profile], recipes: Sequence[Recipe], results: Path
) -> Iterator[Finding]:
    if not profiles or any(profile.runtime == "slurm" for profile in profiles):
        commands = check_commands(ask)
        yield from commands
        if all(finding.level != "fail" for finding in commands):
            yield from check_controller(ask, clock)
            yield from _slurm(ask, profiles, recipes)
    for runtime, argv in (("docker", ["docker", "version"]), ("native", ["vllm", "--version"])):
        if any(profile.runtime == runtime for profile in profiles):
            answer = ask(argv)
            said = answer.stdout.strip().splitlines()[:1] if answer.ok else [answer.describe()]
            yield Finding("ok" if answer.ok else "fail", runtime, " ".join(said), "")
    for profile in profiles:
        yield from check_mounts(profile)
    deployments = _deployments(recipes)
    for profile_image in dict.fromkeys((d.profile.name, d.image) for d in deployments):
        deployment = next(d for d in deployments if (d.profile.name, d.image) == profile_image)
        yield check_image(deployment.profile, deployment.image)
    for model in dict.fromkeys(d.model_path for d in deployments):
        yield check_model(next(d for d in deployments if d.model_path == model))
    yield from check_results(ask, clock, results)


def _slurm(ask: Ask, profiles: Sequence[Profile], recipes: Sequence[Recipe]) -> Iterator[Finding]:
    if not profiles:
        findings, partitions = check_partition(ask, None)
        yield from findings
        pyxis = check_pyxis(ask, "auto")
        yield from pyxis
        yield from _suggestion(partitions, pyxis)
    for profile in profiles:
        if profile.runtime != "slurm":
            continue
        nodes = _nodes_needed(profile, recipes)
        findings, _ = check_partition(ask, profile.slurm, num_nodes=nodes)
        yield from findings
        if all(finding.level != "fail" for finding in findings):  # else it only says the same again
            yield check_submission(ask, profile.slurm, num_nodes=nodes)
        yield from check_pyxis(ask, profile.container.runtime)


def _suggestion(partitions: Sequence[Partition], pyxis: Iterable[Finding]) -> Iterator[Finding]:
    """A profile to start from, for a site that has none yet."""
    usable = [partition for partition in partitions if partition.up and partition.gpus]
    if not usable:
        yield Finding("warn", "profile", "no partition with GPUs is visible", "ask the site for access")
        return
    best = max(usable, key=lambda partition: (partition.default, partition.usable))
    has_pyxis = any(finding.topic == "pyxis" and finding.level == "ok" for finding in pyxis)
    yield Finding(
        "ok",
        "profile",
        "to start from:",
        f"{{runtime: slurm, slurm: {{partition: {best.name}, gres: '{best.gpus[0]}', time: '03:00:00'}}, "
        f"container: {{runtime: {'pyxis' if has_pyxis else 'none'}}}}}",
    )


def _nodes_needed(profile: Profile, recipes: Sequence[Recipe]) -> int:
    counts = [d.num_nodes for d in _deployments(recipes) if d.profile.name == profile.name]
    return max(counts, default=1) + (1 if profile.client_node == "extra" else 0)


def _deployments(recipes: Sequence[Recipe]) -> list[Deployment]:
    return list(dict.fromkeys(point.deployment for recipe in recipes for point in recipe.points))


def _recipes(options: argparse.Namespace, env: Mapping[str, str], base: Path) -> list[Recipe]:
    names = split_names(options.recipe)
    paths = select_recipes(names, [base / options.workloads], base) if names else []
    return [load_recipe(path, LoadContext(env=env, profiles=options.profiles)) for path in paths]


def _profiles(options: argparse.Namespace, recipes: Sequence[Recipe], base: Path) -> list[Profile]:
    found = {recipe.profile.name: recipe.profile for recipe in recipes}
    if options.profile is not None and options.profile not in found:
        candidates = [options.profiles] if options.profiles else [base / name for name in _PROFILE_FILES]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            tried = ", ".join(str(candidate) for candidate in candidates)
            raise OptionError(f"--profile {options.profile}: no profile file; looked for {tried}")
        file = load_yaml(path)
        names = list(file.value) if isinstance(file.value, dict) else []
        if options.profile not in names:
            raise OptionError(f"--profile {options.profile}: {path} has {', '.join(names) or 'no profile'}")
        found[options.profile] = profile_of(file, options.profile)
    return list(found.values())
