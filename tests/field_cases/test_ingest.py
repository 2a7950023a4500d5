"""Per-GPU figures divide by the GPUs that the recipe asked for, and say so."""

from __future__ import annotations

import json

import pytest
from results.points import RUN, outcome_of, raw_of

from pytest_gpubench.cli.row import run as gpubench_row
from pytest_gpubench.results.row import build_row

from .cases import Recipes, bench_json, recipe_text

LOAD = "search_space: [{isl: 600, osl: 200, points: [{conc: 100, num_prompts: 100}]}]\n"
PROFILES = "SITE: {platform: h200, slurm: {exclusive: true}, container: {runtime: pyxis}}\n"
ROLES = "deployment: {prefill: {workers: 1, tp: 4}, decode: {workers: 2, tp: 4}}\n"
RECIPES = {
    "A": recipe_text("serve_args: -tp 8", nodes=2, rest=LOAD),
    "B": recipe_text("serve_args: -tp 1 -dp 8", gpus=8, rest=LOAD),
    "C": recipe_text("serve_args: -tp 4", gpus=8, rest=LOAD),
    "D": recipe_text("", nodes=3, rest=ROLES + LOAD),
}


@pytest.mark.parametrize(
    ("name", "allocated", "serving", "total", "output"),
    [
        ("A", 8, 8, 1000.0, 250.0),
        ("B", 8, 8, 1000.0, 250.0),
        ("C", 8, 4, 1000.0, 250.0),
        ("D", 12, 12, 8000 / 12, 250.0),
    ],
)
def test_fc_48_figures_divide_by_the_gpus_of_the_recipe(
    recipes: Recipes, name: str, allocated: int, serving: int, total: float, output: float
) -> None:
    point = recipes.point(RECIPES[name], PROFILES)
    row = build_row(point, outcome_of(bench_json("FC-48")), RUN)
    assert (row["status"], row["gpu_count"], row["serving_gpu_count"]) == ("passed", allocated, serving)
    assert row["tput_per_gpu"] == pytest.approx(total, rel=1e-12)
    assert row["output_tput_per_gpu"] == pytest.approx(output, rel=1e-12)
    basis, divisors = ("roles", [12, 8, 4]) if name == "D" else ("allocated", [allocated] * 3)
    assert row["per_gpu_basis"] == basis
    assert row["per_gpu_divisors"] == dict(zip(("total", "output", "input"), divisors, strict=True))
    if name == "C":
        # Per GPU that works it would be 2000: the row has that count, too.
        assert 8000.0 / serving == 2000.0
    if name == "D":
        assert (row["num_prefill_gpu"], row["num_decode_gpu"]) == (4, 8)
        assert row["input_tput_per_gpu"] == 6000.0 / 4


def test_fc_48_no_variable_decides_the_divisor(
    recipes: Recipes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "NUM_GPUS", "TP", "GPU_COUNT"):
        monkeypatch.setenv(name, "1")
    point = recipes.point(RECIPES["A"], PROFILES)
    raw = recipes.folder / "raw.json"
    raw.write_text(json.dumps(bench_json("FC-48")))
    recipe = str(recipes.folder / "case.yaml")
    assert gpubench_row(["--recipe", recipe, "--point", point.id, "--raw", str(raw)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["gpu_count"], row["tput_per_gpu"]) == (8, 1000.0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "gpus_per_node: 8",
            "gpus_per_node: 0",
            "gpus_per_node: input should be greater than or equal to 1 (got 0)",
        ),
        ("gpus_per_node: 8", "num_gpus: 0", "num_gpus: input should be greater than or equal to 1 (got 0)"),
        ("gpus_per_node: 8", "gpus_per_node: 8\nnum_gpus: 4", "num_gpus: contradicts the allocation"),
        (
            LOAD,
            f"vllm_bench: {{metadata: {{gpu_count: 4}}}}\n{LOAD}",
            "gpu_count: contradicts the allocation",
        ),
        (
            LOAD,
            f"vllm_bench: {{metadata: {{gpu_count: 0}}}}\n{LOAD}",
            "gpu_count: input should be greater than or equal to 1 (got 0)",
        ),
    ],
)
def test_fc_48_a_divisor_that_cannot_be_is_an_error(recipes: Recipes, old: str, new: str, words: str) -> None:
    problems = recipes.problems(RECIPES["B"].replace(old, new), PROFILES)
    assert any(words in problem for problem in problems), problems


def test_fc_48_the_rates_are_those_of_the_file() -> None:
    raw = raw_of(bench_json("FC-48"))
    assert raw.total_throughput == 8000.0
