from __future__ import annotations

import re
import time

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.recipe.expand import smoke


def space(points: str, isl: int = 1024, osl: int = 1024, entry: str = "", serve_args: str = "-tp 8") -> str:
    return f"{head(serve_args)}search_space:\n  - {{isl: {isl}, osl: {osl}{entry}, points: [{points}]}}\n"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("conc: 4", [4]),
        ("conc: [1, 16, 64]", [1, 16, 64]),
        ("conc_list: [512, 16]", [512, 16]),
        ("conc_start: 4, conc_end: 64", [4, 8, 16, 32, 64]),
        ("conc_start: 4, conc_end: 100, conc_step: 2", [4, 8, 16, 32, 64, 100]),
        ("conc_start: 4, conc_end: 100, conc_step: 3", [4, 12, 36, 100]),
        ("conc_start: 4, conc_end: 4", [4]),
    ],
)
def test_concurrencies(folder: Folder, keys: str, expected: list[int]) -> None:
    points = folder.load(space(f"{{{keys}}}")).points
    assert [point.load.concurrency for point in points if point.load] == expected
    assert [point.id for point in points] == [f"tp8-1k1k-conc{number}" for number in expected]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("tp: 8", "exactly one of conc, conc_list, and conc_start with conc_end"),
        ("conc: 1, conc_start: 1, conc_end: 2", "exactly one of"),
        ("conc_start: 1", "conc_start and conc_end together"),
        ("conc_start: 8, conc_end: 4", "conc_start 8 is above conc_end 4"),
        ("conc_start: 1, conc_end: 4, conc_step: 1", "greater than or equal to 2"),
        ("conc: []", "expected at least one value"),
        ("conc: 8.0", "expected an integer (got 8.0)"),
        ("conc: [1, x]", "conc[1]: expected an integer (got 'x')"),
    ],
)
def test_concurrencies_that_are_none(folder: Folder, keys: str, words: str) -> None:
    problem = folder.problem(space(f"{{{keys}}}"))
    assert "recipe.yaml:5:" in problem
    assert words in problem


@pytest.mark.parametrize(
    ("isl", "osl", "tag"),
    [(1024, 1024, "1k1k"), (8192, 1024, "8k1k"), (1000, 200, "1000x200"), (1024, 8192, "1024x8192")],
)
def test_lengths_in_ids(folder: Folder, isl: int, osl: int, tag: str) -> None:
    assert folder.ids(space("{conc: 1}", isl, osl)) == [f"tp8-{tag}-conc1"]


@pytest.mark.parametrize(
    ("keys", "deployment", "argv"),
    [
        ("", "tp8", "-tp 8"),
        ("tp: 8", "tp8", "-tp 8"),
        (
            "tp: 2, dp: 4, ep: true",
            "tp2-dp4-ep",
            "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel",
        ),
        (
            "tp: 2, dp: 4, ep: 8",
            "tp2-dp4-ep",
            "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel",
        ),
        ("tp: 4, pp: 2", "tp4-pp2", "--tensor-parallel-size 4 --pipeline-parallel-size 2"),
        ("ep: 1", "tp8", "-tp 8"),
        ("ep: false", "tp8", "-tp 8"),
        ("dcp: 2", "tp8-dcp2", "-tp 8 --decode-context-parallel-size 2"),
    ],
)
def test_sizes_of_a_point(folder: Folder, keys: str, deployment: str, argv: str) -> None:
    point = folder.point(space(f"{{{keys}{', ' if keys else ''}conc: 1}}"))
    assert point.deployment.id == deployment
    assert list(point.deployment.serve_args) == argv.split()
    assert point.deployment.serving_gpu_count == 8


def test_a_point_switches_expert_parallel_off(folder: Folder) -> None:
    point = folder.point(space("{ep: off, conc: 1}", serve_args="-tp 8 --enable-expert-parallel"))
    assert point.deployment.id == "tp8"
    assert point.deployment.parallel.ep == 1


def test_an_expert_size_that_vllm_does_not_have(folder: Folder) -> None:
    assert "all TP x DP = 8 GPUs" in folder.problem(space("{ep: 4, conc: 1}"))


