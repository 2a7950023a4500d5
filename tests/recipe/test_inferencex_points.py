"""Matrix entries become points: nodes, GPUs, true parallel sizes, loads, gates, stable ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferencex_helpers import REAL, RUNNERS, WORKER, agentic, case, multi, parse, single, write_master

from pytest_gpubench.recipe.inferencex import load_inferencex
from pytest_gpubench.recipe.inferencex.expand import expand_entry
from pytest_gpubench.recipe.inferencex.points import Resolved, build_points, duplicates
from pytest_gpubench.recipe.inferencex.topology import inferencex_block, parse_settings, sizes, topology_of
from pytest_gpubench.recipe.load import LoadContext
from pytest_gpubench.recipe.types import ClientSettings, Deployment, Parallel, Point, Profile


def points_of(folder: Path, raw: dict[str, Any], client: ClientSettings | None = None) -> list[Point]:
    generated = expand_entry(parse(folder, raw), None, RUNNERS)
    template = Deployment(
        recipe="key",
        id="",
        model="org/model",
        model_path="org/model",
        image=None,
        vllm_commit=None,
        profile=Profile("B300", "b300"),
        runtime="slurm",
        client=client or ClientSettings(),
    )
    resolved = [Resolved(entry, topology_of(entry, RUNNERS)) for entry in generated]
    assert [problem for item in resolved for problem in item.topology.problems] == []
    return build_points(resolved, lambda _: template, lambda *_: ("gpubench",))


def problems_of(folder: Path, raw: dict[str, Any]) -> list[str]:
    generated = expand_entry(parse(folder, raw), None, RUNNERS)
    return [problem for entry in generated for problem in topology_of(entry, RUNNERS).problems]


@pytest.mark.parametrize("item", REAL, ids=lambda item: str(item["id"]))
def test_one_point_per_topology_and_concurrency(item: dict[str, Any], tmp_path: Path) -> None:
    points = points_of(tmp_path, item["entry"])
    assert len(points) == item["concurrency_points"]
    assert len({point.id for point in points}) == len(points)
    assert duplicates(points) == []
    concurrencies = [expected["conc"] for expected in item["expected_points"]]
    flat = [conc for value in concurrencies for conc in (value if isinstance(value, list) else [value])]
    assert [point.load.concurrency for point in points if point.load] == flat


def test_three_prefill_and_one_decode_worker_of_dep8(tmp_path: Path) -> None:
    """tp 1, ep 8 with dp-attn is eight data-parallel ranks: two nodes of four GPUs per worker."""
    (point,) = points_of(tmp_path, case("IX-01")["entry"])
    deployment = point.deployment
    assert (deployment.num_nodes, deployment.gpus_per_node, deployment.gpu_count) == (8, 4, 32)
    assert deployment.prefill is not None
    assert deployment.decode is not None
    assert (deployment.prefill.workers, deployment.prefill.nodes, deployment.prefill.gpus) == (3, 6, 24)
    assert (deployment.decode.workers, deployment.decode.nodes, deployment.decode.gpus) == (1, 2, 8)
    assert deployment.prefill.parallel == Parallel(tp=1, dp=8, ep=8)
    assert deployment.serving_gpu_count == 32
    assert point.gates.max_failure_rate == 0.5
    assert point.load is not None
    assert (point.load.num_prompts, point.load.num_warmups) == (3 * 4096, 2 * 4096)
    assert point.load.random_range_ratio == 0.0
    assert point.labels.note is None
    assert (point.labels.disagg, point.labels.dp_attention, point.labels.is_multinode) == (True, True, True)
    assert not deployment.servable
    assert "llm-d-vllm" in (deployment.unservable_reason or "")
    assert point.id == "p3x1ep8dpa-d1x1ep8dpa-8k1k-conc4096"


def test_the_blocks_keep_inferencex_keys(tmp_path: Path) -> None:
    entry = case("IX-01")["entry"]
    (point,) = points_of(tmp_path, entry)
    written = entry["scenarios"]["fixed-seq-len"][0]["search-space"][0]
    assert point.deployment.prefill is not None
    assert point.deployment.decode is not None
    defaults = {"pp": 1, "dcp-size": 1, "pcp-size": 1}
    assert inferencex_block(point.deployment.prefill) == {**written["prefill"], **defaults}
    assert inferencex_block(point.deployment.decode) == {**written["decode"], **defaults}


def test_decode_without_workers_is_aggregated_even_when_the_entry_says_disagg(tmp_path: Path) -> None:
    points = points_of(tmp_path, case("IX-06")["entry"])
    first, second = points[0], points[1]
    assert (first.deployment.num_nodes, first.deployment.gpu_count, first.labels.disagg) == (2, 8, False)
    assert first.deployment.serving_gpu_count == 8
    assert (second.deployment.num_nodes, second.deployment.gpu_count, second.labels.disagg) == (10, 40, True)
    assert [point.id for point in points[:3]] == [
        "p1x8-d0x8-mtp-8k1k-conc1",
        "p1x8ep8dpa-d4x8-mtp-8k1k-conc16",
        "p1x8ep8dpa-d4x8-mtp-8k1k-conc32",
    ]


def test_a_single_node_vllm_entry_is_served_with_the_flags_its_sizes_stand_for(tmp_path: Path) -> None:
    points = points_of(tmp_path, case("IX-07")["entry"])
    by_id = {point.id: point for point in points}
    plain, spread = by_id["tp4-8k1k-conc1"], by_id["tp4-ep4-dpa-8k1k-conc256"]
    assert plain.deployment.servable
    assert plain.deployment.serve_args == ("--tensor-parallel-size", "4", "--max-model-len", "9472")
    assert spread.deployment.serve_args == (
        *("--tensor-parallel-size", "1", "--data-parallel-size", "4"),
        *("--enable-expert-parallel", "--max-model-len", "9472"),
    )
    assert (plain.deployment.gpu_count, spread.deployment.gpu_count) == (4, 4)
    assert (spread.labels.tp, spread.labels.dp, spread.labels.ep) == (4, 4, 4)
    assert plain.load is not None
    assert (plain.load.num_prompts, plain.load.num_warmups, plain.load.seed) == (10, 2, None)
    assert plain.gates.max_failure_rate == 0.0
    assert len({point.deployment for point in points}) == 4


def test_lengths_stay_inside_the_context_and_the_row_says_so(tmp_path: Path) -> None:
    """vLLM's range ratio spreads upwards too: 0.8 of 8192 + 1024 would exceed --max-model-len 9472."""
    (point,) = points_of(tmp_path, single({"tp": 8, "conc-list": [1]}))
    assert point.load is not None
    assert point.load.random_range_ratio == 0.0
    assert point.labels.note == "lengths are exactly isl and osl, InferenceX draws them from 0.8 to 1 times"


