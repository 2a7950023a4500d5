"""The field cases as data, and small recipes that carry their inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.plan.launch import Site
from pytest_gpubench.plan.slurm import SlurmPlan, plan_slurm
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.types import Deployment, Point, Recipe

REPOSITORY = Path(__file__).resolve().parents[2]
_ENTRIES = yaml.safe_load((REPOSITORY / "tests/data/field_cases.yaml").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in _ENTRIES}
"""Id -> the entry, in the order of the file."""

PROFILES = """
SITE:
  platform: gb300
  runtime: slurm
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00"}
  container: {runtime: pyxis}
"""
SPACE = "search_space: [{isl: 32, osl: 16, points: [{conc: 4}]}]\n"


def workload(case: str) -> dict[str, Any]:
    """The entry's workload, parsed; its key names are placeholders for ours."""
    found: dict[str, Any] = yaml.safe_load(CASES[case]["input"]["workload"])
    return found


def scalars(case: str) -> dict[str, str]:
    """Key -> value of the one-line mappings of the entry's workload, as they are written."""
    return dict(re.findall(r"(\w+): ([^,{}\s]+)", CASES[case]["input"]["workload"]))


def bench_json(case: str) -> dict[str, Any]:
    """The entry's result file."""
    found: dict[str, Any] = yaml.safe_load(CASES[case]["input"]["bench_json"])
    return found


def environment(case: str) -> dict[str, str]:
    """The entry's environment."""
    return {name: str(value) for name, value in CASES[case]["input"]["env"].items()}


def recipe_text(
    serve: str = "", *, nodes: int = 1, gpus: int = 4, model: str = "org/tiny", rest: str = SPACE
) -> str:
    """A recipe of the profile SITE; ``serve`` is what follows the model in its ``vllm`` block."""
    vllm = f"{{model: {model}{', ' if serve else ''}{serve}}}"
    return f"gpu: SITE\nnum_nodes: {nodes}\ngpus_per_node: {gpus}\nvllm: {vllm}\n{rest}"


class Recipes:
    """A folder for one recipe and its profiles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, text: str, profiles: str = PROFILES, env: Mapping[str, str] | None = None) -> Recipe:
        """The recipe that the text gives."""
        (self.folder / "gpu_profiles.yaml").write_text(dedent(profiles), encoding="utf-8")
        path = self.folder / "case.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return load_recipe(path, LoadContext(env=env or {}))

    def point(self, text: str, profiles: str = PROFILES) -> Point:
        """Its only point."""
        (point,) = self.load(text, profiles).points
        return point

    def problems(self, text: str, profiles: str = PROFILES) -> list[str]:
        """What is wrong with it; the files' names without their folder."""
        with pytest.raises(RecipeError) as caught:
            self.load(text, profiles)
        return [problem.replace(f"{self.folder}/", "") for problem in caught.value.problems]


def plan_of(deployment: Deployment, *, pyxis: bool = True, env: Mapping[str, str] | None = None) -> SlurmPlan:
    """Its plan on a site that has nothing special."""
    site = Site("/shared/results/case/d", "/shared", "gpubench-case-1-1-1", env or {}, pyxis=pyxis)
    return plan_slurm(deployment, site)


def value_of(argv: Any, name: str) -> str:
    """The element after ``name``."""
    found: str = argv[list(argv).index(name) + 1]
    return found
