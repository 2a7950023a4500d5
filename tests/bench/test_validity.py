"""Validity before thresholds: each kind of wrong measurement has its own reason."""

from __future__ import annotations

from typing import Any

import pytest
from results.points import good_json, good_raw, make_deployment, make_load, make_point, raw_of

from pytest_gpubench.bench.result import RawResult
from pytest_gpubench.bench.validity import expected_output_tokens, input_band, output_band, validate
from pytest_gpubench.reasons import Reason


def reasons(raw: RawResult, **load: Any) -> list[Reason]:
    return [problem.reason for problem in validate([raw], make_point(load=make_load(**load)))]


def test_a_good_result_has_no_problem() -> None:
    assert validate([good_raw()], make_point()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"failed": 3}, Reason.PROMPTS_UNACCOUNTED),
        ({"completed": 120, "total_output_tokens": 122880}, Reason.PROMPTS_UNACCOUNTED),
        ({"total_output_tokens": 131071}, Reason.OUTPUT_TOKENS_OFF),
        ({"total_output_tokens": 131073}, Reason.OUTPUT_TOKENS_OFF),
        ({"total_output_tokens": 0}, Reason.OUTPUT_TOKENS_OFF),
        ({"total_output_tokens": ...}, Reason.OUTPUT_TOKENS_OFF),
        ({"total_input_tokens": 60000}, Reason.INPUT_TOKENS_OFF),
        ({"total_input_tokens": 300000}, Reason.INPUT_TOKENS_OFF),
        ({"mean_ttft_ms": float("nan")}, Reason.NOT_FINITE),
        ({"duration": float("inf")}, Reason.NOT_FINITE),
        ({"duration": 0.0}, Reason.BAD_DURATION),
        ({"duration": -3.0}, Reason.BAD_DURATION),
        ({"duration": ...}, Reason.BAD_DURATION),
        ({"duration": None}, Reason.BAD_DURATION),
        ({"model_id": "other/model"}, Reason.WRONG_MODEL),
        ({"max_concurrency": 32}, Reason.WRONG_LOAD),
        ({"max_concurrency": None}, Reason.WRONG_LOAD),
        ({"completed": ...}, Reason.UNREADABLE_RESULT),
    ],
)
def test_one_wrong_thing_gives_its_one_reason(changes: dict[str, Any], reason: Reason) -> None:
    assert reasons(good_raw(**changes)) == [reason]


def test_other_number_of_prompts_is_another_load() -> None:
    raw = good_raw(num_prompts=64, completed=64, total_output_tokens=65536, total_input_tokens=65536)
    assert reasons(raw) == [Reason.WRONG_LOAD]


def test_nothing_completed_is_invalid_whatever_else_the_file_says() -> None:
    raw = good_raw(completed=0, failed=128, total_output_tokens=0, total_input_tokens=0)
    assert reasons(raw) == [Reason.NOTHING_COMPLETED]


def test_a_non_finite_value_that_decides_nothing_is_no_problem() -> None:
    assert reasons(good_raw(burstiness=float("inf"), request_rate=float("inf"))) == []


def test_an_older_client_without_a_failed_count_is_not_invalid_by_that() -> None:
    lost = good_raw(failed=..., completed=120, total_output_tokens=122880, total_input_tokens=122880)
    assert reasons(lost) == []


def test_a_stale_file_is_nothing_but_stale() -> None:
    raw = RawResult("old.json", good_json(completed=0, model_id="other"), stale=True)
    (problem,) = validate([raw], make_point())
    assert problem.reason is Reason.STALE_RESULT
    assert "old.json is older than this run" in problem.message


def test_path_and_served_name_are_names_of_the_model() -> None:
    deployment = make_deployment(
        model_path="/scratch/models/Model-7B", serve_args=("--served-model-name", "Team Model")
    )
    point = make_point(deployment=deployment)
    for name in ("org/Model-7B", "/scratch/models/Model-7B", "Team Model"):
        assert validate([good_raw(model_id=name)], point) == []
    (problem,) = validate([good_raw(model_id="x")], point)
    assert "'x'" in problem.message
    assert "Team Model" in problem.message


