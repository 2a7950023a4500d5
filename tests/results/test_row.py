"""The row beyond the reference cases: labels, divisors, repetitions, what is never written."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pytest_gpubench.results
from pytest_gpubench.bench.result import JSON, RawResult
from pytest_gpubench.errors import RecipeError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import AccuracyTask, Gates, Labels, Parallel, Slo
from pytest_gpubench.results.figures import empty_figures
from pytest_gpubench.results.identity import measured_sha256
from pytest_gpubench.results.outcome import AccuracyScore, Failure, Outcome, RunInfo, SloProbe
from pytest_gpubench.results.row import build_row, format_date, is_figure
from results.points import RUN, good_json, make_deployment, make_load, make_point, outcome_of, role

SCHEMA = json.loads((Path(pytest_gpubench.results.__file__).parent / "schema.json").read_text())


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        ("A", {"num_nodes": 2, "gpus_per_node": 4, "gpu_count": 8, "parallel": Parallel(tp=8)}, 1000.0),
        ("B", {"num_nodes": 1, "gpus_per_node": 8, "gpu_count": 8, "parallel": Parallel(dp=8)}, 1000.0),
        ("C", {"num_nodes": 1, "gpus_per_node": 8, "gpu_count": 8, "parallel": Parallel(tp=4)}, 1000.0),
        ("C used", {"num_nodes": 1, "gpus_per_node": 8, "gpu_count": 4, "parallel": Parallel(tp=4)}, 2000.0),
        (
            "D",
            {
                "num_nodes": 3,
                "gpu_count": 12,
                "prefill": role("prefill", 1, Parallel(tp=4)),
                "decode": role("decode", 2, Parallel(tp=4)),
            },
            8000.0 / 12,
        ),
    ],
)
def test_fc_48_the_divisor_is_the_recipes_and_is_stated(
    name: str, changes: dict[str, Any], total: float
) -> None:
    content = {
        "num_prompts": 100,
        "completed": 100,
        "failed": 0,
        "duration": 10.0,
        "total_input_tokens": 60000,
        "total_output_tokens": 20000,
        "output_throughput": 2000.0,
        "total_token_throughput": 8000.0,
    }
    point = make_point(
        deployment=make_deployment(**changes), load=make_load(num_prompts=100, isl=600, osl=200)
    )
    row = build_row(point, outcome_of(content), RUN)
    assert row["tput_per_gpu"] == total
    assert row["gpu_count"] == changes["gpu_count"]
    assert row["serving_gpu_count"] == {"A": 8, "B": 8, "C": 4, "C used": 4, "D": 12}[name]
    if name == "D":
        assert row["per_gpu_basis"] == "roles"
        assert row["per_gpu_divisors"] == {"total": 12, "output": 8, "input": 4}
        assert (row["output_tput_per_gpu"], row["input_tput_per_gpu"]) == (250.0, 1500.0)
        assert (row["num_prefill_gpu"], row["num_decode_gpu"]) == (4, 8)
    else:
        count = changes["gpu_count"]
        assert row["per_gpu_basis"] == "allocated"
        assert row["per_gpu_divisors"] == {"total": count, "output": count, "input": count}


def test_fc_48_no_gpus_is_an_error() -> None:
    point = make_point(deployment=make_deployment(gpu_count=0))
    with pytest.raises(RecipeError, match="gpu_count is 0: per-GPU figures need"):
        build_row(point, outcome_of(good_json()), RUN)


def test_the_model_is_the_recipes_id_also_when_it_is_served_from_elsewhere() -> None:
    deployment = make_deployment(
        model_path="/scratch/models/Model-7B", serve_args=("--served-model-name=team",)
    )
    for name in ("/scratch/models/Model-7B", "team", "org/Model-7B", ...):
        row = build_row(make_point(deployment=deployment), outcome_of(good_json(model_id=name)), RUN)
        assert (row["model"], row["status"]) == ("org/Model-7B", "passed")


def test_labels_follow_the_dashboards_forms() -> None:
    labels = Labels("h200", "bf16", tp=8, is_multinode=True, dp_attention=True, disagg=True)
    row = build_row(make_point(labels=labels), outcome_of(good_json()), replace(RUN, nightly=True))
    assert (row["is_multinode"], row["dp_attention"], row["disagg"]) == ("true", "true", "true")
    assert (row["spec_decoding"], row["ep"], row["nightly"]) == ("false", 1, True)
    assert "dp" not in row


def test_conc_is_the_asked_one_when_the_file_has_none() -> None:
    for value in (..., 0):
        row = build_row(make_point(), outcome_of(good_json(max_concurrency=value)), RUN, keep_untrusted=True)
        assert row["conc"] == 64


def test_date_is_utc_of_the_end() -> None:
    assert format_date(0.0) == "1970-01-01 00:00:00"
    outcome = outcome_of(good_json(), ended=1767323045.9)
    assert build_row(make_point(), outcome, RunInfo("r"))["date"] == "2026-01-02 03:04:05"
    assert build_row(make_point(), outcome_of(good_json()), RunInfo("r"))["date"] is None


def test_repetitions_give_medians_sums_and_spread() -> None:
    contents = [good_json(output_throughput=value, mean_ttft_ms=value) for value in (1000.0, 3000.0, 2000.0)]
    outcome = outcome_of(*contents, seeds=(2, 4, 6), prefix_cache_hit_rates=(0.0, None, 0.01))
    row = build_row(make_point(load=make_load(repetitions=3)), outcome, RUN)
    assert row["status"] == "passed"
    assert (row["output_tput_per_gpu"], row["mean_ttft"]) == (250.0, 2.0)
    assert (row["num_prompts"], row["completed"], row["duration"]) == (384, 384, 192.0)
    assert (row["total_output_tokens"], row["expected_output_tokens"]) == (393216, 393216)
    assert (row["repetitions"], row["seed"], row["seeds"]) == (3, 2, [2, 4, 6])
    assert row["prefix_cache_hit_rate"] == 0.01
    spread = row["spread"]
    assert isinstance(spread, dict)
    assert spread["mean_ttft"] == {"min": 1.0, "max": 3.0, "relative_iqr": 0.5}
    assert "p99_itl" not in spread


def test_one_bad_repetition_is_not_hidden_by_the_median() -> None:
    bad = good_json(completed=64, failed=64, total_output_tokens=65536, total_input_tokens=65536)
    row = build_row(make_point(load=make_load(repetitions=3)), outcome_of(good_json(), bad, good_json()), RUN)
    assert row["failure_rate"] == 64 / 384
    assert row["reason"] == "gate_missed"


def test_zero_latencies_are_no_measurement() -> None:
    content = good_json(mean_tpot_ms=0.0, p99_tpot_ms=0.0, std_tpot_ms=0.0, mean_itl_ms=0.0)
    row = build_row(make_point(), outcome_of(content), RUN)
    assert [row[key] for key in ("mean_tpot", "p99_tpot", "mean_intvty", "p99_intvty", "mean_itl")] == [
        None
    ] * 5
    assert (row["std_tpot"], row["std_intvty"]) == (0.0, None)


def test_an_infinite_quotient_is_null() -> None:
    row = build_row(make_point(), outcome_of(good_json(mean_tpot_ms=1e-320)), RUN)
    assert row["mean_intvty"] is None
    assert all(not isinstance(v, float) or math.isfinite(v) for v in row.values())


def test_a_stale_file_leaves_no_figure_and_no_count() -> None:
    outcome = Outcome(raws=(RawResult("old.json", good_json(), stale=True),))
    row = build_row(make_point(), outcome, RUN, keep_untrusted=True)
    assert (row["status"], row["reason"]) == ("failed", "stale_result")
    assert (row["completed"], row["tput_per_gpu"], row["num_prompts"]) == (None, None, 128)


def test_every_column_is_there_also_when_nothing_was_measured() -> None:
    row = build_row(make_point(), Outcome(failure=Failure(Reason.QUEUE_TIMEOUT, "no nodes")), RUN)
    assert all(row[name] is None for name in empty_figures())
    assert is_figure("p99.9_ttft")
    assert is_figure("mean_queue")
    assert not is_figure("completed")
    assert not is_figure("point")


def test_measured_sha256_ignores_what_one_compares_and_names() -> None:
    base = make_point()
    same = make_point(
        deployment=make_deployment(image="other:1", vllm_commit="abc", model_path="/scratch/m", id="x"),
        load=make_load(name="another", seed=5),
        gates=Gates(floors=(("tput_per_gpu", 1.0),)),
        labels=replace(base.labels, device="h200"),
    )
    assert measured_sha256(same) == measured_sha256(base)
    for other in (
        make_point(load=make_load(concurrency=32)),
        make_point(deployment=make_deployment(serve_args=("--enforce-eager",))),
        make_point(deployment=make_deployment(parallel=Parallel(tp=8))),
    ):
        assert measured_sha256(other) != measured_sha256(base)


def rows_of_every_kind() -> dict[str, dict[str, JSON]]:
    accuracy = make_point(kind="accuracy", task=AccuracyTask("lm_eval", "gsm8k"))
    slo = make_point(kind="slo", slo=Slo(ceilings=(("p99_ttft", 2.0),)))
    roles = make_deployment(
        prefill=role("prefill", 1, Parallel(tp=4)), decode=role("decode", 1, Parallel(tp=4))
    )
    failure = Failure(Reason.CLIENT_HUNG, "no end", Phase.BENCH)
    repeated = make_point(load=make_load(repetitions=3), gates=Gates(max_spread=(("mean_itl", 0.1),)))
    return {
        "passed": build_row(make_point(), outcome_of(good_json(), job_id="4711", nodes=("n1", "n2")), RUN),
        "missed": build_row(repeated, outcome_of(good_json(), good_json(), good_json()), RUN),
        "invalid": build_row(make_point(), outcome_of(good_json(failed=1)), RUN),
        "error": build_row(make_point(), Outcome(failure=failure), RUN),
        "roles": build_row(make_point(deployment=roles), outcome_of(good_json()), RUN),
        "accuracy": build_row(accuracy, Outcome(accuracy=(AccuracyScore("gsm8k", "em", 0.9),)), RUN),
        "slo": build_row(
            slo, outcome_of(good_json(), slo_probes=(SloProbe(64, True, {"p99_ttft": 1.0}),)), RUN
        ),
    }


@pytest.mark.parametrize(("name", "row"), rows_of_every_kind().items(), ids=lambda value: str(value)[:10])
def test_rows_are_as_the_shipped_schema_says(name: str, row: dict[str, JSON]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    document = {"schema_version": 1, "run": {"run_id": "r"}, "rows": [row]}
    assert [error.message for error in validator.iter_errors(document)] == []
    known = SCHEMA["$defs"]["row"]["properties"]
    assert [key for key in row if key not in known and not is_figure(key)] == []


def test_the_schema_refuses_what_is_no_row() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = build_row(make_point(), outcome_of(good_json()), RUN)
    for change in (
        {"status": "ok"},
        {"tput_per_gpu": "512"},
        {"is_multinode": True},
        {"reason": "gate_missed"},
    ):
        document = {"schema_version": 1, "run": {"run_id": "r"}, "rows": [{**good, **change}]}
        assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)) != []


def test_an_outcome_needs_nothing_to_be_made() -> None:
    assert {field.name for field in fields(Outcome)} >= {"raws", "failure", "phase_seconds", "attempt"}
    assert Outcome().attempt == 1