def test_aggregated_vllm_over_nodes_is_served_but_not_behind_a_router(tmp_path: Path) -> None:
    idle = {**WORKER, "num-worker": 0}
    raw = multi({"conc-list": [4], "prefill": {**WORKER, "pp": 2}, "decode": idle}, disagg=False)
    (point,) = points_of(tmp_path, raw)
    assert point.deployment.servable
    assert (point.deployment.num_nodes, point.deployment.gpus_per_node) == (2, 8)
    assert point.deployment.parallel == Parallel(tp=1, pp=2, dp=8, ep=8)
    raw = multi({"conc-list": [4], "prefill": {**WORKER, "num-worker": 2}, "decode": idle}, disagg=False)
    (point,) = points_of(tmp_path, raw)
    assert "2 aggregated workers need a router" in (point.deployment.unservable_reason or "")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (single({"tp": 8, "conc-list": [1]}, framework="sglang"), "framework sglang is not served here"),
        (single({"tp": 8, "conc-list": [1]}, framework="dynamo-vllm"), "brings its own router"),
        (single({"tp": 8, "conc-list": [1], "spec-decoding": "mtp"}), "give --speculative-config"),
        (single({"tp": 8, "ep": 2, "conc-list": [1]}), "experts over all 8 ranks, not over 2"),
        (multi({"conc-list": [1]}), "disaggregated InferenceX entries"),
        (agentic({"tp": 8, "kv-offloading": "none", "conc-list": [1]}), "give a command client"),
    ],
    ids=["framework", "vllm-based", "speculation", "partial-ep", "disagg", "agentic"],
)
def test_what_cannot_be_served_is_collected_with_its_reason(
    raw: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (point,) = points_of(tmp_path, raw)
    assert not point.deployment.servable
    assert reason in (point.deployment.unservable_reason or "")
    assert point.deployment.framework == raw["framework"]


def test_agentic_points_are_served_when_a_command_client_is_given(tmp_path: Path) -> None:
    raw = agentic({"tp": 8, "kv-offloading": "none", "conc-list": [1]})
    (point,) = points_of(tmp_path, raw, ClientSettings(kind="command", command="replay {base_url}"))
    assert point.deployment.servable
    assert point.deployment.serve_args == ("--tensor-parallel-size", "8")


def test_agentic_ids_are_upstreams_names_told_apart_where_those_coincide(tmp_path: Path) -> None:
    plain = {"tp": 8, "kv-offloading": "none", "conc-list": [4, 16]}
    ids = [point.id for point in points_of(tmp_path, agentic(plain, {**plain, "ep": 8}))]
    assert ids == [
        "ex_tp8_conc4_kvnone",
        "ex_tp8_conc16_kvnone",
        "ex_tp8_conc4_kvnone-ep8",
        "ex_tp8_conc16_kvnone-ep8",
    ]


def test_same_sizes_with_other_settings_are_other_deployments_named_after_their_recipe(
    tmp_path: Path,
) -> None:
    def with_recipe(name: str, *conc: int) -> dict[str, Any]:
        return {
            "conc-list": list(conc),
            "prefill": {**WORKER, "additional-settings": [f"CONFIG_FILE=a/b/{name}.yaml"]},
        }

    points = points_of(tmp_path, multi(with_recipe("low", 1), with_recipe("high", 1, 2)))
    assert [point.id for point in points] == [
        "p1x8ep8dpa-d1x8ep8dpa-low-8k1k-conc1",
        "p1x8ep8dpa-d1x8ep8dpa-high-8k1k-conc1",
        "p1x8ep8dpa-d1x8ep8dpa-high-8k1k-conc2",
    ]
    assert points[1].deployment == points[2].deployment != points[0].deployment


def test_settings_without_a_recipe_file_are_told_apart_by_a_stable_mark(tmp_path: Path) -> None:
    def with_size(size: int) -> dict[str, Any]:
        return {"conc-list": [1], "decode": {**WORKER, "additional-settings": [f"DECODE_MTP_SIZE={size}"]}}

    ids = [point.id for point in points_of(tmp_path, multi(with_size(1), with_size(2)))]
    swapped = [point.id for point in points_of(tmp_path, multi(with_size(2), with_size(1)))]
    assert len(set(ids)) == 2
    assert swapped == ids[::-1]


def test_the_same_deployment_and_load_written_twice_is_found(tmp_path: Path) -> None:
    points = points_of(
        tmp_path, single({"tp": 8, "conc-list": [1, 4]}, {"tp": 8, "conc-start": 4, "conc-end": 8})
    )
    assert [(first.id, again.id) for first, again in duplicates(points)] == [("tp8-8k1k-conc4",) * 2]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["PREFILL_NODES"], "must be NAME=VALUE (got 'PREFILL_NODES')"),
        (["A-B=1"], "must be NAME=VALUE (got 'A-B=1')"),
        (["ARGS=--a --b"], "ARGS: blanks split the exported value in two"),
        (["PREFILL_NODES=2", "PREFILL_NODES=3"], "PREFILL_NODES is set twice, to '2' and to '3'"),
        (["PREFILL_NODES=two"], "PREFILL_NODES must be a whole number above 0 (got 'two')"),
        (["GPUS_PER_NODE=0"], "GPUS_PER_NODE must be a whole number above 0 (got '0')"),
        (["MAX_FAILURE_RATE=1.5"], "MAX_FAILURE_RATE must be a number from 0 to 1 (got '1.5')"),
        (["MAX_FAILURE_RATE=nan"], "MAX_FAILURE_RATE must be a number from 0 to 1 (got 'nan')"),
        (["BENCH_NUM_PROMPTS_MULTIPLIER=0.5"], "BENCH_NUM_PROMPTS_MULTIPLIER must be 1 or more"),
    ],
)
def test_settings_that_upstream_would_export_wrongly_are_refused(settings: list[str], problem: str) -> None:
    assert any(problem in text for text in parse_settings(settings)[1])


