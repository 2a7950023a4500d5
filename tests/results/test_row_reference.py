"""Rows against published references (perf-eval, InferenceX), to the last digit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpubench.recipe.types import Labels, Parallel, Point
from pytest_gpubench.results.outcome import RunInfo
from pytest_gpubench.results.row import build_row
from results.points import DATA, RUN, make_deployment, make_load, make_point, outcome_of, role

PERF_EVAL = json.loads((DATA / "results" / "ingest_expected.json").read_text())
INFERENCEX = json.loads((DATA / "results" / "result_examples.json").read_text())


def flag(value: Any) -> bool:
    return str(value).lower() == "true"


@pytest.mark.parametrize("case", PERF_EVAL["rows"], ids=lambda case: case["id"])
def test_perf_eval_row_comes_out_exactly(case: dict[str, Any]) -> None:
    args = case["args"]
    point = make_point(
        deployment=make_deployment(
            recipe=case["workload"],
            model=args["model"],
            model_path=args["model"],
            image=args["image"],
            num_nodes=int(args["num-nodes"]),
            gpus_per_node=int(args["gpus-per-node"]),
            gpu_count=int(args["gpu-count"]),
        ),
        labels=Labels(
            device=args["device"],
            precision=args["precision"],
            tp=int(args["tp"]),
            dp=int(args["dp"]) if args["dp"] else None,
            ep=int(args["ep"]) if args["ep"] else None,
            is_multinode=flag(args["is-multinode"]),
            dp_attention=flag(args["dp-attention"]),
            disagg=flag(args["disagg"]),
            spec_decoding=args["spec-decoding"],
        ),
        load=make_load(isl=int(args["isl"]), osl=int(args["osl"]), concurrency=int(args["conc"])),
    )
    outcome = outcome_of(PERF_EVAL["raw_results"][case["raw"]]["json"])
    row = build_row(point, outcome, RunInfo(run_id="r", date=args["date"]), keep_untrusted=True)
    expected = case["expected_row"]
    assert {key: row.get(key, "absent") for key in expected} == expected
    assert all(type(row[key]) is type(value) for key, value in expected.items())
    assert ("dp" in row) == ("dp" in expected)


def point_of(case: dict[str, Any]) -> Point:
    """The point that an InferenceX case's metadata describes."""
    meta = case["metadata"]
    single = not flag(meta["is_multinode"])
    number = {key: int(value) for key, value in meta.items() if str(value).isdigit()}
    changes: dict[str, Any] = {
        "model": "example/model",
        "model_path": "example/model",
        "image": meta["image"],
        "framework": meta["framework"],
    }
    if single:
        parallel = Parallel(tp=number["tp"], pp=number.get("pp_size", 1), ep=number["ep_size"])
        changes |= {"num_nodes": 1, "parallel": parallel, "gpu_count": parallel.world_size}
    else:
        gpus = {name: number.get(f"{name}_gpus", 0) for name in ("prefill", "decode")}
        roles = {}
        for name in ("prefill", "decode"):
            workers, tp = number[f"{name}_num_workers"], number[f"{name}_tp"]
            dp = gpus[name] // (workers * tp) if workers and tp else 1
            roles[name] = role(
                name,
                workers,
                Parallel(tp=tp, dp=dp, ep=number[f"{name}_ep"]),
                dp_attention=flag(meta[f"{name}_dp_attn"]),
            )
        changes |= {**roles, "gpu_count": gpus["prefill"] + gpus["decode"]}
        if "kv_p2p_transfer" in meta:
            changes["extra"] = (("kv-p2p-transfer", meta["kv_p2p_transfer"]),)
    return make_point(
        deployment=make_deployment(**changes),
        labels=Labels(
            device=meta["runner_type"],
            precision=meta["precision"],
            tp=number.get("tp", 1),
            ep=number.get("ep_size"),
            is_multinode=not single,
            dp_attention=flag(meta.get("dp_attention")),
            disagg=flag(meta["disagg"]),
            spec_decoding=meta["spec_decoding"],
        ),
        load=make_load(
            isl=number["isl"],
            osl=number["osl"],
            concurrency=case["raw"]["max_concurrency"],
            num_prompts=case["raw"]["num_prompts"],
        ),
    )


@pytest.mark.parametrize("case", INFERENCEX["cases"], ids=lambda case: case["id"])
def test_inferencex_aggregate_comes_out_exactly(case: dict[str, Any]) -> None:
    row = build_row(point_of(case), outcome_of(case["raw"]), RUN)
    expected = dict(case["expected"])
    expected["device"] = expected.pop("hw")
    del expected["infmax_model_prefix"]
    for name in ("disagg", "is_multinode"):  # the dashboard's flags are texts
        expected[name] = str(expected[name]).lower()
    for name, size in (("pp", "pp"), ("dcp_size", "dcp"), ("pcp_size", "pcp")):
        if name in expected:
            parallel = row["parallel"]
            assert isinstance(parallel, dict)
            assert parallel[size] == expected.pop(name)
    assert {key: row.get(key, "absent") for key in expected} == expected
    assert all(row[name] is None for name in case.get("expected_null_or_absent", ()))
    # R06: 5 of 640 requests failed, which upstream does not publish; by default none may.
    assert row["status"] == ("failed" if case["id"] == "R06" else "passed")


def test_failures_that_upstream_does_not_publish_are_in_the_row() -> None:
    case = next(case for case in INFERENCEX["cases"] if case["id"] == "R06")
    row = build_row(point_of(case), outcome_of(case["raw"]), RUN)
    assert (row["num_prompts"], row["completed"], row["failed"]) == (640, 635, 5)
    assert row["failure_rate"] == 5 / 640
    assert row["reason"] == "gate_missed"
    assert row["stated_failed"] is None


def test_disaggregated_divisors_are_stated() -> None:
    case = next(case for case in INFERENCEX["cases"] if case["id"] == "R04")
    row = build_row(point_of(case), outcome_of(case["raw"]), RUN)
    assert row["per_gpu_basis"] == "roles"
    assert row["per_gpu_divisors"] == {"total": 32, "output": 8, "input": 24}
    assert row["serving_gpu_count"] == 32
