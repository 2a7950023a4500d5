"""Repetitions, seeds and the prefix-cache rate."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_gpubench.bench.prefix_cache import CacheCounters, hit_rate, parse_metrics, read_counters
from pytest_gpubench.bench.seeds import measure_seed, warmup_seed
from pytest_gpubench.bench.statistics import medians, spread, spreads, total

METRICS = r"""
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a \"b\" {c}"} 6926.0
vllm:prefix_cache_queries_total{engine="1",model_name="a"} 1e3 1767323045000
vllm:prefix_cache_hits_total{engine="0",model_name="a \"b\" {c}"} 768.0
vllm:prefix_cache_hits_total{engine="1",model_name="a"} 0
vllm:prefix_cache_hits_created{engine="0"} 1.7e9
garbage line {
vllm:prefix_cache_hits_total{engine="2" broken
vllm:other_total NaN
"""


def test_median_and_spread_of_three_runs() -> None:
    runs: list[dict[str, float | None]] = [{"a": 10.0, "b": 1.0}, {"a": 30.0, "b": None}, {"a": 20.0}]
    assert medians(runs) == {"a": 20.0, "b": None}
    found = spreads(runs)
    assert list(found) == ["a"]
    assert (found["a"].low, found["a"].high, found["a"].relative_iqr) == (10.0, 30.0, 0.5)


def test_one_run_has_figures_and_no_spread() -> None:
    assert medians([{"a": 0.1 + 0.2}]) == {"a": 0.1 + 0.2}
    assert spreads([{"a": 1.0}]) == {}
    assert medians([]) == {}


def test_spread_around_zero_has_no_relative_size() -> None:
    assert spread([0.0, 0.0, 0.0]).relative_iqr is None


def test_totals_are_unknown_when_a_part_is() -> None:
    assert total([1, 2]) == 3
    assert total([1, None]) is None
    assert total([]) is None


def test_seeds_are_distinct_in_range_and_never_a_warmup_seed() -> None:
    points = [f"tp2-1k1k-conc{n}" for n in range(200)]
    measured = {measure_seed(point, "flash", r) for point in points for r in range(3)}
    warm = {warmup_seed(point, "flash", r) for point in points for r in range(3)}
    assert len(measured) == len(warm) == 600
    assert not measured & warm
    assert all(0 <= seed < 2**31 for seed in measured | warm)
    assert measure_seed("a", "bc", 0) != measure_seed("ab", "c", 0)
    assert measure_seed("a", "b", 0, 1) != measure_seed("a", "b", 0)


def test_seeds_are_the_same_in_another_process() -> None:
    code = "from pytest_gpubench.bench.seeds import measure_seed; print(measure_seed('p', 'r', 1))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) == measure_seed("p", "r", 1)


def test_counters_are_read_per_engine() -> None:
    counters = read_counters(METRICS)
    assert counters is not None
    assert sorted(counters.queries.values()) == [1000.0, 6926.0]
    assert sorted(counters.hits.values()) == [0.0, 768.0]
    assert read_counters("nothing here") is None
    assert parse_metrics(METRICS, ["vllm:other_total"]) == {}


def test_rate_is_the_growth_over_all_engines() -> None:
    before = CacheCounters({"0": 10.0, "1": 0.0}, {"0": 100.0, "1": 50.0})
    after = CacheCounters({"0": 40.0, "1": 10.0}, {"0": 300.0, "1": 250.0})
    assert hit_rate(before, after) == 40 / 400
    late = CacheCounters({**after.hits, "2": 100.0}, {**after.queries, "2": 100.0})
    assert hit_rate(before, late) == 140 / 500


@pytest.mark.parametrize(
    "after",
    [
        None,
        CacheCounters({"0": 5.0}, {"0": 200.0}),  # a counter went back: the server restarted
        CacheCounters({"0": 20.0}, {"0": 100.0}),  # nothing was queried
        CacheCounters({"1": 20.0}, {"1": 200.0}),  # the engine is gone
        CacheCounters({"0": 900.0}, {"0": 200.0}),  # more hits than queries
    ],
)
def test_rate_is_unknown_when_the_readings_do_not_fit(after: CacheCounters | None) -> None:
    assert hit_rate(CacheCounters({"0": 10.0}, {"0": 100.0}), after) is None
    assert hit_rate(after, None) is None