def test_keys_that_a_file_lacks_prove_nothing() -> None:
    assert reasons(good_raw(model_id=..., max_concurrency=..., num_prompts=..., total_input_tokens=...)) == []


def test_output_tokens_are_not_judged_when_eos_counts_or_the_data_set_decides() -> None:
    raw = good_raw(total_output_tokens=90000)
    assert reasons(raw, ignore_eos=False) == []
    assert reasons(raw, dataset="sharegpt") == []
    assert expected_output_tokens(make_load(ignore_eos=False), 128) is None
    assert expected_output_tokens(make_load(), 128) == 131072
    assert expected_output_tokens(None, 128) is None


def test_zero_output_tokens_are_wrong_for_every_data_set() -> None:
    raw = good_raw(total_output_tokens=0)
    assert reasons(raw, ignore_eos=False, dataset="sharegpt") == [Reason.OUTPUT_TOKENS_OFF]


@pytest.mark.parametrize("how", [{"random_range_ratio": 0.5}, {"args": (("random-range-ratio", "0.5"),)}])
def test_a_range_ratio_widens_the_bands(how: dict[str, Any]) -> None:
    assert reasons(good_raw(total_output_tokens=100000, total_input_tokens=100000), **how) == []
    assert reasons(good_raw(total_output_tokens=60000), **how) == [Reason.OUTPUT_TOKENS_OFF]
    band = output_band(make_load(**how))
    assert band is not None
    assert (band.low, band.high) == (512, 1536)


def test_a_random_prefix_belongs_to_the_input() -> None:
    load = {"args": (("random-prefix-len", "512"),)}
    assert reasons(good_raw(total_input_tokens=128 * 1536), **load) == []
    assert reasons(good_raw(), **load) == [Reason.INPUT_TOKENS_OFF]


def test_bands_are_unknown_without_lengths() -> None:
    assert input_band(make_load(isl=None)) is None
    assert output_band(make_load(osl=None)) is None


def test_input_tokens_of_a_real_tokenizer_are_near_enough() -> None:
    load = {"isl": 32, "osl": 16, "num_prompts": 8, "concurrency": 4}
    raw = good_raw(
        num_prompts=8, completed=8, max_concurrency=4, total_input_tokens=259, total_output_tokens=128
    )
    assert reasons(raw, **load) == []


def test_prefix_cache_hits_above_the_limit_are_invalid_for_random_prompts() -> None:
    def found(rate: float | None, **load: Any) -> list[Reason]:
        point = make_point(load=make_load(**load))
        return [p.reason for p in validate([good_raw()], point, prefix_cache_hit_rates=[rate])]

    assert found(0.89) == [Reason.PREFIX_CACHE_HITS]
    assert found(0.02) == []
    assert found(None) == []
    assert found(0.89, measures_cache_hits=True) == []
    assert found(0.5, max_prefix_cache_hit_rate=0.6) == []


def test_every_repetition_is_judged_and_named() -> None:
    point = make_point(load=make_load(repetitions=3))
    problems = validate([good_raw(), good_raw(failed=1), good_raw()], point)
    assert [problem.message.split(":")[0] for problem in problems] == ["repetition 2 of 3"]
    (missing,) = validate([good_raw(), good_raw()], point)
    assert missing.message.startswith("2 of 3 repetitions")


def test_fc_09_unaccounted_prompts_are_named() -> None:
    content = {"num_prompts": 100, "completed": 90, "failed": 4, "duration": 4.0, "total_output_tokens": 1}
    problems = validate([raw_of(content)], make_point(load=make_load(num_prompts=100, ignore_eos=False)))
    assert [problem.reason for problem in problems] == [Reason.PROMPTS_UNACCOUNTED]
    assert "of 100 prompts 90 completed and 4 failed: 6 unaccounted for" in problems[0].message
