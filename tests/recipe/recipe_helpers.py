"""Small recipes for the tests of ``recipe/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.types import Point, Recipe

PROFILES = """
H200: {queue: H200, hf_home: /mnt/hf, env: {VLLM_DEEP_GEMM_WARMUP: skip}}
MI355X: {queue: mi, server_runtime: native, image_repo: vllm/vllm-openai-rocm}
GB300_SLURM:
  platform: gb300
  runtime: slurm
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: 03:00:00}
  container: {runtime: pyxis, mounts: [/home/bench:/nfs_home]}
"""
BENCH = """
vllm_bench:
  configs:
    - {name: load, input_len: 32, output_len: 16, num_prompts: 8, max_concurrency: 4}
"""


def head(serve_args: str = "-tp 8", gpu: str = "H200", num_gpus: int = 8) -> str:
    """The top of a recipe on one node."""
    return f"gpu: {gpu}\nnum_gpus: {num_gpus}\nvllm: {{model: org/Model-FP8, serve_args: '{serve_args}'}}\n"


class Folder:
    """A folder with a recipe and its profiles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str, profiles: str = PROFILES, name: str = "recipe.yaml") -> Path:
        """Write both files; the recipe's path."""
        (self.path / "gpu_profiles.yaml").write_text(dedent(profiles), encoding="utf-8")
        path = self.path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def load(self, text: str, profiles: str = PROFILES, env: Mapping[str, str] | None = None) -> Recipe:
        """The recipe that the text gives."""
        return load_recipe(self.write(text, profiles), LoadContext(env=env or {}))

    def point(self, text: str, profiles: str = PROFILES, env: Mapping[str, str] | None = None) -> Point:
        """The first point of the recipe."""
        return self.load(text, profiles, env).points[0]

    def ids(self, text: str, profiles: str = PROFILES) -> list[str]:
        """The ids of its points."""
        return [point.id for point in self.load(text, profiles).points]

    def problems(
        self, text: str, profiles: str = PROFILES, env: Mapping[str, str] | None = None
    ) -> list[str]:
        """What is wrong with it, file names without their folder."""
        with pytest.raises(RecipeError) as caught:
            self.load(text, profiles, env)
        return [problem.replace(f"{self.path}/", "") for problem in caught.value.problems]

    def problem(self, text: str, profiles: str = PROFILES, env: Mapping[str, str] | None = None) -> str:
        """The one thing that is wrong with it."""
        problems = self.problems(text, profiles, env)
        assert len(problems) == 1, problems
        return problems[0]
