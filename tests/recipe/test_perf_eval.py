"""Every reference recipe of perf-eval, all three revisions, resolves to what its own parser makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recipe_helpers import Folder

from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.types import Point, Recipe

DATA = Path(__file__).parent.parent / "data" / "perf_eval"
FILES = sorted(DATA.glob("*/*.expected.json"))


def expected_of(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def recipe_of(path: Path) -> Recipe:
    stem = path.name.removesuffix(".expected.json")
    return load_recipe(path.parent / f"{stem}.yaml", LoadContext())


def of_kind(recipe: Recipe, kind: str) -> list[Point]:
    return [point for point in recipe.points if point.kind == kind]


def ids(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.expected.json')}"


def test_the_files_are_there() -> None:
    assert len(FILES) == 30
    assert {path.parent.name for path in FILES} == {"main", "gb300-slurm-pyxis", "kimi-k2-5-gb300-slurm"}


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_server(path: Path) -> None:
    expected, recipe = expected_of(path), recipe_of(path)
    assert recipe.name == expected["name"]
    for point in recipe.points:
        deployment = point.deployment
        assert deployment.profile.name == expected["gpu"]
        assert deployment.model == expected["model"]
        assert deployment.model_path == expected["model"]
        assert deployment.image == expected["image"]
        assert deployment.vllm_commit == expected["vllm_commit"]
        assert deployment.runtime == expected["server_runtime"]
        assert list(deployment.serve_args) == expected["serve_args"]
        assert dict(deployment.env) == expected["env"]
        if expected["num_nodes"] is not None:
            assert deployment.num_nodes == expected["num_nodes"]
            assert deployment.gpus_per_node == expected["gpus_per_node"]


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_loads(path: Path) -> None:
    expected, points = expected_of(path), of_kind(recipe_of(path), "serving")
    assert len(points) == len(expected["bench"])
    for point, bench in zip(points, expected["bench"], strict=True):
        load = point.load
        assert load is not None
        assert load.name == bench["name"]
        assert point.id == f"{point.deployment.id}-{bench['name']}"
        assert (load.backend, load.dataset) == (bench["backend"], bench["dataset"])
        assert (load.isl, load.osl) == (bench["isl"], bench["osl"])
        assert (load.concurrency, load.num_prompts) == (bench["conc"], bench["num_prompts"])
        assert load.repetitions == (bench["repetitions"] or 1)
        assert load.speed_bench_dataset_subset == bench["speed_bench_dataset_subset"]
        assert load.speed_bench_category == bench["speed_bench_category"]
        args = {name: str(value) for name, value in (bench["args"] or {}).items()}
        assert dict(load.args) == args
        assert load.num_warmups == (bench["args"] or {}).get("num-warmups")


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_labels_and_divisor(path: Path) -> None:
    """Device, precision and tp as every revision has them; the others as the gb300 revision has them."""
    expected, recipe = expected_of(path), recipe_of(path)
    metadata = expected["bench_metadata"]
    gb300 = path.parent.name == "gb300-slurm-pyxis"
    for point in recipe.points:
        labels = point.labels
        assert (labels.device, labels.precision, labels.tp) == (
            metadata["device"],
            metadata["precision"],
            metadata["tp"],
        )
        if gb300:
            assert (labels.dp, labels.ep) == (metadata["dp"], metadata["ep"])
            assert labels.is_multinode == metadata["is_multinode"]
            assert labels.dp_attention == metadata["dp_attention"]
            assert labels.disagg == metadata["disagg"]
            assert labels.spec_decoding == str(metadata["spec_decoding"]).lower()
            assert point.deployment.gpu_count == metadata["gpu_count"]
        # The divisor is the file's num_gpus; main's TP x DP differs where GPUs are idle, and the row says so.
        assert point.deployment.gpu_count == recipe.source["num_gpus"]
        upstream = point.deployment.parallel.tp * point.deployment.parallel.dp
        assert (labels.note is not None) == (upstream != point.deployment.gpu_count)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_accuracy(path: Path) -> None:
    expected, points = expected_of(path), of_kind(recipe_of(path), "accuracy")
    if expected["bench_only"]:
        assert points == []
        return
    tasks = [point.task for point in points if point.task and point.task.harness == "lm_eval"]
    assert [(task.name, task.num_fewshot, task.model_args) for task in tasks] == [
        (task["name"], task["num_fewshot"], task["model_args"]) for task in expected["lm_eval_tasks"]
    ]
    categories = [point.task for point in points if point.task and point.task.harness == "bfcl"]
    assert [task.name for task in categories] == [item["category"] for item in expected["bfcl"]]
    for task, item in zip(categories, expected["bfcl"], strict=True):
        options = dict(task.options)
        for name in ("num_threads", "temperature", "maximum_step_limit", "max_test_cases"):
            assert options.get(name) == (None if item[name] is None else str(item[name]))
    for point in points:
        assert "accuracy" in point.markers
        assert point.load is None


def test_ids_of_the_reference_recipes() -> None:
    recipe = recipe_of(DATA / "main" / "qwen3_5_mi355x.expected.json")
    assert [point.id for point in recipe.points] == [
        "tp8-ep-8k-in-1k-out-conc-1",
        "tp8-ep-8k-in-1k-out-conc-128",
        "tp8-ep-gsm8k",
    ]
    recipe = recipe_of(DATA / "gb300-slurm-pyxis" / "kimi_k2_5_h200.expected.json")
    assert "tp8-bfcl-multi_turn" in [point.id for point in recipe.points]


def test_a_task_without_model_args(folder: Folder) -> None:
    text = "gpu: H200\nvllm: {model: a/b}\nlm_eval: {tasks: [{name: gsm8k}]}"
    task = folder.point(text).task
    assert task is not None
    assert (task.num_fewshot, task.model_args) == (0, "")


SHIPPED = Path(__file__).parent.parent.parent / "workloads"


def test_the_shipped_gb300_recipe_is_upstreams() -> None:
    own = load_recipe(SHIPPED / "deepseek_v4_flash_gb300_slurm.yaml", LoadContext())
    theirs = recipe_of(DATA / "gb300-slurm-pyxis" / "deepseek_v4_flash_gb300_slurm.expected.json")
    assert [point.id for point in own.points] == [point.id for point in theirs.points]
    mine, other = own.points[0].deployment, theirs.points[0].deployment
    assert mine.serve_args == other.serve_args
    assert own.points[0].labels == theirs.points[0].labels
    assert own.points[0].load == theirs.points[0].load
    assert (mine.num_nodes, mine.gpus_per_node, mine.gpu_count) == (2, 4, 8)
    assert mine.profile.slurm == other.profile.slurm
    assert mine.profile.container == other.profile.container
    launcher = {name: value for name, value in other.env if not name.startswith("PERF_EVAL_")}
    assert dict(mine.env) == launcher
    assert own.warnings == ()


@pytest.mark.parametrize(("stem", "nodes", "gpus"), [("tiny_opt_1node", 1, 4), ("tiny_opt_2node", 2, 8)])
def test_the_shipped_tiny_recipes(stem: str, nodes: int, gpus: int) -> None:
    recipe = load_recipe(SHIPPED / f"{stem}.yaml", LoadContext())
    (point,) = recipe.points
    assert point.load is not None
    assert (point.load.isl, point.load.osl, point.load.num_prompts, point.load.concurrency) == (32, 16, 4, 4)
    assert (point.deployment.num_nodes, point.deployment.gpu_count) == (nodes, gpus)
    assert point.deployment.serving_gpu_count == nodes
