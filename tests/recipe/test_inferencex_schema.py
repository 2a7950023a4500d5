"""What is refused: what upstream refuses, and what it accepts although nothing could serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferencex_helpers import WORKER, agentic, case, multi, parse, single, write_master

from pytest_gpubench.errors import OptionError, RecipeError
from pytest_gpubench.recipe.inferencex.read import read_entry, read_master, read_runners, select_keys
from pytest_gpubench.recipe.inferencex.topology import gpus_per_node

DRAM = {"kv-offloading": "dram", "kv-offload-backend": {"name": "lmcache"}}


def refused(folder: Path, entry: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as caught:
        parse(folder, entry)
    return str(caught.value)


UPSTREAM_REFUSES = {
    "unknown key": (
        single({"tp": 8, "conc-lists": [1]}),
        "unknown key 'conc-lists'; did you mean 'conc-list'",
    ),
    "no multinode": (
        {k: v for k, v in single({"tp": 8, "conc-list": [1]}).items() if k != "multinode"},
        "multinode",
    ),
    "no concurrency": (single({"tp": 8}), "write conc-list, or both conc-start and conc-end"),
    "half a range": (single({"tp": 8, "conc-start": 4}), "both conc-start and conc-end"),
    "range and list": (
        single({"tp": 8, "conc-start": 4, "conc-end": 8, "conc-list": [3]}),
        "conc-list and conc-start/conc-end exclude each other",
    ),
    "range upside down": (
        single({"tp": 8, "conc-start": 64, "conc-end": 4}),
        "conc-start (64) must not be above",
    ),
    "list with zero": (single({"tp": 8, "conc-list": [0, 1]}), "numbers above 0 (got 0)"),
    "dcp does not divide tp": (
        single({"tp": 8, "dcp-size": 3, "conc-list": [1]}),
        "divisible by dcp-size (3)",
    ),
    "unknown speculation": (single({"tp": 8, "spec-decoding": "eagle", "conc-list": [1]}), "spec-decoding"),
    "disagg on one node": (
        single({"tp": 8, "conc-list": [1]}, disagg=True),
        "disagg: true needs multinode: true",
    ),
    "router twice": (
        single(
            {"tp": 8, "conc-list": [1], "router": {"name": "r", "version": "1"}},
            router={"name": "r", "version": "1"},
        ),
        "router is written at the top and in scenarios.fixed-seq-len.0.search-space.0",
    ),
    "hardware of one role": (
        multi({"conc-list": [1], "prefill": {**WORKER, "hardware": "b200"}}),
        "hardware must be written for both",
    ),
    "worker without dp-attn": (
        multi({"conc-list": [1], "decode": {"num-worker": 1, "tp": 8, "ep": 1}}),
        "decode.dp-attn",
    ),
    "no scenario": (
        single({"tp": 8, "conc-list": [1]}) | {"scenarios": {}},
        "fixed-seq-len and agentic-coding",
    ),
    "agentic without offloading": (
        agentic({"tp": 8, "conc-list": [1]}),
        "kv-offloading is required beside tp",
    ),
    "dram without a backend": (
        agentic({"tp": 8, "conc-list": [1], "kv-offloading": "dram"}, scenario={"dram-utilization": 0.8}),
        "kv-offload-backend is required",
    ),
    "backend without dram": (
        agentic({"tp": 8, "conc-list": [1], **DRAM, "kv-offloading": "none"}),
        "kv-offload-backend needs kv-offloading: dram",
    ),
    "dram without its share": (agentic({"tp": 8, "conc-list": [1], **DRAM}), "dram-utilization is required"),
    "agentic on any runner": (
        agentic({"tp": 8, "conc-list": [1], "kv-offloading": "none"}, runner="b300"),
        "need a runner of one cluster, cluster:<name> (got 'b300')",
    ),
    "agentic sizes with workers": (
        agentic({"prefill": WORKER, "decode": WORKER, "pp": 2, "conc-list": [1]}, multinode=True),
        "pp belongs inside prefill and decode",
    ),
    "agentic workers on one node": (
        agentic({"prefill": WORKER, "decode": WORKER, "conc-list": [1]}),
        "prefill and decode need multinode: true",
    ),
}

UPSTREAM_ACCEPTS = {
    "tp 0": (single({"tp": 0, "conc-list": [1]}), "search-space[0].tp: must be above 0 (got 0)"),
    "tp negative": (single({"tp": -4, "conc-list": [1]}), "tp: must be above 0 (got -4)"),
    "tp as text": (single({"tp": "8", "conc-list": [1]}), "tp: expected an integer"),
    "ep above tp": (single({"tp": 4, "ep": 8, "conc-list": [1]}), "ep: 8 expert ranks need 8 GPUs"),
    "isl negative": (single({"tp": 4, "conc-list": [1]}, isl=-1), "isl: must be above 0 (got -1)"),
    "nothing to search": (single(), "search-space: is empty: nothing would be measured"),
    "start beside a list": (
        single({"tp": 4, "conc-start": 2, "conc-list": [4]}),
        "conc-start: stands beside conc-list",
    ),
    "start at zero": (
        single({"tp": 4, "conc-start": 0, "conc-end": 4}),
        "conc-start: must be above 0 (got 0)",
    ),
    "listed twice": (single({"tp": 4, "conc-list": [64, 4, 4]}), "conc-list[2]: 4 is listed twice"),
    "no prefill worker": (
        multi({"conc-list": [1], "prefill": {**WORKER, "num-worker": 0}}),
        "prefill.num-worker: is 0: without prefill workers nothing serves",
    ),
    "workers negative": (
        multi({"conc-list": [1], "decode": {**WORKER, "num-worker": -1}}),
        "decode.num-worker: must not be below 0 (got -1)",
    ),
}


@pytest.mark.parametrize(("entry", "message"), UPSTREAM_REFUSES.values(), ids=UPSTREAM_REFUSES)
def test_what_upstream_refuses_is_refused(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, entry)


@pytest.mark.parametrize(("entry", "message"), UPSTREAM_ACCEPTS.values(), ids=UPSTREAM_ACCEPTS)
def test_what_upstream_lets_through_is_refused(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, entry)


def test_every_problem_of_an_entry_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    text = refused(tmp_path, single({"tp": 0, "conc-list": [1]}, {"tp": 4, "conc-list": [2, 2]}))
    first, second = text.splitlines()
    assert first.startswith(
        f"{tmp_path}/master.yaml:14:13: key.scenarios.fixed-seq-len[0].search-space[0].tp: "
    )
    assert second.startswith(
        f"{tmp_path}/master.yaml:20:11: key.scenarios.fixed-seq-len[0].search-space[1].conc-list[1]: "
    )


@pytest.mark.parametrize("name", ["IX-01", "IX-04"])
def test_entries_that_current_upstream_rejects_load_with_a_warning(name: str, tmp_path: Path) -> None:
    item = case(name)
    assert not item["main_validator"]["accepted"]
    assert parse(tmp_path, item["entry"]).warnings


def test_entries_that_current_upstream_accepts_give_no_warning(tmp_path: Path) -> None:
    for name in ("IX-02", "IX-03", "IX-05", "IX-06", "IX-07"):
        assert parse(tmp_path, case(name)["entry"]).warnings == []


def test_a_wrong_neighbour_does_not_stop_an_entry(tmp_path: Path) -> None:
    good, bad = single({"tp": 8, "conc-list": [1]}), single({"tp": 0, "conc-list": [1]})
    file = read_master(write_master(tmp_path, bad=bad, good=good))
    assert read_entry(file, "good").image == good["image"]
    with pytest.raises(RecipeError):
        read_entry(file, "bad")


def test_keys_are_selected_by_glob_in_the_files_order(tmp_path: Path) -> None:
    entry = single({"tp": 8, "conc-list": [1]})
    path = write_master(
        tmp_path, dsr1_fp8_b300_sglang=entry, dsv4_fp4_b300_vllm=entry, dsr1_fp8_b300_mtp=entry
    )
    file = read_master(path)
    assert select_keys(file, ["dsr1-fp8-b300-*"]) == ["dsr1-fp8-b300-sglang", "dsr1-fp8-b300-mtp"]
    assert select_keys(file, ["*-mtp", "dsr1-fp8-b300-sglan?"]) == [
        "dsr1-fp8-b300-sglang",
        "dsr1-fp8-b300-mtp",
    ]
    with pytest.raises(
        OptionError, match="no config key 'dsr1-fp8-b300-sgl'; did you mean 'dsr1-fp8-b300-sglang'"
    ):
        select_keys(file, ["dsr1-fp8-b300-sgl"])
    with pytest.raises(OptionError, match=r"no config key '\[d\]\*'"):
        select_keys(file, ["[d]*"])


def test_a_key_with_a_wildcard_is_refused(tmp_path: Path) -> None:
    path = write_master(tmp_path, **{"dsr1-*": single({"tp": 8, "conc-list": [1]})})
    with pytest.raises(RecipeError, match=r"master.yaml:1:1: dsr1-\*: a config key cannot hold"):
        read_master(path)


def test_runners_tell_gpus_per_node_by_label_else_by_family(tmp_path: Path) -> None:
    path = tmp_path / "runners.yaml"
    path.write_text(
        "labels: {b200: [b200_0]}\nhardware:\n"
        "  cluster:b200-a: {available-cpu-dram-mib: 2_964_436, gpus-per-node: 8}\n"
        "  cluster:b200-b: {available-cpu-dram-mib: 1, gpus-per-node: 8}\n"
        "  cluster:x-a: {available-cpu-dram-mib: 1, gpus-per-node: 4}\n"
        "  cluster:x-b: {available-cpu-dram-mib: 1, gpus-per-node: 8}\n"
    )
    runners = read_runners(path)
    assert runners.hardware["cluster:b200-a"].available_cpu_dram_mib == 2964436
    assert gpus_per_node("b200-multinode", runners) == 8
    assert gpus_per_node("cluster:x-a", runners) == 4
    assert gpus_per_node("x", runners) is None
    path.write_text("b200: [b200_0, b200_1]\nh100: [h100_0]\n")
    assert read_runners(path).labels["b200"] == ["b200_0", "b200_1"]
    path.write_text("b200: 3\n")
    with pytest.raises(RecipeError, match=r"runners\.yaml:1:7: b200: expected a list of node names"):
        read_runners(path)