@pytest.mark.parametrize(
    ("point", "problem"),
    [
        (
            {"prefill": {**WORKER, "additional-settings": ["PREFILL_WORKERS=3"]}},
            "num-worker is 1, but PREFILL_WORKERS=3",
        ),
        (
            {"prefill": {**WORKER, "num-worker": 2, "additional-settings": ["PREFILL_NODES=1"]}},
            "prefill: 2 x 8 GPUs do not fit 1 nodes x 8 GPUs",
        ),
        (
            {
                "prefill": {**WORKER, "additional-settings": ["GPUS_PER_NODE=4"]},
                "decode": {**WORKER, "additional-settings": ["GPUS_PER_NODE=8"]},
            },
            "GPUS_PER_NODE is '4' for prefill and '8' for decode",
        ),
    ],
    ids=["workers", "nodes", "contradiction"],
)
def test_settings_that_contradict_the_topology_are_problems(
    point: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    assert any(problem in text for text in problems_of(tmp_path, multi({"conc-list": [1], **point})))


def test_a_single_node_entry_must_fit_its_node(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, single({"tp": 8, "conc-list": [1]}, runner="cluster:gb200-nv"))
    assert problem == "needs 8 GPUs on one node, but a node of cluster:gb200-nv has 4"


def test_prompts_follow_the_multiplier_with_sixteen_at_least(tmp_path: Path) -> None:
    workers = {"prefill": {**WORKER, "additional-settings": ["BENCH_NUM_PROMPTS_MULTIPLIER=3"]}}
    points = points_of(tmp_path, multi({"conc-list": [4, 100], **workers}))
    assert [point.load.num_prompts for point in points if point.load] == [16, 300]


def test_gpus_that_are_allocated_but_do_not_serve_are_noted(tmp_path: Path) -> None:
    small = {"num-worker": 1, "tp": 2, "ep": 1, "dp-attn": False}
    raw = multi({"conc-list": [1], "prefill": small, "decode": small}, runner="gb300")
    (point,) = points_of(tmp_path, raw)
    assert (point.deployment.gpu_count, point.deployment.serving_gpu_count) == (8, 4)
    assert (point.labels.note or "").startswith("4 of the 8 allocated GPUs serve")


def test_data_parallel_attention_runs_over_the_whole_expert_group() -> None:
    assert sizes(8, 8, True) == sizes(1, 8, True) == Parallel(tp=1, dp=8, ep=8)
    assert sizes(4, 16, True) == Parallel(tp=4, dp=4, ep=16)
    assert sizes(6, 8, True).world_size == 8
    assert sizes(8, 1, False, pp=2, pcp=2, dcp=4) == Parallel(tp=8, pp=2, ep=1, pcp=2, dcp=4)


def test_a_sites_launcher_may_serve_any_framework(tmp_path: Path) -> None:
    profiles = "B300-NV: {runtime: slurm, slurm: {launcher: site/launch}}\n"
    (tmp_path / "gpu_profiles.yaml").write_text(profiles, encoding="utf-8")
    config = write_master(tmp_path, key=multi({"conc-list": [64]}, framework="dynamo-vllm"))
    (recipe,) = load_inferencex(config, None, ["key"], LoadContext())
    deployment = recipe.points[0].deployment
    assert (deployment.framework, deployment.servable, deployment.num_nodes) == ("dynamo-vllm", True, 2)
    (tmp_path / "gpu_profiles.yaml").write_text("B300-NV: {runtime: slurm}\n", encoding="utf-8")
    (recipe,) = load_inferencex(config, None, ["key"], LoadContext())
    assert "dynamo-vllm" in (recipe.points[0].deployment.unservable_reason or "")


def test_a_point_of_srt_slurm_is_skipped_with_its_recipe(tmp_path: Path) -> None:
    (point,) = points_of(tmp_path, single({"tp": 8, "conc-list": [4], "srt-recipe": "srt/8k1k.yaml:base"}))
    assert point.deployment.servable is False
    assert "srt/8k1k.yaml:base" in (point.deployment.unservable_reason or "")
    assert dict(point.deployment.extra)["srt-recipe"] == '"srt/8k1k.yaml:base"'


def test_hardware_of_the_whole_entry_is_that_of_its_roles(tmp_path: Path) -> None:
    entry = multi({"conc-list": [4]}, hardware={"prefill": "b200", "decode": "h100"})
    (point,) = points_of(tmp_path, entry)
    assert point.deployment.prefill is not None
    assert point.deployment.decode is not None
    assert dict(point.deployment.prefill.extra)["hardware"] == '"b200"'
    assert dict(point.deployment.decode.extra)["hardware"] == '"h100"'
