"""What a project may replace without touching the plugin: fixtures, the suite, tests beside the recipes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpubench.mock import Call

from .project import Project, Run

POINT = "tp1-32x16-conc4"
CONFTEST = """
import dataclasses
import pytest

@pytest.fixture
def own_check(gpubench_point):
    if gpubench_point.deployment.recipe == "broken":
        raise RuntimeError("the project's own fixture failed")

@pytest.fixture
def gpubench_gates(gpubench_gates, gpubench_point, own_check):
    if gpubench_point.deployment.recipe != "strict":
        return gpubench_gates
    return dataclasses.replace(gpubench_gates, floors=(("output_throughput", 1e9),))

@pytest.fixture
def gpubench_server(gpubench_server, gpubench_point):
    print("before", gpubench_point.id, gpubench_server.url)
    yield gpubench_server
    if gpubench_point.deployment.recipe == "strict":
        raise RuntimeError("clean-up of the project failed")
"""
BESIDE = """
import pytest

@pytest.mark.gb300
def test_beside(): pass

@pytest.mark.h200
def test_elsewhere(): pass
"""
SUITE = '''
"""A suite of the project."""

def test_serving(gpubench_point, record_property):
    record_property("isl", gpubench_point.load.isl)
    assert gpubench_point.load.concurrency < 4, "too many"

def test_of_something_else(): raise AssertionError("is no point's test")

def helper(): raise AssertionError("is no test")
'''


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> Iterator[Run]:
    project = Project(tmp_path_factory.mktemp("overrides") / "project")
    project.recipe("strict")
    project.recipe("usual")
    project.recipe("broken")
    project.write("workloads/conftest.py", CONFTEST)
    project.write("workloads/test_beside.py", BESIDE)
    with project.cluster() as cluster:
        arguments = ("workloads", "--workload=strict,usual,broken", "-m", "gb300", "-rA")
        run = project.run(*arguments, env=project.env(cluster.env()))
        calls.extend(cluster.calls())
        yield run


def test_a_conftest_replaces_gates(run: Run) -> None:
    row = run.row("strict", POINT)
    assert (row["status"], row["violations"][0]["metric"]) == ("failed", "output_throughput"), run.out
    assert run.row("usual", POINT)["status"] == "passed"


def test_a_point_that_a_fixture_of_the_project_fails_has_its_row(run: Run) -> None:
    row = run.row("broken", POINT)
    assert (row["status"], row["reason"]) == ("error", "harness_error")
    assert "the project's own fixture failed" in row["message"]
    assert row["job_id"]
    case = run.cases()[f"workloads.broken.yaml::test_serving[{POINT}]"]
    assert [child.tag for child in case] == ["properties", "error"]


def test_a_conftest_wraps_the_server(run: Run) -> None:
    assert f"before {POINT} http://127.0.0.1:" in run.out


def test_tests_beside_the_recipes_run_too(run: Run) -> None:
    beside = {name: case for name, case in run.cases().items() if "test_beside" in name}
    assert list(beside) == ["workloads.test_beside::test_beside"]


def test_a_failing_clean_up_is_an_error_and_the_nodes_are_given_back(run: Run, calls: list[Call]) -> None:
    assert "RuntimeError: clean-up of the project failed" in run.out
    words = [" ".join(call.argv[:1]) for call in calls if call.argv[0] in ("sbatch", "scancel")]
    assert words.count("scancel") == words.count("sbatch")
    assert run.row("usual", POINT)["status"] == "passed"


def test_a_suite_of_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.recipe("own", "[2, 4]")
    project.write("my_suite.py", SUITE)
    project.write(
        "pytest.ini", "[pytest]\npythonpath = .\ngpubench_suite = my_suite\njunit_family = xunit1\n"
    )
    run = project.run("--workload=own", "--mock-slurm")
    assert run.code == 1, run.out
    assert run.outcomes() == {
        "test_serving[tp1-32x16-conc2]": "passed",
        "test_serving[tp1-32x16-conc4]": "failure",
    }
    assert "too many" in run.out
    assert not run.rows
