from __future__ import annotations

import time

import pytest
from recipe_helpers import Folder, head

from pytest_gpubench.recipe.expand import smoke
from pytest_gpubench.recipe.types import Recipe

SPACE = """
search_space:
  - isl: 1024
    osl: 1024
    points:
      - {tp: 8, conc: [4, 64]}
      - {tp: 4, conc: 4}
  - isl: 8192
    osl: 1024
    points:
      - {tp: 4, conc: 4}
"""
TP4 = """
constraints:
  - when: {tp: 4}
    require: {isl: 8192, osl: 1024}
    reason: TP=4 is tuned for 8192/1024 only
"""


def rejected(recipe: Recipe) -> list[str]:
    return [point.id for point in recipe.points if point.rejected is not None]


def test_the_guard_that_upstream_found_after_allocating(folder: Folder) -> None:
    recipe = folder.load(head() + TP4 + SPACE)
    assert rejected(recipe) == ["tp4-1k1k-conc4"]
    (point,) = (point for point in recipe.points if point.rejected)
    assert point.rejected == (
        "TP=4 is tuned for 8192/1024 only (this point has tp=4, isl=1024, osl=1024); "
        "allowed with tp 4: isl 8192, osl 1024; points of this recipe that are allowed: tp4-8k1k-conc4"
    )


def test_many_rejected_points_are_quick(folder: Folder) -> None:
    rows = "\n".join(f"      - {{tp: {(4, 8)[n % 2]}, conc: {n + 1}}}" for n in range(4000))
    text = f"{head()}{TP4}search_space:\n  - isl: 32\n    osl: 16\n    points:\n{rows}\n"
    start = time.perf_counter()
    recipe = folder.load(text)
    assert len(rejected(recipe)) == 2000
    assert time.perf_counter() - start < 3.0  # quadratic work would take a minute


def test_smoke_never_takes_a_rejected_point(folder: Folder) -> None:
    recipe = folder.load(head() + TP4 + SPACE)
    assert [point.id for point in smoke(recipe.points)] == ["tp8-1k1k-conc4", "tp4-8k1k-conc4"]
    only = SPACE.replace("tp: 8", "tp: 2").split("  - isl: 8192")[0]
    recipe = folder.load(head() + TP4 + only)
    assert [point.id for point in smoke(recipe.points)] == ["tp2-1k1k-conc4"]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (
            "{when: {tp: [4, 8]}, require: {isl: 8192}}",
            ["tp8-1k1k-conc4", "tp8-1k1k-conc64", "tp4-1k1k-conc4"],
        ),
        ("{when: {conc: {min: 5}}}", ["tp8-1k1k-conc64"]),
        ("{when: {conc: {max: 4}, tp: 8}}", ["tp8-1k1k-conc4"]),
        ("{when: {ep: true}}", []),
        ("{when: {ep: false, isl: 8192}}", ["tp4-8k1k-conc4"]),
        ("{require: {isl: 1024}}", ["tp4-8k1k-conc4"]),
        ("{when: {precision: fp8, tp: 4, isl: 1024}}", ["tp4-1k1k-conc4"]),
        (
            "{when: {deployment: tp4}, require: {num_prompts: {min: 41}}}",
            ["tp4-1k1k-conc4", "tp4-8k1k-conc4"],
        ),
        ("{when: {disagg: true}}", []),
        ("{when: {dp_attention: false, tp: 4, osl: 1024, isl: 8192}}", ["tp4-8k1k-conc4"]),
    ],
)
def test_conditions(folder: Folder, constraint: str, expected: list[str]) -> None:
    text = f"{head()}constraints: [{constraint[:-1]}, reason: because}}]{SPACE}"
    assert rejected(folder.load(text)) == expected


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ("{when: {tpp: 4}, reason: x}", "constraints[0].when.tpp: a point has no 'tpp'; did you mean 'tp'"),
        ("{when: {tp: {least: 4}}, reason: x}", "constraints[0].when.tp: expected a value, a list of values"),
        ("{when: {tp: []}, reason: x}", "expected a value"),
        ("{when: {tp: 4}}", "constraints[0].reason: is required and missing"),
        ("{reason: x}", "expected when, require or both"),
    ],
)
def test_constraints_that_say_nothing(folder: Folder, constraint: str, words: str) -> None:
    problem = folder.problem(f"{head()}constraints: [{constraint}]{SPACE}")
    assert problem.startswith("recipe.yaml:4:")
    assert words in problem


def test_a_search_for_the_best_concurrency_is_judged_by_what_it_has(folder: Folder) -> None:
    slo = "\nslo: {ceilings: {p99_ttft: 2.5}}\n"
    recipe = folder.load(head() + TP4 + slo + SPACE)
    assert rejected(recipe) == ["tp4-1k1k-conc4", "tp4-1k1k"]
    recipe = folder.load(f"{head()}constraints: [{{when: {{conc: {{min: 5}}}}, reason: x}}]{slo}{SPACE}")
    assert rejected(recipe) == ["tp8-1k1k-conc64"]
