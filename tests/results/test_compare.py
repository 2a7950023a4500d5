"""Comparison with an earlier run: matching, direction, rules, doubts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError, OptionError
from pytest_gpubench.gates import Verdict
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import AccuracyTask, Gates
from pytest_gpubench.results.compare import Baseline, compare, compare_runs, load_baseline, parse_rules
from pytest_gpubench.results.outcome import AccuracyScore, Failure, Outcome
from pytest_gpubench.results.row import build_row, judge_point, with_verdict
from pytest_gpubench.results.store import ResultsStore
from pytest_gpubench.results.tables import comparison_table
from results.points import RUN, good_json, make_deployment, make_load, make_point, outcome_of


def row(
    deployment: dict[str, Any] | None = None, load: dict[str, Any] | None = None, **raw: Any
) -> dict[str, JSON]:
    point = make_point(deployment=make_deployment(**(deployment or {})), load=make_load(**(load or {})))
    return build_row(point, outcome_of(good_json(**raw)), RUN)


def base(*rows: dict[str, JSON]) -> Baseline:
    return Baseline("before.json", {}, rows)


def test_equal_runs_have_no_regression_and_no_doubt() -> None:
    found = compare(row(), base(row()), parse_rules(["tput_per_gpu:0%", "p99_ttft:0"]))
    assert (found.status, found.regressions, found.warnings) == ("compared", (), ())
    assert {delta.change for delta in found.deltas if delta.before} == {0.0}
    assert {delta.better for delta in found.deltas} == {None}


@pytest.mark.parametrize(
    ("changes", "rule", "regressed"),
    [
        ({"total_token_throughput": 3800.0}, "tput_per_gpu:5%", True),
        ({"total_token_throughput": 3900.0}, "tput_per_gpu:5%", False),
        ({"total_token_throughput": 9000.0}, "tput_per_gpu:5%", False),
        ({"p99_ttft_ms": 1100.0}, "p99_ttft:5", True),
        ({"p99_ttft_ms": 100.0}, "p99_ttft:5", False),
        ({"mean_tpot_ms": 40.0}, "mean_intvty:10%", True),
        ({"mean_tpot_ms": 10.0}, "mean_intvty:10%", False),
        ({"p99_ttft_ms": ...}, "p99_ttft:5%", True),
    ],
)
def test_each_metric_has_its_direction(changes: dict[str, Any], rule: str, regressed: bool) -> None:
    found = compare(row(**changes), base(row()), parse_rules([rule]))
    assert bool(found.regressions) == regressed
    assert found.status == ("regressed" if regressed else "compared")


def test_more_failures_are_worse_also_from_zero() -> None:
    point = make_point(gates=Gates(max_failure_rate=0.5))
    content = good_json(completed=64, failed=64, total_output_tokens=65536, total_input_tokens=65536)
    found = compare(build_row(point, outcome_of(content), RUN), base(row()), parse_rules(["failure_rate:5%"]))
    (violation,) = found.regressions
    assert violation.message == "failure_rate 0.5 against 0 (from zero), allowed are 5%"


def test_the_image_may_differ_and_is_named() -> None:
    old, new = row({"image": "img:1"}), row({"image": "img:2"})
    old.update({"device": "h200", "driver_version": "570", "gpu_names": ["H200", "H200"]})
    new.update({"driver_version": "580", "gpu_names": ["GB300"]})
    assert compare(new, base(old)).warnings == (
        "hardware differs: h200 -> gb300",
        "driver differs: 570 -> 580",
        "image differs: img:1 -> img:2",
    )


def test_a_baseline_without_the_point_is_said_and_is_no_regression() -> None:
    rules = parse_rules(["tput_per_gpu:1%"])
    for others in (
        base(),
        base(row(load={"concurrency": 32}, max_concurrency=32)),
        base({**row(), "simulated": True}),
        base(row(failed=1)),
    ):
        found = compare(row(), others, rules)
        assert (found.status, found.regressions) == ("no baseline", ())
        assert found.warnings[0].startswith("no baseline: before.json")


def test_other_arguments_match_by_labels_with_a_warning() -> None:
    found = compare(row({"serve_args": ("--enforce-eager",)}), base(row()))
    assert found.status == "compared"
    assert "the recipes differ" in found.warnings[0]


def test_several_candidates_are_told_apart_by_point_then_date() -> None:
    mine = row()
    same_labels = [
        {**row({"serve_args": ("--a",)}), "point": "other"},
        {**row({"serve_args": ("--b",)}, total_token_throughput=2048.0)},
    ]
    found = compare(mine, base(*same_labels))
    assert next(delta.before for delta in found.deltas if delta.metric == "tput_per_gpu") == 256.0
    twice = [
        {**row(), "date": "2026-01-01 00:00:00"},
        {**row(total_token_throughput=8.0), "date": "2026-02-01 00:00:00"},
    ]
    found = compare(mine, base(*twice))
    assert next(delta.before for delta in found.deltas if delta.metric == "tput_per_gpu") == 1.0
    ambiguous = [{**row({"serve_args": (name,)}), "point": name} for name in ("--a", "--b")]
    assert compare(mine, base(*ambiguous)).status == "no baseline"


def test_what_was_not_measured_is_not_compared() -> None:
    failure = Failure(Reason.NODE_FAILED, "n2")
    broken = build_row(make_point(), Outcome(failure=failure), RUN)
    assert compare(broken, base(row())).status == "not measured"
    assert compare(row(failed=1), base(row())).status == "not measured"


def test_a_metric_that_the_baseline_lacks_is_a_warning() -> None:
    found = compare(row(), base(row(p99_ttft_ms=...)), parse_rules(["p99_ttft:5%"]))
    assert found.status == "compared"
    assert "p99_ttft is not in the baseline" in found.warnings[-1]


def test_accuracy_is_compared_upwards() -> None:
    point = make_point(kind="accuracy", task=AccuracyTask("lm_eval", "gsm8k"))
    old, new = (
        build_row(point, Outcome(accuracy=(AccuracyScore("gsm8k", "em", value),)), RUN)
        for value in (0.9, 0.8)
    )
    found = compare(new, base(old), parse_rules(["accuracy:5%"]))
    assert [violation.metric for violation in found.regressions] == ["gsm8k em"]
    assert compare(old, base(new), parse_rules(["accuracy:5%"])).regressions == ()


def test_a_regression_fails_the_test_and_the_row() -> None:
    point = make_point()
    _, verdict = judge_point(point, outcome_of(good_json()), RUN)
    found = compare(row(total_token_throughput=1.0), base(row()), parse_rules(["tput_per_gpu:5%"]))
    failed = found.apply(verdict)
    judged_again = with_verdict(row(), failed, found.as_json())
    assert (judged_again["status"], judged_again["reason"]) == ("failed", "regression")
    assert isinstance(judged_again["comparison"], dict)
    assert judged_again["comparison"]["status"] == "regressed"
    assert (failed.status, failed.reason) == ("failed", Reason.REGRESSION)
    assert failed.message.startswith(
        "regression: tput_per_gpu 0.125 tok/s/GPU against 512 tok/s/GPU (-100.0%)"
    )
    missed = Verdict("failed", Reason.GATE_MISSED, "gate missed: x", expected=True)
    both = found.apply(missed)
    assert (both.reason, both.expected) == (Reason.GATE_MISSED, False)
    assert both.message.startswith("gate missed: x\nregression: ")
    error = Verdict("error", Reason.NODE_FAILED, "n2")
    assert found.apply(error) is error
    assert replace(found, regressions=()).apply(verdict) is verdict


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tput_per_gpu", "expected METRIC:PERCENT"),
        (":5%", "expected METRIC:PERCENT"),
        ("tput_per_gpu:", "is no percentage"),
        ("tput_per_gpu:five", "is no percentage"),
        ("tput_per_gpu:-5%", "is no percentage"),
        ("tput_per_gpu:nan", "is no percentage"),
        ("tput_per_gpu:5%%", "is no percentage"),
        ("tput_pergpu:5%", "did you mean tput_per_gpu"),
        ("zzz:5%", "metric names are those of the rows"),
        ("prefix_cache_hit_rate:5%", "neither a higher nor a lower"),
    ],
)
def test_bad_rules_are_usage_errors(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_rules([text])


def test_a_baseline_is_read_from_an_ingest_file(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.write_row(row())
    baseline = load_baseline(store.assemble({"run_id": "run-1"}, run_id="run-1"))
    assert baseline.run == {"run_id": "run-1"}
    assert compare(row(), baseline).status == "compared"
    with pytest.raises(GpubenchError, match="no such ingest file"):
        load_baseline(tmp_path / "none.json")


def test_tables_show_figures_changes_and_notes() -> None:
    before = base(row(), row(load={"concurrency": 32}, max_concurrency=32))
    after = base(row(total_token_throughput=2048.0), row(load={"isl": 512}, total_input_tokens=65536))
    found = compare_runs(before, after, parse_rules(["tput_per_gpu:5%"]))
    assert [one.status for one in found] == ["regressed", "no baseline"]
    plain = comparison_table(found)
    assert "tput_per_gpu" in plain
    assert "512 tok/s/GPU" in plain
    assert "-50.0%  REGRESSED" in plain
    assert "no baseline: before.json" in plain
    lines = comparison_table(found, markdown=True).splitlines()
    assert lines[0] == "| workload | point | metric | before | after | change |  |"
    assert lines[1].count("|") == 8
    assert any(line.startswith("- flash ") for line in lines)
    only = comparison_table(found, metrics=["p99_tpot"])
    assert "median_ttft" not in only
    assert "p99_tpot" in only
    json_form = found[0].as_json()
    assert json_form["status"] == "regressed"
