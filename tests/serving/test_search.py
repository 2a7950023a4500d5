"""The SLO search costs about log2 of the range, uses what is known, and finds the right value."""

from __future__ import annotations

import math

import pytest

from pytest_gpubench.recipe.types import Slo
from pytest_gpubench.serving.search import meets, search

SLO = Slo(ceilings=(("p99_ttft", 2.0),), low=1, high=1024)


def figures(limit: int, value: int) -> dict[str, float | None]:
    return {"p99_ttft": 1.0 if value <= limit else 3.0}


@pytest.mark.parametrize("limit", [1, 2, 5, 63, 64, 65, 700, 1023])
def test_the_highest_value_is_found_in_about_log2_probes(limit: int) -> None:
    asked: list[int] = []

    def probe(value: int) -> dict[str, float | None]:
        asked.append(value)
        return figures(limit, value)

    probes = search(SLO, probe, {})
    assert max(int(p.value) for p in probes if p.met) == limit
    assert len(asked) == len(set(asked))
    assert len(asked) <= math.log2(1024) + 2


def test_nothing_meets_and_everything_meets_cost_one_and_two_probes() -> None:
    assert [p.met for p in search(SLO, lambda v: figures(0, v), {})] == [False]
    assert [p.met for p in search(SLO, lambda v: figures(5000, v), {})] == [True, True]


def test_points_measured_before_are_reused() -> None:
    known = {64: figures(100, 64), 128: figures(100, 128)}
    asked: list[int] = []

    def probe(value: int) -> dict[str, float | None]:
        asked.append(value)
        return figures(100, value)

    probes = search(SLO, probe, known)
    assert max(int(p.value) for p in probes if p.met) == 100
    assert all(64 < value < 128 for value in asked)
    assert len(asked) <= 6


def test_a_missing_figure_meets_no_ceiling() -> None:
    assert not meets(SLO, {})
    assert not meets(SLO, {"p99_ttft": None})
