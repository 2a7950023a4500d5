"""A runner label -> the profile of the site that stands for it, asking for as many GPUs as a point uses."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pytest_gpubench.recipe.inferencex.schema import CLUSTER_PREFIX
from pytest_gpubench.recipe.inferencex.topology import family
from pytest_gpubench.recipe.problems import near
from pytest_gpubench.recipe.profiles import profile_of
from pytest_gpubench.recipe.slurm_forms import gres_gpus
from pytest_gpubench.recipe.types import Profile
from pytest_gpubench.recipe.yaml import YamlFile

__all__ = ["RUNNERS_KEY", "SiteProfile", "fitted_profile", "site_profile"]

RUNNERS_KEY = "runners"
"""The table in gpu_profiles.yaml that names the profile of a runner label: ``{cluster:b300-nv: B300}``."""


@dataclass(frozen=True)
class SiteProfile:
    """A profile, and why it is only a generic one made from the label (None when the site has one)."""

    profile: Profile
    generic: str | None = None


def site_profile(label: str, profiles: YamlFile | None) -> SiteProfile:
    """The profile of the ``runners:`` table, else the one named like the label, else a generic one.

    Upper and lower case do not differ, and ``cluster:`` may be left out. Raises RecipeError for a table
    that names no profile, and for a profile that is wrong.
    """
    if profiles is None or not isinstance(profiles.value, dict):
        return _generic(label, "there is no gpu_profiles.yaml")
    names = {name.lower(): name for name in profiles.value if name != RUNNERS_KEY}
    table = profiles.value.get(RUNNERS_KEY)
    if table is not None:
        mapped = _from_table(label, table, profiles, names)
        if mapped is not None:
            return SiteProfile(profile_of(profiles, mapped))
    for wanted in _spellings(label):
        if wanted in names:
            return SiteProfile(profile_of(profiles, names[wanted]))
    return _generic(label, f"{profiles.path} has no profile of that name and no {RUNNERS_KEY} entry for it")


def _spellings(label: str) -> tuple[str, str]:
    return label.lower(), label.removeprefix(CLUSTER_PREFIX).lower()


def _from_table(label: str, table: object, profiles: YamlFile, names: dict[str, str]) -> str | None:
    where = (RUNNERS_KEY,)
    if not isinstance(table, dict):
        raise profiles.error(where, "expected a mapping of runner labels to profile names")
    for key, name in table.items():
        if key.lower() not in _spellings(label):
            continue
        if not isinstance(name, str) or name.lower() not in names:
            hint = near(str(name), names.values())
            raise profiles.error((*where, key), f"no profile of this name in the file (got {name!r}){hint}")
        return names[name.lower()]
    return None


def _generic(label: str, why: str) -> SiteProfile:
    name = label.removeprefix(CLUSTER_PREFIX)
    profile = Profile(name=name, platform=family(label))
    return SiteProfile(profile, f"runner {label}: {why}; a generic profile stands in, without site settings")


def fitted_profile(profile: Profile, num_nodes: int, gpus_per_node: int) -> Profile:
    """The profile with a gres of ``gpus_per_node``: single-node points of InferenceX use part of a node.

    Raises ValueError when the site's nodes have fewer GPUs, or others than a multi-node entry counts on.
    """
    gres = profile.slurm.gres
    has = gres_gpus(gres) if gres is not None and profile.runtime == "slurm" else None
    if gres is None or has is None or has == gpus_per_node:
        return profile
    if has < gpus_per_node or num_nodes > 1:
        raise ValueError(
            f"uses {gpus_per_node} GPUs per node, but profile {profile.name} asks for {has} (gres {gres})"
        )
    counted = re.sub(r"(gpu(?::[^,:(]+)?):\d+", rf"\g<1>:{gpus_per_node}", gres, count=1)
    return replace(profile, slurm=replace(profile.slurm, gres=counted))