def test_points_that_cannot_run_are_told_apart_from_those_that_can(folder: Folder) -> None:
    text = """
gpu: GB300_SLURM
num_nodes: 2
gpus_per_node: 4
vllm: {model: a/b}
search_space:
  - isl: 32
    osl: 16
    points:
      - {tp: 8, pp: 2, conc: 4, num_prompts: 40}
      - {tp: 4, pp: 1, conc: 4, num_prompts: 40}
      - {tp: 8, pp: 1, conc: 64, num_prompts: 8}
      - {tp: 8, pp: 1, conc: 4, num_prompts: 40}
"""
    recipe = folder.load(text)
    assert {point.id: point.rejected for point in recipe.points} == {
        "tp8-pp2-32x16-conc4": "tp8 x pp2 needs 16 GPUs, but 8 are allocated (2 nodes x 4)",
        "tp4-32x16-conc4": None,
        "tp8-32x16-conc64": "8 prompts can never be 64 in flight (num_prompts 8, concurrency 64)",
        "tp8-32x16-conc4": None,
    }
    assert (recipe.points[0].line, recipe.points[0].column) == (10, 9)
    (warning,) = recipe.warnings
    assert "tp4 uses 4 of 8 GPUs allocated (2 nodes x 4): 4 are idle" in warning


def test_sizes_divide_by_the_nodes(folder: Folder) -> None:
    text = f"gpu: GB300_SLURM\nnum_nodes: 2\nvllm: {{model: a/b, serve_args: -tp 3}}{BENCH}"
    assert "tp3 = 3 GPUs do not divide by 2 nodes" in folder.problem(text)
    (point,) = folder.load(space("{dcp: 3, conc: 1}")).points
    assert point.rejected == "tensor parallel 8 does not divide by decode context parallel 3"


def test_ids_can_be_selected_and_are_safe_paths(folder: Folder) -> None:
    text = """
name: glm-5
gpu: H200
vllm: {model: org/GLM-5.2 (FP8), serve_args: -tp 8}
vllm_bench:
  configs:
    - {name: "a b=c,(d)::e/../f", input_len: 8, output_len: 8, num_prompts: 8, max_concurrency: 8}
"""
    (point_id,) = folder.ids(text)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", point_id)
    assert ".." not in point_id
    assert point_id.startswith("tp8-a-b-c-d-e")


def test_equal_points_are_an_error_that_names_both(folder: Folder) -> None:
    text = f"""{head()}search_space:
  - isl: 32
    osl: 16
    points:
      - {{request_rate: 1, conc: 8}}
      - {{request_rate: 1.0, conc: 8}}
      - {{request_rate: inf, conc: 8}}
"""
    problem = folder.problem(text)
    assert problem.startswith(
        "recipe.yaml:9:9: search_space[0].points[1]: this is the point 'tp8-rate1-32x16-conc8'"
    )
    assert "recipe.yaml:8:9 already gives" in problem
    assert "list each value once" in folder.problem(space("{conc: [1, 4, 1]}"))


def test_names_tell_equal_points_apart(folder: Folder) -> None:
    ids = folder.ids(space("{conc: 8, name: long, num_prompts: 800}, {conc: 8}"))
    assert ids == ["tp8-long-1k1k-conc8", "tp8-1k1k-conc8"]


def test_adding_a_point_renames_nothing(folder: Folder) -> None:
    own = "{tp: 8, conc: 4, serve_args: --block-size 64}"
    before = folder.ids(space(own))
    after = folder.ids(space("{tp: 8, conc: 4}, {tp: 4, conc: 4, env: {A: 1}}, " + own))
    assert before[0] in after
    assert re.fullmatch(r"tp8-x[0-9a-f]{6}-1k1k-conc4", before[0])
    assert len(set(after)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("search_space: []", "recipe.yaml:4:15: search_space: the search space expands to nothing"),
        ("search_space:", "search_space: the search space expands to nothing (got null)"),
        ("search_space: [{isl: 8, osl: 8}]", "search_space[0]: this entry expands to nothing"),
        ("search_space: [{isl: 8, osl: 8, points: []}]", "search_space[0]: this entry expands to nothing"),
        ("vllm_bench: {configs: []}", "the recipe gives no point"),
        ("", "the recipe gives no point"),
        ("bench_only: true\nlm_eval: {tasks: [{name: gsm8k}]}", "the recipe gives no point"),
        ("search_space: [{osl: 8, points: [{conc: 1}]}]", "expected isl and osl together"),
        ("search_space: [{points: [{conc: 1}]}]", "isl and osl are required"),
    ],
)
def test_an_empty_sweep_is_never_a_silent_pass(folder: Folder, text: str, words: str) -> None:
    assert words in folder.problem(head() + text)


