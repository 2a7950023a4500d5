"""Where a model is taken from: a staged path on every node, or the hub. Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from pytest_gpubench.recipe.types import ModelStaging, Pairs

__all__ = ["OFFLINE", "Staged", "stage_model"]

OFFLINE: Pairs = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"))
"""Set for a server whose model must be staged: nothing is downloaded behind our back.

``HF_HOME`` and ``HF_HUB_CACHE`` are left as they are, so the hub cache of evaluation data sets stays usable.
"""


@dataclass(frozen=True)
class Staged:
    """``path`` is what vLLM is given. ``check``: it must exist on every node before vLLM starts."""

    path: str
    check: bool = False
    preferred: bool = False  # use the path where every node has it, else the hub id
    env: Pairs = ()


def stage_model(model: str, scenario: str, staging: ModelStaging) -> Staged:
    """The path of ``model`` under the profile's staging rules.

    Only scenarios that the profile lists are rewritten; a model that is a path already is left alone.
    The explicit ``paths`` win over ``root`` joined with the last part of the id. Raises ValueError when
    staging is required and the profile says nowhere where the model would lie.
    """
    if staging.staged == "off" or scenario not in staging.scenarios or model.startswith(("/", "./", "../")):
        return Staged(model)
    path = dict(staging.paths).get(model)
    if path is None and staging.root is not None:
        path = posixpath.join(staging.root, model.rstrip("/").rsplit("/", 1)[-1])
    if path is None:
        if staging.staged == "required":
            raise ValueError(f"models.staged is required, but models has no root and no path for {model!r}")
        return Staged(model)
    if staging.staged == "required":
        return Staged(path, check=True, env=OFFLINE)
    return Staged(path, preferred=True)
