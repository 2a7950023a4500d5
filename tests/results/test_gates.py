"""Gates and verdicts: every violation at once, missing evidence is a miss, validity comes first."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import LogTail, ServerError
from pytest_gpubench.gates import effective_gates, format_violations, judge, known_metric, near_metrics
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import AccuracyTask, Gates, Reference, Slo
from pytest_gpubench.results.metrics import metric, units
from pytest_gpubench.results.outcome import AccuracyScore, Failure, Outcome, SloProbe
from pytest_gpubench.results.row import build_row, judge_point
from results.points import RUN, good_json, make_load, make_point, outcome_of


def row(**changes: Any) -> dict[str, JSON]:
    values: dict[str, JSON] = {
        "kind": "serving",
        "failure_rate": 0.0,
        "tput_per_gpu": 512.0,
        "p99_ttft": 1.0,
        "p50_ttft": 0.4,
        "median_tpot": None,
        **changes,
    }
    return values


def messages(gates: Gates, **changes: Any) -> list[str]:
    return [violation.message for violation in judge(row(**changes), gates)]


def test_gates_that_hold_give_nothing() -> None:
    gates = Gates(
        floors=(("tput_per_gpu", 512.0),),
        ceilings=(("p99_ttft", 1.0),),
        references=(Reference("tput_per_gpu", 500.0, -0.05, 0.05),),
    )
    assert judge(row(), gates) == []


def test_every_missed_gate_is_in_one_text_with_value_limit_and_unit() -> None:
    gates = Gates(floors=(("tput_per_gpu", 900.0),), ceilings=(("p99_ttft", 0.5),))
    found = judge(row(failure_rate=0.1, failed=1, num_prompts=10, completed=9, stated_failed=1), gates)
    assert format_violations(found).splitlines() == [
        "3 gates missed:",
        "  failure_rate 0.1 (1/10) is above max_failure_rate 0",
        "  tput_per_gpu 512 tok/s/GPU is below the floor 900 tok/s/GPU (-43.1%)",
        "  p99_ttft 1 s is above the ceiling 0.5 s (+100.0%)",
    ]
    assert [(v.kind, v.limit, v.value, v.unit) for v in found] == [
        ("failure_rate", 0.0, 0.1, ""),
        ("floor", 900.0, 512.0, "tok/s/GPU"),
        ("ceiling", 0.5, 1.0, "s"),
    ]


@pytest.mark.parametrize(
    ("value", "kinds"),
    [(94.9, ["reference_lower"]), (95.0, []), (120.0, []), (120.1, ["reference_upper"])],
)
def test_reference_with_tolerance(value: float, kinds: list[str]) -> None:
    gates = Gates(references=(Reference("tput_per_gpu", 100.0, -0.05, 0.20),))
    assert [v.kind for v in judge(row(tput_per_gpu=value), gates)] == kinds


def test_an_open_side_of_a_reference_judges_nothing() -> None:
    gates = Gates(references=(Reference("tput_per_gpu", 100.0, -0.05, None),))
    assert judge(row(tput_per_gpu=1e9), gates) == []


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "512", True])
def test_a_metric_without_a_finite_number_fails_every_gate_that_names_it(value: Any) -> None:
    gates = Gates(
        floors=(("tput_per_gpu", 1.0),),
        ceilings=(("tput_per_gpu", 1e9),),
        references=(Reference("tput_per_gpu", 500.0, -0.5, 0.5),),
        max_spread=(("tput_per_gpu", 0.1),),
    )
    found = judge(row(tput_per_gpu=value), gates)
    assert [v.kind for v in found] == ["floor", "ceiling", "reference_lower", "reference_upper", "spread"]
    assert {v.value for v in found} == {None}


def test_unknown_failure_rate_is_a_miss() -> None:
    assert messages(Gates(), failure_rate=None) == [
        "failure_rate is unknown: the result does not say how many prompts completed (limit 0)"
    ]


def test_spread_gate() -> None:
    gates = Gates(max_spread=(("tput_per_gpu", 0.05),))
    spreads: JSON = {"tput_per_gpu": {"min": 1.0, "max": 2.0, "relative_iqr": 0.12}}
    (text,) = messages(gates, spread=spreads, repetitions=3)
    assert text == "tput_per_gpu spreads by 12.0% (relative IQR of 3 repetitions), limit 5.0%"
    (text,) = messages(gates)
    assert "two or more repetitions" in text


def test_metric_names_and_units() -> None:
    assert known_metric("p99.9_e2el")
    assert known_metric("median_intvty")
    assert not known_metric("p99_ttft_ms")
    assert near_metrics("p99_ttft_ms") == ["p99_ttft"]
    assert "output_tput_per_gpu" in near_metrics("output_tput_pergpu")
    assert near_metrics("zzz") == []
    assert (units("tput_per_gpu"), units("p99_itl"), units("p90_intvty"), units("failure_rate")) == (
        "tok/s/GPU",
        "s",
        "tok/s/user",
        "",
    )
    found = metric("failure_rate")
    assert found is not None
    assert found.show(None) == "missing"


def test_an_unknown_metric_is_named_with_its_near_name() -> None:
    (text,) = messages(Gates(floors=(("tput_pergpu", 1.0),)))
    assert "no row has such a metric; did you mean tput_per_gpu" in text


def test_fc_10_absent_percentile_fails_and_lists_those_that_are_there() -> None:
    content = {
        "num_prompts": 10,
        "completed": 10,
        "failed": 0,
        "duration": 5.0,
        "total_output_tokens": 1280,
        "output_throughput": 256.0,
        "mean_ttft_ms": 40.0,
        "p50_ttft_ms": 38.0,
        "p99.9_ttft_ms": 70.0,
    }
    point = make_point(load=make_load(num_prompts=10, osl=128), gates=Gates(ceilings=(("p99_ttft", 0.1),)))
    found, verdict = judge_point(point, outcome_of(content), RUN)
    assert verdict.reason is Reason.GATE_MISSED
    assert "p99_ttft is not in the result (ceiling 0.1 s)" in verdict.message
    assert "of ttft the result has mean, p50, p99.9" in verdict.message
    # Absent metrics are null columns, p99.9 is a percentile of its own.
    assert found["p99_ttft"] is None
    assert found["median_itl"] is None
    assert found["p99.9_ttft"] == 0.07
    assert found["tput_per_gpu"] is None


def test_fc_07_a_dead_engine_fails_whatever_the_limit() -> None:
    content = {
        "num_prompts": 160,
        "completed": 0,
        "failed": 160,
        "duration": 9.4,
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "request_throughput": 0.0,
        "output_throughput": 0.0,
        "mean_ttft_ms": 0.0,
        "p99_ttft_ms": 0.0,
    }
    load = make_load(num_prompts=160)
    for limit, named in ((0.05, True), (1.0, False)):
        point = make_point(load=load, gates=Gates(max_failure_rate=limit))
        for keep in (False, True):
            outcome = outcome_of(content, client_exit_code=0)
            found, verdict = judge_point(point, outcome, RUN, keep_untrusted=keep)
            assert (verdict.status, verdict.reason) == ("failed", Reason.NOTHING_COMPLETED)
            assert ("failure_rate 1 (160/160) is above" in verdict.message) == named
            assert "0 of 160 requests completed" in verdict.message
            assert found["failure_rate"] == 1.0
            assert found["mean_ttft"] is found["p99_ttft"] is found["output_tput_per_gpu"] is None


def test_fc_09_lost_requests_count_without_a_failed_key() -> None:
    first = {
        "num_prompts": 50,
        "completed": 1,
        "duration": 4.0,
        "total_input_tokens": 256,
        "total_output_tokens": 64,
        "output_throughput": 16.0,
    }
    point = make_point(load=make_load(num_prompts=50, isl=256, osl=64))
    found, verdict = judge_point(point, outcome_of(first), RUN)
    assert found["failure_rate"] == 0.98
    assert (found["failed"], found["stated_failed"]) == (49, None)
    assert "failure_rate 0.98 (49/50)" in verdict.message
    assert "the file gives no failed count, but 1 of 50 completed" in verdict.message

    second = {"num_prompts": 100, "completed": 90, "failed": 4, "duration": 4.0, "total_output_tokens": 5760}
    point = make_point(load=make_load(num_prompts=100, isl=256, osl=64))
    found, verdict = judge_point(point, outcome_of(second), RUN)
    assert found["failure_rate"] == 0.10
    assert verdict.reason is Reason.PROMPTS_UNACCOUNTED
    assert "6 unaccounted for" in verdict.message
    assert "the file states 4 failed, but 90 of 100 completed" in verdict.message


def test_validity_is_judged_before_thresholds() -> None:
    point = make_point(gates=Gates(floors=(("tput_per_gpu", 1e9),)))
    found, verdict = judge_point(point, outcome_of(good_json(total_output_tokens=5)), RUN)
    assert verdict.reason is Reason.OUTPUT_TOKENS_OFF
    assert verdict.violations == ()
    assert found["tput_per_gpu"] is None
    assert found["problems"] == [{"reason": "output_tokens_off", "message": verdict.problems[0].message}]
    kept = build_row(point, outcome_of(good_json(total_output_tokens=5)), RUN, keep_untrusted=True)
    assert (kept["status"], kept["tput_per_gpu"]) == ("failed", 512.0)


def test_infrastructure_is_an_error_and_says_so_in_the_first_line() -> None:
    error = ServerError(Reason.SERVER_EXITED, "rank 1 on n2 ended with 1", Phase.LOAD, "details")
    error.tails.append(LogTail("rank 1", "rank1.log", "CUDA out of memory"))
    failure = Failure.of(error)
    assert failure.tails[0].text == "CUDA out of memory"
    outcome = Outcome(failure=failure, phase_seconds={Phase.QUEUE: 3.0, Phase.LOAD: 7.5})
    found, verdict = judge_point(make_point(), outcome, RUN)
    assert (verdict.status, found["status"], found["reason"]) == ("error", "error", "server_exited")
    assert verdict.message.splitlines()[0] == (
        "infrastructure error [server_exited] while loading the model: rank 1 on n2 ended with 1"
    )
    assert str(error) == verdict.message
    assert found["phase_seconds"] == {
        "queue": 3.0,
        "import": None,
        "load": 7.5,
        "ready": None,
        "bench": None,
        "teardown": None,
    }
    assert found["failed_phase"] == "load"
    assert found["num_prompts"] == 128
    assert found["completed"] is None


def test_figures_of_a_run_that_failed_half_way_are_null() -> None:
    outcome = outcome_of(good_json(), failure=Failure(Reason.NODE_FAILED, "n2 failed"))
    assert build_row(make_point(), outcome, RUN)["tput_per_gpu"] is None


def test_an_unreadable_result_is_failed_not_an_error() -> None:
    _, verdict = judge_point(
        make_point(), Outcome(failure=Failure(Reason.UNREADABLE_RESULT, "not JSON")), RUN
    )
    assert (verdict.status, verdict.reason) == ("failed", Reason.UNREADABLE_RESULT)
    assert verdict.message.startswith("not a valid measurement [unreadable_result]")


def test_no_result_at_all_is_infrastructure() -> None:
    _, verdict = judge_point(make_point(), Outcome(), RUN)
    assert (verdict.status, verdict.reason) == ("error", Reason.NO_RESULT)
    assert verdict.message == "infrastructure error [no_result]: the client left no result file"


def test_known_issue_expects_the_miss_and_reports_a_pass() -> None:
    gates = Gates(floors=(("tput_per_gpu", 900.0),), known_issue="slow since 0.31")
    found, verdict = judge_point(make_point(gates=gates), outcome_of(good_json()), RUN)
    assert (verdict.status, verdict.reason, verdict.expected) == ("failed", Reason.GATE_MISSED, True)
    assert verdict.message.startswith("known issue (slow since 0.31): gate missed: tput_per_gpu")
    assert found["known_issue"] == "slow since 0.31"

    gates = Gates(floors=(("tput_per_gpu", 1.0),), known_issue="slow since 0.31")
    found, verdict = judge_point(make_point(gates=gates), outcome_of(good_json()), RUN)
    assert (verdict.status, verdict.reason, verdict.expected) == ("failed", Reason.KNOWN_ISSUE_PASSED, False)
    assert "remove the mark" in verdict.message
    assert isinstance(found["violations"], list)
    assert len(found["violations"]) == 1


def test_known_issue_excuses_no_invalid_measurement() -> None:
    gates = Gates(known_issue="slow")
    _, verdict = judge_point(make_point(gates=gates), outcome_of(good_json(model_id="x")), RUN)
    assert (verdict.reason, verdict.expected) == (Reason.WRONG_MODEL, False)


def test_accuracy_floors() -> None:
    gates = Gates(accuracy=(("gsm8k", "exact_match", 0.9), ("gsm8k", "flexible", 0.5), ("other", "acc", 0.5)))
    point = make_point(kind="accuracy", gates=gates, task=AccuracyTask("lm_eval", "gsm8k"))
    outcome = Outcome(accuracy=(AccuracyScore("gsm8k", "exact_match", 0.85, 0.01),))
    found, verdict = judge_point(point, outcome, RUN)
    assert [violation.message for violation in verdict.violations] == [
        "gsm8k exact_match 0.85 is below the floor 0.9 (-5.6%)",
        "gsm8k flexible is not in the result (floor 0.5); it has exact_match",
    ]
    assert (found["task"], found["isl"], found["failure_rate"]) == ("gsm8k", None, None)
    _, verdict = judge_point(point, Outcome(), RUN)
    assert verdict.reason is Reason.NOTHING_COMPLETED


def test_slo_search() -> None:
    slo = Slo(ceilings=(("p99_ttft", 2.0),), high=256, floors=(("slo_best", 64.0),))
    point = make_point(kind="slo", slo=slo, gates=Gates(floors=(("tput_per_gpu", 1.0),)))
    assert effective_gates(point).floors == (("tput_per_gpu", 1.0), ("slo_best", 64.0))
    probes = (SloProbe(32, True, {"p99_ttft": 1.0}), SloProbe(48, True), SloProbe(64, False))
    best = good_json(max_concurrency=48)
    found, verdict = judge_point(point, outcome_of(best, slo_probes=probes), RUN)
    assert (found["slo_best"], found["conc"]) == (48, 48)
    assert [v.message for v in verdict.violations] == ["slo_best 48 is below the floor 64 (-25.0%)"]
    point = make_point(kind="slo", slo=Slo(ceilings=(("p99_ttft", 2.0),), high=256))
    _, verdict = judge_point(point, Outcome(slo_probes=(SloProbe(1, False),)), RUN)
    assert [v.message for v in verdict.violations] == ["no concurrency in 1..256 meets p99_ttft <= 2 s"]