def test_prompts(folder: Folder) -> None:
    points = folder.load(
        space("{conc: [1, 16]}, {tp: 4, conc: [1, 2], num_prompts: [7, 9]}", entry=", num_prompts: 32")
    )
    assert [point.load.num_prompts for point in points.points if point.load] == [32, 32, 7, 9]
    points = folder.load(space("{conc: [1, 16]}"))
    assert [point.load.num_prompts for point in points.points if point.load] == [10, 160]
    problem = folder.problem(space("{conc: [1, 2, 3], num_prompts: [8, 9]}"))
    assert "one for each of the 3 concurrencies (got 2)" in problem


def test_lengths_must_fit_the_model(folder: Folder) -> None:
    limit = "-tp 8 --max-model-len 2048"
    assert folder.ids(space("{conc: 1}", 1024, 1024, serve_args=limit))
    (point,) = folder.load(space("{conc: 1}", 2000, 49, serve_args=limit)).points
    assert point.rejected == "input 2000 + output 49 tokens exceed --max-model-len 2048"
    assert folder.ids(space("{conc: 1}", 2000, 49, serve_args="-tp 8 --max-model-len auto"))
    (point,) = folder.load(space("{conc: 1, random_range_ratio: 0.5}", serve_args=limit)).points
    assert "up to 3072" in (point.rejected or "")
    config = (
        "vllm_bench:\n  configs: [{name: a, input_len: 9, output_len: 9, num_prompts: 1, max_concurrency: 2}]"
    )
    assert "1 prompts can never be 2 in flight" in folder.problem(f"{head()}{config}\n")
    search = "\nslo: {ceilings: {p99_ttft: 2.5}}\n"
    points = folder.load(
        space("{conc: 1}, {tp: 4, pp: 4, conc: 2}", 2000, 49, serve_args=limit) + search
    ).points
    assert [(point.kind, (point.rejected or "")[:9]) for point in points] == [
        ("serving", "input 200"),
        ("slo", "input 200"),
        ("serving", "tp4 x pp4"),
        ("slo", "tp4 x pp4"),
    ]
    assert "expected a number of tokens" in folder.problem(space("{conc: 1}", serve_args="--max-model-len x"))


def test_the_entry_gives_what_the_point_does_not(folder: Folder) -> None:
    entry = ", backend: openai-chat, repetitions: 3, seed: 5, cache_hits: true, args: {disable_tqdm: true}"
    first, second = folder.load(space("{conc: 1}, {conc: 2, repetitions: 1}", entry=entry)).points
    assert first.load is not None
    assert second.load is not None
    assert (first.load.backend, first.load.repetitions, first.load.seed) == ("openai-chat", 3, 5)
    assert first.load.measures_cache_hits
    assert first.load.args == (("disable-tqdm", None),)
    assert (second.load.repetitions, second.load.seed) == (1, 5)


def test_recipe_wide_defaults(folder: Folder) -> None:
    point = folder.point(f"{head()}repetitions: 5\nmax_prefix_cache_hit_rate: 50%{BENCH}")
    assert point.load is not None
    assert (point.load.repetitions, point.load.max_prefix_cache_hit_rate) == (5, 0.5)


