"""InferenceX config keys -> recipes: one per key, as if each were a recipe file of its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.images import (
    image_allowed,
    image_problem,
    is_nightly,
    is_squashfs,
    resolve_image,
)
from pytest_gpubench.recipe.inferencex.expand import Filters, expand_entry
from pytest_gpubench.recipe.inferencex.points import Resolved, build_points, duplicates
from pytest_gpubench.recipe.inferencex.read import read_entry, read_master, read_runners, select_keys
from pytest_gpubench.recipe.inferencex.schema import Entry, RunnersFile
from pytest_gpubench.recipe.inferencex.serving import why_not_servable
from pytest_gpubench.recipe.inferencex.site import SiteProfile, fitted_profile, site_profile
from pytest_gpubench.recipe.inferencex.topology import topology_of
from pytest_gpubench.recipe.problems import Problems
from pytest_gpubench.recipe.profiles import PLATFORMS, find_profiles
from pytest_gpubench.recipe.staging import Staged, stage_model
from pytest_gpubench.recipe.types import ClientSettings, Deployment, Labels, Pairs, Profile, Recipe
from pytest_gpubench.recipe.yaml import KeyPath, YamlFile, load_yaml

if TYPE_CHECKING:
    from pytest_gpubench.recipe.load import LoadContext

__all__ = ["MasterFile", "load_inferencex", "recipe_of", "stem_of"]


def load_inferencex(
    config: Path, runners: Path | None, keys: Sequence[str], context: LoadContext
) -> list[Recipe]:
    """The recipes of every config key that one of ``keys`` (``*`` and ``?`` select) matches.

    ``runners`` is ``runners.yaml``: without it GPUs per node come from the entry and from what its
    platform usually has. Raises OptionError for a pattern without a match, RecipeError with all problems
    of all selected entries.
    """
    master = MasterFile.open(config, runners, context)
    recipes: list[Recipe] = []
    problems: list[str] = []
    for key in master.select(keys):
        try:
            recipes.append(master.recipe(key))
        except RecipeError as error:
            problems += error.problems
    if problems:
        raise RecipeError(list(dict.fromkeys(problems)))
    return recipes


def stem_of(key: str) -> str:
    """The config key as a recipe stem: ``[A-Za-z0-9._-]``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", key)


@dataclass(frozen=True)
class MasterFile:
    """An open master file; its entries are read one by one, so that a wrong one does not stop another."""

    file: YamlFile
    runners: RunnersFile | None
    profiles: YamlFile | None
    env: Mapping[str, str]

    @classmethod
    def open(cls, config: Path, runners: Path | None, context: LoadContext) -> MasterFile:
        """Read the files; profiles are looked for beside the master file as for any recipe."""
        return cls(
            read_master(config),
            read_runners(runners) if runners is not None else None,
            _profiles(config, context.profiles),
            context.env,
        )

    def select(self, patterns: Sequence[str]) -> list[str]:
        """The config keys that match, in the file's order; OptionError for a pattern without a match."""
        return select_keys(self.file, patterns)

    def recipe(self, key: str) -> Recipe:
        """One config key as a recipe; RecipeError with every problem of the entry."""
        return recipe_of(self.file, key, self.runners, self.profiles, self.env)


def _profiles(config: Path, fallback: Path | None) -> YamlFile | None:
    try:
        path = find_profiles(config, fallback)
    except RecipeError:
        return None  # none beside the file: runner labels get generic profiles, with a warning
    return load_yaml(path)


def recipe_of(
    file: YamlFile,
    key: str,
    runners: RunnersFile | None,
    profiles: YamlFile | None,
    env: Mapping[str, str],
) -> Recipe:
    """One config key as a recipe; raises RecipeError with every problem of the entry."""
    entry = read_entry(file, key)
    problems = Problems(file)
    site = site_profile(entry.runner, profiles)
    if site.generic is not None:
        problems.warn((key, "runner"), site.generic)
    if runners is not None and entry.runner not in runners.labels and entry.runner not in runners.hardware:
        problems.warn((key, "runner"), f"the runners file has no label {entry.runner!r}")
    for text in entry.warnings:
        problems.warn((key,), text)
    resolved = _resolved(file, key, entry, runners, site, problems)
    problems.finish()
    template = cache(partial(_template, key, entry, site, env, problems))
    points = build_points(resolved, template, _markers)
    for first, again in duplicates(points):
        problems.add(
            (key,),
            f"point {again.id} is written twice, in lines {first.line} and {again.line}",
            key=True,
        )
    problems.finish()
    return Recipe(
        stem=stem_of(key),
        name=key,
        path=file.path,
        sha256=_digest(key, file.value[key]),
        profile=site.profile,
        points=tuple(points),
        warnings=tuple(dict.fromkeys(problems.warnings)),
        foreign_images=tuple(dict.fromkeys(problems.foreign_images)),
        source={key: file.value[key]},
    )


