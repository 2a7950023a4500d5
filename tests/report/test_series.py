"""Curves, fronts, gate lines and bars: the pure part of the report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.results.report.limits import find_limits
from pytest_gpubench.results.report.series import load_name, make_series, pareto_front
from pytest_gpubench.results.report.timeline import allocations
from report.demo import demo_rows

Row = dict[str, JSON]
FIGURES = st.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 1))


def row(**values: JSON) -> Row:
    base: Row = {
        "workload": "w", "deployment": "d", "point": "p", "isl": 1024, "osl": 1024, "status": "passed",
        "tput_per_gpu": 100.0, "median_intvty": 50.0, "median_ttft": 0.5, "failure_rate": 0.0,
    }  # fmt: skip
    return {**base, **values}


def test_a_front_keeps_what_nothing_beats() -> None:
    points = [(10.0, 1.0), (5.0, 5.0), (4.0, 4.0), (1.0, 10.0), (1.0, 9.0)]
    assert pareto_front(points, higher_x=True) == [3, 1, 0]
    # With lower x better, the point furthest left and highest beats all others.
    assert pareto_front(points, higher_x=False) == [3]
    assert pareto_front([], higher_x=True) == []


@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=30), st.booleans())
def test_a_front_is_exactly_the_undominated_points(points: list[tuple[float, float]], higher: bool) -> None:
    sign = 1 if higher else -1
    front = pareto_front(points, higher_x=higher)

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a != b and sign * a[0] >= sign * b[0] and a[1] >= b[1]

    for index, point in enumerate(points):
        undominated = not any(beats(other, point) for other in points)
        assert undominated == any(points[kept] == point for kept in front), index
    xs = [points[index][0] for index in front]
    assert xs == sorted(xs)
    assert len(set(xs)) == len(xs)


def test_series_never_mix_runs_deployments_or_loads() -> None:
    runs = [
        [row(), row(osl=200), row(deployment="other"), row(tput_per_gpu=None)],
        [row(), row(workload="v")],
    ]
    found = [(s.run, s.workload, s.deployment, s.load, s.indices) for s in make_series(runs)]
    assert found == [
        (0, "w", "d", "1k1k", (0,)),
        (0, "w", "d", "1024x200", (1,)),
        (0, "w", "other", "1k1k", (2,)),
        (1, "w", "d", "1k1k", (4,)),
        (1, "v", "d", "1k1k", (5,)),
    ]


def test_a_point_that_dropped_requests_is_on_no_front() -> None:
    fast = row(tput_per_gpu=900.0, median_intvty=90.0, failure_rate=0.3, status="failed")
    honest = row(tput_per_gpu=500.0)
    (series,) = make_series([[fast, honest, row(tput_per_gpu=300.0, median_intvty=80.0, status="failed")]])
    # A missed gate alone does not take a point off its curve.
    assert series.fronts["tput_per_gpu median_intvty"] == (1, 2)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"isl": 8192, "osl": 1024}, "8k1k"),
        ({"isl": 1000, "osl": 200}, "1000x200"),
        ({"isl": 1024, "osl": 1}, "1024x1"),
        ({"isl": None, "osl": None, "scenario": "agentic-coding"}, "agentic-coding"),
        ({"isl": None, "osl": None, "kind": "accuracy"}, "accuracy"),
    ],
)
def test_load_names_are_those_of_point_ids(values: Row, name: str) -> None:
    assert load_name(values) == name


def test_limits_come_from_gates_plans_and_violations_once() -> None:
    gates: JSON = {
        "floors": {"tput_per_gpu": 90.0, "duration": 3},
        "ceilings": {"p99_ttft": 2.5},
        "references": {"output_tput_per_gpu": {"value": 1000, "lower": -0.05, "upper": None}},
    }
    violation: JSON = {"metric": "tput_per_gpu", "kind": "floor", "limit": 90.0, "value": 1.0}
    rows = [row(gates=gates), row(violations=[violation]), row(deployment="e", point="q")]
    found = find_limits(rows, {("w", "q"): {"ceilings": {"p99_ttft": 2.5}}})
    assert [(limit.metric, limit.kind, limit.value) for limit in found] == [
        ("tput_per_gpu", "floor", 90.0),
        ("p99_ttft", "ceiling", 2.5),
        ("output_tput_per_gpu", "floor", 950.0),
    ]
    assert found[0].label == "floor 90 tok/s/GPU (d 1k1k)"
    assert found[1].label == "ceiling 2.5 s"  # every deployment has it


@pytest.mark.parametrize("gates", [None, [], "x", {"floors": [1]}, {"references": {"tput_per_gpu": 3}}])
def test_odd_gates_are_no_limits(gates: JSON) -> None:
    assert find_limits([row(gates=gates, violations="nonsense")]) == []


def test_an_allocation_is_the_largest_time_of_each_phase() -> None:
    (first, second, third) = allocations([demo_rows()])
    assert first.name == "tp8 · job 48211"
    assert first.nodes == ("gb300-06", "gb300-07")
    assert first.seconds["load"] == 402.0
    held = 64 + 402 + 21 + first.seconds["bench"] + 9
    assert first.measured_share == pytest.approx(first.seconds["bench"] / held)
    assert (second.deployment, third.deployment) == ("tp2-dp4", "dp8")


def test_a_deployment_that_waited_only_has_no_share() -> None:
    (bar,) = allocations([[row(phase_seconds={"queue": 60.0, "load": None}, job_id="7")]])
    assert bar.seconds == {"queue": 60.0}
    assert bar.measured_share is None
    assert allocations([[row(), row(phase_seconds=None)]]) == []