def test_client_arguments(folder: Folder) -> None:
    args = "{--num_warmups: 128, disable_tqdm: true, foo: false, bar: null, goodput: ['ttft:1', 'tpot:2'], "
    args += "seed: 9, x_y: 0.10}"
    text = head() + BENCH.replace("max_concurrency: 4", f"max_concurrency: 4, args: {args}")
    load = folder.point(text).load
    assert load is not None
    assert load.args == (
        ("num-warmups", "128"),
        ("disable-tqdm", None),
        ("goodput", "ttft:1"),
        ("goodput", "tpot:2"),
        ("x-y", "0.10"),
    )
    assert (load.num_warmups, load.seed) == (128, 9)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("{--max_concurrency: 5}", "--max-concurrency is set from the recipe's own keys"),
        ("{base-url: x}", "--base-url is set"),
        ("{num_warmups: 3, num-warmups: 4}", "--num-warmups is given twice (also as 'num_warmups')"),
        ("{'--': 1}", "is not the name of an option"),
        ("{request_rate: fast}", "args.request_rate: expected a number (got 'fast')"),
        ("{num_warmups: -1}", "args.num_warmups: input should be greater than or equal to 0 (got -1)"),
        ("{random_range_ratio: 2}", "args.random_range_ratio: expected a share from 0 to 1"),
        ("{goodput: [[1]]}", "args.goodput[0]: expected text or a number (got [1])"),
    ],
)
def test_client_arguments_that_are_refused(folder: Folder, args: str, words: str) -> None:
    text = head() + BENCH.replace("max_concurrency: 4", f"max_concurrency: 4, args: {args}")
    problem = folder.problem(text)
    assert "recipe.yaml:7:" in problem
    assert words in problem


def test_the_concurrency_suffix_is_not_repeated(folder: Folder) -> None:
    text = head() + BENCH.replace("name: load", "name: load-conc-4")
    assert folder.ids(text) == ["tp8-load-conc-4"]
    assert folder.ids(text.replace("max_concurrency: 4", "max_concurrency: [4, 8]")) == [
        "tp8-load-conc-4",
        "tp8-load-conc-4-conc-8",
    ]


def test_points_come_deployment_by_deployment(folder: Folder) -> None:
    text = f"""{head()}search_space:
  - {{isl: 32, osl: 16, points: [{{tp: 8, conc: [1, 2]}}, {{tp: 4, conc: 1}}]}}
  - {{isl: 8192, osl: 1024, points: [{{tp: 8, conc: 1}}, {{tp: 4, conc: 1}}]}}
lm_eval: {{tasks: [{{name: gsm8k}}]}}
"""
    assert folder.ids(text) == [
        "tp8-32x16-conc1",
        "tp8-32x16-conc2",
        "tp8-8k1k-conc1",
        "tp8-gsm8k",
        "tp4-32x16-conc1",
        "tp4-8k1k-conc1",
    ]


def test_points_of_one_deployment_share_the_object(folder: Folder) -> None:
    points = folder.load(space("{conc: [1, 2]}, {tp: 8, conc: 4}")).points
    assert len({id(point.deployment) for point in points[:2]}) == 1
    assert points[0].deployment == points[2].deployment


def test_every_point_knows_its_line(folder: Folder) -> None:
    text = head() + "search_space:\n  - isl: 8\n    osl: 8\n    points:\n    - {conc: 1}\n    - {conc: 2}\n"
    assert [point.line for point in folder.load(text).points] == [8, 9]


def test_slo_searches(folder: Folder) -> None:
    text = (
        space("{conc: [1, 64]}")
        + "slo: {ceilings: {p99_ttft: 2.5}, range: [2, 512], floors: {slo_best: 100}}\n"
    )
    points = folder.load(text).points
    assert [point.id for point in points] == ["tp8-1k1k-conc1", "tp8-1k1k-conc64", "tp8-1k1k"]
    slo = points[-1].slo
    assert slo is not None
    assert (points[-1].kind, slo.low, slo.high, slo.ceilings) == ("slo", 2, 512, (("p99_ttft", 2.5),))
    assert "a row has no metric 'p99_tft'" in folder.problem(text.replace("p99_ttft", "p99_tft"))
    assert "3 is above 2" in folder.problem(text.replace("[2, 512]", "[3, 2]"))
    alone = head() + "slo: {isl: 1024, osl: 1024, ceilings: {p99_ttft: 2.5}}"
    assert folder.ids(alone) == ["tp8-1k1k"]
    assert "the recipe measures no load" in folder.problem(head() + "slo: {ceilings: {p99_ttft: 2.5}}")


