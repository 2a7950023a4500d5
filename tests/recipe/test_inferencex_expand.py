"""Expansion gives what InferenceX's own generator gives: its values are the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferencex_helpers import (
    EXAMPLES,
    REAL,
    RUNNERS,
    WORKER,
    agentic,
    case,
    holds,
    multi,
    parse,
    single,
)
from pydantic import ValidationError

from pytest_gpubench.errors import OptionError
from pytest_gpubench.recipe.inferencex.expand import Filters, expand_entry
from pytest_gpubench.recipe.inferencex.schema import Entry, MultiNodeEntry, SingleNodeEntry


def by_upstream_rules(entry: dict[str, Any]) -> Entry:
    """Only what upstream's own validator checks: some of its examples could never be served."""
    return (MultiNodeEntry if entry["multinode"] else SingleNodeEntry).model_validate(entry)


def filters_of(args: list[str]) -> Filters:
    options: dict[str, Any] = {}
    names = [index for index, arg in enumerate(args) if arg.startswith("--")]
    for start, end in zip(names, [*names[1:], len(args)], strict=False):
        values = tuple(int(value) for value in args[start + 1 : end])
        name = args[start].removeprefix("--").replace("-", "_")
        options[name] = values if name == "conc" else values[0] if values else True
    return Filters(**options)


def example_entry(item: dict[str, Any]) -> dict[str, Any]:
    space = [dict(point) for point in item["search_space"]]
    if item["mode"] == "single":
        return single(*space, isl=item["isl"], osl=item["osl"])
    if item["mode"] == "multi":
        return multi(*space, isl=item["isl"], osl=item["osl"])
    if item["mode"] == "agentic":
        return agentic(*space)
    workers = {"prefill": WORKER, "decode": {**WORKER, "num-worker": 0}}
    return agentic(*(workers | point for point in space), multinode=True, disagg=False)


@pytest.mark.parametrize("item", REAL, ids=lambda item: str(item["id"]))
def test_real_entries_expand_to_the_generators_points(item: dict[str, Any], tmp_path: Path) -> None:
    generated = expand_entry(parse(tmp_path, item["entry"]), Filters(), RUNNERS)
    assert len(generated) == item["generator_entries"]
    assert sum(len(entry.concurrencies) for entry in generated) == item["concurrency_points"]
    for entry, expected in zip(generated, item["expected_points"], strict=True):
        assert holds(entry.as_dict(), expected), (entry.as_dict(), expected)


@pytest.mark.parametrize("item", EXAMPLES, ids=lambda item: str(item["id"]))
def test_examples_expand_or_are_refused_as_upstream(item: dict[str, Any]) -> None:
    if "expected_error" in item:
        with pytest.raises((ValidationError, OptionError)) as caught:
            expand_entry(by_upstream_rules(example_entry(item)), filters_of(item["args"]))
        upstream_names = [
            word for word in ("conc-start", "conc-list", "--step-size") if word in item["expected_error"]
        ]
        assert all(name in str(caught.value) for name in upstream_names)
        return
    generated = expand_entry(by_upstream_rules(example_entry(item)), filters_of(item["args"]))
    assert len(generated) == len(item["expected_entries"])
    for entry, expected in zip(generated, item["expected_entries"], strict=True):
        assert holds(entry.as_dict(), expected), (entry.as_dict(), expected)


def test_a_multi_node_maximum_below_every_value_is_measured_itself(tmp_path: Path) -> None:
    entry = parse(tmp_path, multi({"conc-list": [16, 64]}))
    assert [item.conc for item in expand_entry(entry, Filters(max_conc=4))] == [(4,)]
    assert expand_entry(entry, Filters(min_conc=65)) == []


def test_max_tp_skips_but_max_ep_clamps(tmp_path: Path) -> None:
    entry = parse(tmp_path, single({"tp": 8, "ep": 8, "conc-list": [1]}, {"tp": 4, "conc-list": [2]}))
    assert [item.tp for item in expand_entry(entry, Filters(max_tp=4))] == [4]
    assert [item.ep for item in expand_entry(entry, Filters(max_ep=2))] == [2, 1]


