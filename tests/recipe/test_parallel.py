from __future__ import annotations

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.recipe.parallel import (
    find_option,
    has_option,
    launcher_owned,
    max_model_len,
    parallel_id,
    parallel_of,
    without_sizes,
)
from pytest_gpubench.recipe.types import Parallel


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Parallel()),
        ("--tensor-parallel-size 2 --data-parallel-size 4", Parallel(tp=2, dp=4)),
        ("--tensor-parallel-size=2 --data_parallel_size=4", Parallel(tp=2, dp=4)),
        ("-tp 2 -dp=4 -pp 3", Parallel(tp=2, dp=4, pp=3)),
        ("--tp 2 --dp=2", Parallel(tp=2, dp=2)),
        ("-tp 2 --tensor-parallel-size 8", Parallel(tp=8)),
        ("--tensor-parallel 4 --pipeline 2", Parallel(tp=4, pp=2)),  # argparse takes beginnings
        ("-tp 2 -dp 4 --enable-expert-parallel", Parallel(tp=2, dp=4, ep=8)),
        ("-tp 2 -ep", Parallel(tp=2, ep=2)),
        ("-tp 2 --enable_expert_parallel", Parallel(tp=2, ep=2)),
        ("-tp 2 -ep --no-enable-expert-parallel", Parallel(tp=2)),
        ("-tp 4 --prefill-context-parallel-size 2 -dcp 2", Parallel(tp=4, pcp=2, dcp=2)),
        ("--data-parallel-size-local 4 --data-parallel-rpc-port 5", Parallel()),
        ("--block-size -1 -tp 2", Parallel(tp=2)),
    ],
)
def test_every_spelling(text: str, expected: Parallel) -> None:
    assert parallel_of(text.split()) == expected


@pytest.mark.parametrize("text", ["-tp x", "-tp 0", "-tp -2", "-tp", "-tp=", "--data-parallel-size 1.5"])
def test_sizes_that_are_none(text: str) -> None:
    if text == "-tp":
        assert parallel_of(["-tp"]) == Parallel()  # nothing follows: vLLM itself will refuse it
        return
    with pytest.raises(ValueError, match="expected a number from 1"):
        parallel_of(text.split())


def test_finding_and_removing() -> None:
    arguments = ["--a", "1", "-tp", "2", "--enable-expert-parallel", "--a=3", "-dp=4", "--b"]
    assert find_option(arguments, "a") == "3"
    assert find_option(arguments, "c") is None
    assert has_option(arguments, "b")
    assert not has_option(arguments, "no-b")
    assert without_sizes(arguments, ("tp", "dp", "ep")) == ["--a", "1", "--a=3", "--b"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("--max-model-len 32768", 32768),
        ("--max_model_len=32k", 32000),
        ("--max-model-len 32K", 32768),
        ("--max-model-len 1.5k", 1500),
        ("--max-model-len auto", None),
        ("--max-model-len -1", None),
        ("", None),
    ],
)
def test_model_length(text: str, tokens: int | None) -> None:
    assert max_model_len(text.split()) == tokens


@pytest.mark.parametrize("word", ["much", "1.5", "", "32kk"])
def test_model_length_that_is_none(word: str) -> None:
    with pytest.raises(ValueError, match="max-model-len"):
        max_model_len(["--max-model-len", word])


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--nnodes", "--nnodes"),
        ("--nnodes=2", "--nnodes"),
        ("--nn", "--nnodes"),
        ("-n", "--nnodes"),
        ("-n4", "--nnodes"),
        ("-n=4", "--nnodes"),
        ("-r", "--node-rank"),
        ("--node-rank=1", "--node-rank"),
        ("--node_rank", "--node-rank"),
        ("--node", "--node-rank"),
        ("--master-addr=10.0.0.9", "--master-addr"),
        ("--master_port", "--master-port"),
        ("--headless", "--headless"),
        ("--head", "--headless"),
        ("--host", "--host"),
        ("--port=8000", "--port"),
        ("--por", "--port"),
    ],
)
def test_flags_of_the_launcher(word: str, flag: str) -> None:
    assert launcher_owned([word], 1) == [f"{word!r} sets {flag}"]


@pytest.mark.parametrize(
    "word",
    [
        "--no-enable-log-requests",
        "--pooler-config",
        "--hf-token",
        "-np",
        "--n",
        "--max-model-len",
        "4",
        "-tp",
    ],
)
def test_flags_of_the_recipe(word: str) -> None:
    assert launcher_owned([word], 2) == []


@pytest.mark.parametrize(
    ("nodes", "backend", "refused"), [(2, "ray", True), (2, "mp", False), (1, "ray", False)]
)
def test_the_executor_of_several_nodes(nodes: int, backend: str, refused: bool) -> None:
    assert bool(launcher_owned([f"--distributed-executor-backend={backend}"], nodes)) == refused


def test_each_owned_flag_is_listed_with_its_place(folder: Folder) -> None:
    text = "gpu: GB300_SLURM\nnum_nodes: 2\nvllm:\n  model: a/b\n  serve_args: -tp 8 --node-rank 1 --headless"
    problems = folder.problems(f"{text} --master-addr=10.0.0.9 -n 4\n{BENCH}")
    assert len(problems) == 4
    assert all(
        problem.startswith("recipe.yaml:5:15: vllm.serve_args: the launcher owns") for problem in problems
    )


@pytest.mark.parametrize(
    "load", [BENCH, "search_space: [{isl: 8, osl: 8, points: [{tp: 2, ep: true, conc: 1}]}]"]
)
def test_a_size_that_is_none_has_its_place(folder: Folder, load: str) -> None:
    problem = folder.problem(f"gpu: H200\nvllm: {{model: a/b, serve_args: --data-parallel-size two}}\n{load}")
    assert "recipe.yaml:" in problem
    assert "--data-parallel-size: expected a number from 1 (got 'two')" in problem


def test_a_point_cannot_set_them_either(folder: Folder) -> None:
    text = head() + "search_space: [{isl: 8, osl: 8, points: [{conc: 1, serve_args: --port 8001}]}]"
    assert "search_space[0].points[0]: the launcher owns this: '--port'" in folder.problem(text)


def test_the_module_that_ignores_headless_is_refused(folder: Folder) -> None:
    profiles = "S: {runtime: slurm, slurm: {server_command: python -m vllm.entrypoints.openai.api_server}}"
    text = f"gpu: S\nnum_nodes: 2\nvllm: {{model: a/b, serve_args: -tp 2}}\n{BENCH}"
    assert "ignores --headless" in folder.problem(text, profiles)
    assert folder.load(text.replace("num_nodes: 2", "num_nodes: 1"), profiles).points


def test_ids() -> None:
    assert parallel_id(Parallel(tp=2, dp=4, ep=8), expert=True) == "tp2-dp4-ep"
    assert parallel_id(Parallel(tp=8, pp=2), expert=False) == "tp8-pp2"
    assert parallel_id(Parallel(tp=1, pcp=2, dcp=4), expert=False) == "tp1-pcp2-dcp4"