def _digest(key: str, data: object) -> str:
    """Of the entry alone: editing a neighbour does not make this key's results stale."""
    return hashlib.sha256(json.dumps({key: data}, sort_keys=True).encode()).hexdigest()


def _resolved(
    file: YamlFile,
    key: str,
    entry: Entry,
    runners: RunnersFile | None,
    site: SiteProfile,
    problems: Problems,
) -> list[Resolved]:
    found = []
    fixed = ("seq-len-configs",) if entry.seq_len_configs is not None else ("scenarios", "fixed-seq-len")
    for generated in expand_entry(entry, Filters(), runners):
        scenario, index, number = generated.source
        base = fixed if scenario == "fixed-seq-len" else ("scenarios", scenario)
        where: KeyPath = (key, *base, index, "search-space", number)
        topology = topology_of(generated, runners)
        for text in topology.problems:
            problems.add(where, text)
        unservable = why_not_servable(generated, topology, ClientSettings(), site.profile)
        if unservable is None and not topology.problems:
            try:
                fitted_profile(site.profile, topology.num_nodes, topology.gpus_per_node)
            except ValueError as error:
                problems.add(where, str(error))
        found.append(Resolved(generated, topology, file.at(where).line))
    return found


def _template(
    key: str,
    entry: Entry,
    site: SiteProfile,
    env: Mapping[str, str],
    problems: Problems,
    scenario: str,
) -> Deployment:
    """The deployment of a scenario without its topology: image, staged model, environment."""
    profile = site.profile
    staged = _staged(key, entry, profile, scenario, problems)
    name, commit = entry.image, None
    if entry.framework == "vllm":
        # Only vLLM's own images may be exchanged: VLLM_IMAGE says nothing about another engine's.
        image = resolve_image(env, entry.image, profile.image_repo)
        name, commit = image.name, image.commit
    _check_image(key, name, profile, problems, nightly=is_nightly(env))
    return Deployment(
        recipe=stem_of(key),
        id="",
        model=entry.model,
        model_path=entry.model if staged.preferred else staged.path,
        image=name,
        vllm_commit=commit,
        profile=profile,
        runtime=profile.runtime,
        env=_environment(profile, staged),
        deadlines=profile.deadlines,
        check_model_path=staged.check,
        preferred_path=staged.path if staged.preferred else None,
    )


def _staged(key: str, entry: Entry, profile: Profile, scenario: str, problems: Problems) -> Staged:
    try:
        return stage_model(entry.model, scenario, profile.models)
    except ValueError as error:
        problems.add((key, "model"), f"{error} (profile {profile.name})")
        return Staged(entry.model)


def _check_image(key: str, image: str, profile: Profile, problems: Problems, *, nightly: bool) -> None:
    where: KeyPath = (key, "image")
    problem = image_problem(image)
    if problem is not None:
        problems.add(where, f"{problem} (got {image!r})")
    if profile.local_images_only and not is_squashfs(image):
        problems.add(where, f"profile {profile.name} allows .sqsh files only (got {image!r})")
    if not image_allowed(image, profile.allowed_images):
        problems.foreign_image(where, image, profile, error=nightly)


def _environment(profile: Profile, staged: Staged) -> Pairs:
    env = dict(profile.env)
    if profile.hf_home:
        env.setdefault("HF_HOME", profile.hf_home)
    return tuple((env | dict(staged.env)).items())


def _markers(deployment: Deployment, labels: Labels) -> tuple[str, ...]:
    platform = deployment.profile.platform
    names = ["gpubench", *([platform] if platform in PLATFORMS else []), deployment.runtime]
    names += ["multinode"] if deployment.num_nodes > 1 else []
    names += ["disagg"] if labels.disagg else []
    names += ["agentic"] if deployment.scenario == "agentic-coding" else []
    return tuple(names)