def test_sequence_lengths_scenarios_and_node_kinds_select(tmp_path: Path) -> None:
    entry = parse(tmp_path, single({"tp": 8, "conc-list": [1]}))
    assert len(expand_entry(entry, Filters(seq_lens=("8k1k",)))) == 1
    assert expand_entry(entry, Filters(seq_lens=("1k1k",))) == []
    assert expand_entry(entry, Filters(scenario_types=("agentic-coding",))) == []
    assert expand_entry(entry, Filters(single_node=False)) == []
    assert expand_entry(parse(tmp_path, multi({"conc-list": [1]})), Filters(multi_node=False)) == []


def test_a_node_filter_replaces_the_runner_by_its_nodes(tmp_path: Path) -> None:
    entry = parse(tmp_path, single({"tp": 8, "conc-list": [1]}))
    nodes = expand_entry(entry, Filters(runner_node_filter="nv_0"), RUNNERS)
    assert [item.runner for item in nodes] == ["b300-nv_01", "b300-nv_02"]
    with pytest.raises(OptionError, match="needs the runners file"):
        expand_entry(entry, Filters(runner_node_filter="nv_0"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_size": 1}, "--step-size must be greater than 1"),
        ({"min_conc": 8, "max_conc": 4}, "--min-conc .8. must not be above --max-conc .4."),
        ({"max_conc": 0}, "--max-conc must be greater than 0"),
        ({"seq_lens": ("1k8k",)}, "--seq-lens must be one of 1k1k, 8k1k"),
        ({"scenario_types": ("chat",)}, "--scenario-type must be one of"),
    ],
)
def test_filters_that_cannot_be_met_are_usage_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Filters(**wrong)


def test_the_dram_budget_is_a_nodes_share_and_unknown_without_hardware(tmp_path: Path) -> None:
    entry = parse(tmp_path, case("IX-05")["entry"])
    with_facts = {
        item.tp: item.total_cpu_dram_gb for item in expand_entry(entry, None, RUNNERS) if item.ep > 1
    }
    assert with_facts == {4: 1424, 8: 2849}
    without = {item.total_cpu_dram_gb for item in expand_entry(entry)}
    assert without == {0, None}


def test_multi_node_agentic_names_carry_the_offload_backend(tmp_path: Path) -> None:
    point = {
        "prefill": {"num-worker": 2, "tp": 2, "ep": 1, "dp-attn": False},
        "decode": {"num-worker": 5, "tp": 2, "ep": 1, "dp-attn": False},
        "kv-offloading": "dram",
        "kv-offload-backend": {"name": "mooncake", "version": "0.3.12.post1"},
        "conc-list": [120],
    }
    raw = agentic(point, scenario={"dram-utilization": 0.887}, multinode=True, runner="cluster:gb300-nv")
    generated = expand_entry(parse(tmp_path, raw), None, RUNNERS)
    assert [item.exp_name for item in generated] == ["ex_p2x2_d5x2_conc120_kvdram-mooncake"]
    assert generated[0].total_cpu_dram_gb == int(860160 * 2**20 * 0.887 * 2 / 4 / 1e9)


def test_evaluations_take_the_highest_concurrency_of_each_multi_node_topology(tmp_path: Path) -> None:
    other = {"prefill": {**WORKER, "num-worker": 2}}
    entry = parse(
        tmp_path,
        multi(
            {"conc-list": [4, 64]},
            {"conc-list": [128]},
            {"conc-list": [16], **other},
            {"conc-list": [8], **other},
        ),
    )
    chosen = expand_entry(entry, Filters(evals_only=True))
    assert [(item.conc, item.eval_conc) for item in chosen] == [((128,), 128), ((16,), 16)]


def test_the_first_generation_and_the_single_worker_form_expand_too(tmp_path: Path) -> None:
    raw = single({"tp": 8, "conc-start": 4, "conc-end": 8})
    raw["seq-len-configs"] = raw.pop("scenarios")["fixed-seq-len"]
    entry = parse(tmp_path, raw)
    assert [item.conc for item in expand_entry(entry)] == [4, 8]
    assert "first generation" in entry.warnings[0]
    point = {"worker": {"tp": 8, "pp": 2, "ep": 1, "dp-attn": False}, "conc-list": [1, 2]}
    raw = multi(disagg=False) | {
        "scenarios": {"fixed-seq-len": [{"isl": 1024, "osl": 1024, "search-space": [point]}]}
    }
    raw.pop("kv-p2p-transfer")
    (generated,) = expand_entry(parse(tmp_path, raw))
    assert generated.as_dict()["prefill"]["num-worker"] == 1
    assert generated.as_dict()["decode"]["num-worker"] == 0
