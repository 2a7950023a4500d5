"""What is odd in the recipes of a run, told in pytest's own summary of warnings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpubench.recipe.types import ForeignImage, Recipe

__all__ = ["GpubenchWarning", "image_warnings", "record_warnings"]


_PLACE = re.compile(r"(/[^:\n]*):(\d+):\d+: (.*)", re.DOTALL)


class GpubenchWarning(pytest.PytestWarning):
    """Something in a recipe or profile that runs, but probably not as meant."""

    __module__ = "pytest_gpubench"


def record_warnings(config: pytest.Config, recipes: Sequence[Recipe]) -> None:
    """Put the warnings of all recipes into the summary.

    They are recorded, not raised: ``-W error`` is for the code under test, and a recipe is none.
    """
    for recipe in recipes:
        for text in recipe.warnings:
            _record(config, text, recipe.path)
    for text in image_warnings(recipes):
        _record(config, text, "")


def image_warnings(recipes: Sequence[Recipe]) -> list[str]:
    """One warning per profile with every recipe, and its line, whose image the profile does not allow."""
    groups: dict[tuple[str, tuple[str, ...]], list[ForeignImage]] = {}
    for recipe in recipes:
        for image in recipe.foreign_images:
            groups.setdefault((image.profile, image.allowed), []).append(image)
    found = []
    for (profile, allowed), images in groups.items():
        many = f"{len(images)} recipes use images" if len(images) > 1 else "a recipe uses an image"
        lines = [f"  {image.place}: {image.image}" for image in images]
        text = f"{many} that profile {profile} does not allow (allowed_images: {', '.join(allowed)}):"
        found.append("\n".join([text, *lines]))
    return found


def _record(config: pytest.Config, text: str, path: str) -> None:
    found = _PLACE.match(text)
    file, line, said = (found[1], int(found[2]), found[3]) if found else (path, 1, text)
    message = warnings.WarningMessage(GpubenchWarning(said), GpubenchWarning, file, line)
    try:
        nodeid = Path(path).relative_to(config.rootpath).as_posix() if path else ""
    except ValueError:
        nodeid = path
    kwargs = {"warning_message": message, "nodeid": nodeid, "when": "collect", "location": None}
    config.hook.pytest_warning_recorded.call_historic(kwargs=kwargs)
