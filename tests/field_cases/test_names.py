"""Ids that can be typed and stay what they are, and names that select nothing."""

from __future__ import annotations

import re

import pytest
from plugin.project import Project, recipe_text

from .cases import Recipes, environment, workload
from .cases import recipe_text as text_of


def ids(out: str) -> list[str]:
    """The node ids that ``--collect-only -q`` lists."""
    return [line for line in out.splitlines() if "::" in line]


def space(points: str) -> str:
    """A search space of one pair of lengths."""
    return f"search_space: [{{isl: 32, osl: 16, points: {points}}}]\n"


def test_fc_43_equal_points_are_one_error_that_names_both(recipes: Recipes) -> None:
    found = workload("FC-43")
    rates = [point["rate"] for point in found["search_space"]]
    assert rates == [1, 1.0, "inf"]
    points = "[{conc: 8, request_rate: 1}, {conc: 8, request_rate: 1.0}, {conc: 8, request_rate: inf}]"
    (problem,) = recipes.problems(text_of(rest=space(points)))
    second, first = "case.yaml:5:72: search_space[0].points[1]: ", "case.yaml:5:44 already gives"
    assert problem.startswith(second)
    assert first in problem


def test_fc_43_every_id_works_after_k_and_as_a_node_id(project: Project) -> None:
    model = workload("FC-43")["model"]
    for number, points in enumerate(("[{conc: 8}]", "[{conc: 4}, {conc: 8, request_rate: 1}, {conc: 8}]")):
        text = text_of(model=f"'{model}'", rest=space(points))
        project.write(f"workloads/ids{number}.yaml", text.replace("SITE", "GB300_SLURM"))
    listed = ids(project.run("--workload=ids0,ids1", "--collect-only", "-q", env=project.env()).out)
    names = [re.sub(r".*::test_serving\[(.*)\]", r"\1", line) for line in listed]
    assert len(names) == len(set(listed)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) and ".." not in name for name in names)
    # Points added elsewhere rename nobody.
    assert names[0] in names[1:]
    for line, name in zip(listed[1:], names[1:], strict=True):
        one = ids(project.run("--workload=ids1", "--collect-only", "-q", line, env=project.env()).out)
        assert one == [line]
        chosen = project.run("--workload=ids1", "--collect-only", "-q", "-k", name, env=project.env())
        assert line in ids(chosen.out)


def test_fc_44_an_unknown_name_is_a_usage_error_beside_known_ones(project: Project) -> None:
    wrong = environment("FC-44")["WORKLOADS"]
    project.write("workloads/deepseek_v4_flash_gb300.yaml", recipe_text("deepseek_v4_flash_gb300"))
    for names in (wrong, f"deepseek_v4_flash_gb300,{wrong}"):
        run = project.run(env=project.env(None, WORKLOADS=names))
        assert run.code == pytest.ExitCode.USAGE_ERROR, run.out
        assert wrong in run.out
        assert "deepseek_v4_flash_gb300" in run.out.replace(names, "")


@pytest.mark.parametrize("rest", ["search_space: []\n", ""])
def test_fc_44_a_recipe_that_measures_nothing_is_a_collection_error(project: Project, rest: str) -> None:
    text = text_of(rest=rest).replace("SITE", "GB300_SLURM") if rest else ""
    project.write("workloads/nothing.yaml", text)
    run = project.run("--workload=nothing", env=project.env())
    assert run.code == pytest.ExitCode.INTERRUPTED, run.out
    assert "nothing.yaml" in run.out
    assert "skipped" not in run.out


def test_fc_44_a_filter_that_deselects_all_keeps_exit_5(project: Project) -> None:
    project.recipe("some")
    run = project.run("--workload=some", "-k", "conc99", env=project.env())
    assert run.code == pytest.ExitCode.NO_TESTS_COLLECTED, run.out
