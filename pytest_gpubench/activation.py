"""Set a run up: which recipes, which run id, which Slurm; then register the active hooks."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench import fixtures
from pytest_gpubench.collect import RecipeCatalog, Source
from pytest_gpubench.errors import OptionError, RecipeError
from pytest_gpubench.hooks import ActiveHooks
from pytest_gpubench.mock import MockCluster, Partition
from pytest_gpubench.options import Options, rootdir_moved
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.select import select_recipes
from pytest_gpubench.recipe.types import Recipe
from pytest_gpubench.results.compare import load_baseline
from pytest_gpubench.results.ingest import IngestSettings
from pytest_gpubench.results.provenance import make_run_id
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.session import SESSION, RunIdentity, Session

__all__ = ["activate", "recipe_arguments"]


def activate(config: pytest.Config, options: Options) -> None:
    """Make the session of this process and register what a run needs; raises OptionError."""
    # What is wrong with these is a usage error, not a surprise at the end.
    IngestSettings.from_env(os.environ)
    if options.compare is not None:
        load_baseline(options.compare)
    context = LoadContext(env=os.environ, profiles=options.profiles)
    if options.inferencex is not None:
        sources, load = _inferencex(config, options, context)
    else:
        sources = [Source(path) for path in _select(config, options)]

        def load(source: Source) -> Recipe:
            return load_recipe(source.path, context)

    catalog = RecipeCatalog(load, smoke_only=options.smoke)
    worker_input: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    cluster: MockCluster | None = None
    if worker_input is not None:
        identity = RunIdentity(**json.loads(worker_input["gpubench"]))
    else:
        env = dict(os.environ)
        if options.mock and not config.option.collectonly and not options.dry_run:
            cluster = _mock_cluster(sources, catalog)
            env = {**env, **cluster.env()}
        identity = RunIdentity(make_run_id(env, time.time()), _attempt(env), "", env)
    interrupts = Interrupts()
    config.add_cleanup(interrupts.install())
    session = Session(
        options,
        catalog,
        identity,
        checkout=_checkout(config),
        narrator=Narrator(),
        interrupts=interrupts,
    )
    config.stash[SESSION] = session
    config.pluginmanager.register(fixtures, "gpubench-fixtures")
    config.pluginmanager.register(ActiveHooks(config, session, sources, cluster), "gpubench-active")


def _inferencex(
    config: pytest.Config, options: Options, context: LoadContext
) -> tuple[list[Source], Callable[[Source], Recipe]]:
    """The selected keys of a master file, and what loads one of them."""
    from pytest_gpubench.recipe.inferencex import MasterFile

    assert options.inferencex is not None
    path = options.inferencex
    keys = options.workloads or _keys_of_node_ids(config, path)
    if not keys:
        raise OptionError("--gpubench-inferencex needs --workload KEY: the keys to run, `*` and `?` allowed")
    master = MasterFile.open(path, options.runners, context)
    sources = [Source(path, key) for key in master.select(keys)]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(path)]

    def load(source: Source) -> Recipe:
        assert source.key is not None
        return master.recipe(source.key)

    return sources, load


def _keys_of_node_ids(config: pytest.Config, path: Path) -> list[str]:
    """The keys that node ids on the command line name: ``<file>::<key>::test_serving[...]``."""
    base = config.invocation_params.dir
    split = [argument.split("::") for argument in config.args]
    named = [parts[1] for parts in split if len(parts) > 1 and Path(os.path.abspath(base / parts[0])) == path]
    return list(dict.fromkeys(named))


def recipe_arguments(arguments: list[str], base: Path) -> list[Path]:
    """The recipe files that are named on the command line, node ids included."""
    files = [Path(os.path.abspath(base / argument.split("::", 1)[0])) for argument in arguments]
    return [path for path in dict.fromkeys(files) if path.suffix in {".yaml", ".yml"} and path.is_file()]


def _select(config: pytest.Config, options: Options) -> list[Path]:
    """The recipes of this run; the command line's arguments are made to reach them."""
    base = config.invocation_params.dir
    named = recipe_arguments(config.args, base)
    if not options.workloads or (named and options.workloads_from == "WORKLOADS"):
        return named
    found = select_recipes(options.workloads, options.folders, base, options.workloads_from)
    paths = [Path(os.path.abspath(path)) for path in found]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # `pytest --workload X` runs X and nothing else; testpaths are for the project's own tests.
        config.args[:] = [str(path) for path in paths]
    else:
        given = [Path(os.path.abspath(base / argument.split("::", 1)[0])) for argument in config.args]
        for path in paths:
            if not any(path == entry or entry in path.parents for entry in given):
                config.args.append(str(path))
    return list(dict.fromkeys([*named, *paths]))


def _checkout(config: pytest.Config) -> Path:
    """The project's folder. pytest's rootdir is none when it took an option's value for a path."""
    return config.invocation_params.dir if rootdir_moved(config) else config.rootpath


def _attempt(env: Mapping[str, str]) -> int:
    """CI's count of this job's tries, from 1."""
    retries = env.get("BUILDKITE_RETRY_COUNT", "")
    attempt = env.get("GITHUB_RUN_ATTEMPT", "")
    return int(retries) + 1 if retries.isdigit() else int(attempt) if attempt.isdigit() else 1


def _mock_cluster(sources: list[Source], catalog: RecipeCatalog) -> MockCluster:
    """A mocked cluster on which every selected recipe fits."""
    recipes: list[Recipe] = []
    for source in sources:
        try:
            recipes.append(catalog.get(source))
        except RecipeError:
            continue  # shown at collection
    nodes = max((point.num_nodes for recipe in recipes for point in recipe.points), default=1) + 1
    platform = recipes[0].profile.platform if recipes else "gpu"
    profiles = [recipe.profile for recipe in recipes]
    gres: dict[str, int] = {}
    for profile in profiles:
        kind, count = _gres(profile.slurm.gres)
        gres[kind] = max(gres.get(kind, 0), count)
    partitions = list(
        dict.fromkeys(profile.slurm.partition for profile in profiles if profile.slurm.partition)
    )
    folder = Path(tempfile.mkdtemp(prefix="gpubench-mock-"))
    cluster = MockCluster(
        folder,
        nodes=tuple(f"{platform}-{number:02d}" for number in range(1, nodes + 1)),
        gres=gres or {"gpu": 8},
        partitions={name: Partition() for name in partitions} or None,
    )
    return cluster


def _gres(text: str | None) -> tuple[str, int]:
    """``gpu:b300:4`` -> (``gpu:b300``, 4)."""
    if text is None:
        return "gpu", 8
    kind, _, count = text.split("(", 1)[0].split(",", 1)[0].rpartition(":")
    return (kind, int(count)) if count.isdigit() and kind else (text, 8)