def test_a_search_at_lengths_that_no_load_has(folder: Folder) -> None:
    text = (
        space("{conc: [1, 64]}") + "slo: [{isl: 32, osl: 16, ceilings: {p99_ttft: 2.5}, num_prompts: 50}]\n"
    )
    point = folder.load(text).points[-1]
    assert (point.id, point.kind, point.load and point.load.num_prompts) == ("tp8-32x16", "slo", 50)


def test_agentic_points_need_no_lengths(folder: Folder) -> None:
    text = f"{head()}scenario: agentic-coding\nsearch_space: [{{dataset: custom, points: [{{conc: 4}}]}}]"
    (point,) = folder.load(text).points
    assert point.id == "tp8-agentic-conc4"
    assert "agentic" in point.markers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (head() + BENCH, ("gpubench", "h200", "docker")),
        (head(gpu="MI355X") + "nightly: true" + BENCH, ("gpubench", "mi355x", "native", "nightly")),
        (
            f"gpu: GB300_SLURM\nnum_nodes: 2\nvllm: {{model: a/b, serve_args: -tp 8}}{BENCH}",
            ("gpubench", "gb300", "slurm", "multinode"),
        ),
    ],
)
def test_markers(folder: Folder, text: str, expected: tuple[str, ...]) -> None:
    assert folder.point(text).markers == expected


def test_smoke_takes_the_shortest_of_each_deployment(folder: Folder) -> None:
    text = f"""{head()}search_space:
  - {{isl: 8192, osl: 1024, points: [{{tp: 8, conc: 1}}, {{tp: 4, conc: [8, 4]}}]}}
  - {{isl: 1024, osl: 1024, points: [{{tp: 8, conc: [16, 4]}}]}}
lm_eval: {{tasks: [{{name: gsm8k}}]}}
"""
    chosen = smoke(folder.load(text).points)
    assert [point.id for point in chosen] == ["tp8-1k1k-conc4", "tp4-8k1k-conc4"]


def test_smoke_of_an_accuracy_recipe(folder: Folder) -> None:
    recipe = folder.load(head() + "lm_eval: {tasks: [{name: gsm8k}, {name: aime25}]}")
    assert [point.id for point in smoke(recipe.points)] == ["tp8-gsm8k"]


def test_backend_sweeps_give_a_deployment_each(folder: Folder) -> None:
    vllm = "{model: a/b, serve_args: -tp 8, attention_backends: [default, TRITON_ATTN]}"
    text = f"gpu: H200\nnum_gpus: 8\nvllm: {vllm}{BENCH}"
    first, second = folder.load(text).points
    assert (first.id, second.id) == ("tp8-attn-default-load-conc-4", "tp8-attn-TRITON_ATTN-load-conc-4")
    assert second.deployment.serve_args[-2:] == ("--attention-backend", "TRITON_ATTN")
    assert first.deployment.serve_args == ("-tp", "8")


def test_backend_sweeps_exclude_each_other(folder: Folder) -> None:
    vllm = "{model: a/b, attention_backends: [A], moe_backends: [B]}"
    assert "moe_backends: cannot be combined" in folder.problem(f"gpu: H200\nvllm: {vllm}{BENCH}")


def test_five_thousand_points_are_quick(folder: Folder) -> None:
    rows = "\n".join(f"      - {{tp: {(4, 8)[n % 2]}, conc: {n + 1}}}" for n in range(5000))
    path = folder.write(f"{head()}search_space:\n  - isl: 32\n    osl: 16\n    points:\n{rows}\n")
    best = 9.0
    for _ in range(3):
        start = time.process_time()  # of this process alone, whatever else the machine does
        recipe = folder.load(path.read_text())
        best = min(best, time.process_time() - start)
    assert len(recipe.points) == 5000
    assert best < 1.0  # about 0.2 s on two idle cores
