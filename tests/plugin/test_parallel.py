"""Under xdist: the same rows, one file, whole deployments, and nothing left by a worker that crashed."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.mock import MockCluster

from .project import REPOSITORY, Project, Run, leftovers

MEASURED = ("tput", "throughput", "ttft", "tpot", "itl", "e2el", "intvty", "duration", "_seconds", "seconds_")
OF_A_RUN = {"date", "run_id", "job_id", "nodelist", "started", "ended", "spread", "gpu_names"}
CRASH = """
import os
import pytest

@pytest.fixture
def gpubench_gates(gpubench_gates, gpubench_point):
    if gpubench_point.deployment.recipe == "crashes":
        os._exit(9)
    return gpubench_gates
"""


def stable(row: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when and where a row was measured."""
    return {
        name: value
        for name, value in row.items()
        if name not in OF_A_RUN and not any(word in name for word in MEASURED)
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The repository's tiny recipes, serial and on two workers."""
    found = []
    for name, parallel in (("serial", ()), ("parallel", ("-n", "2"))):
        project = Project(tmp_path_factory.mktemp(name) / "project")
        results = f"--gpubench-results={project.folder}/results"
        arguments = ("--mock-slurm", "--workload=tiny_opt*", results, *parallel)
        found.append(project.start(*arguments, cwd=REPOSITORY))
    serial, parallel_run = (running.end() for running in found)
    return serial, parallel_run


def test_two_workers_give_the_rows_of_one(runs: tuple[Run, Run]) -> None:
    serial, parallel = runs
    assert serial.code == 0, serial.out
    assert parallel.code == 0, parallel.out
    assert list(parallel.rows) == list(serial.rows)
    assert len(serial.rows) == 2
    for name, row in serial.rows.items():
        assert stable(parallel.rows[name]) == stable(row)
        assert set(parallel.rows[name]) == set(row)


def test_there_is_one_ingest_file_of_one_run(runs: tuple[Run, Run]) -> None:
    results = runs[1].results
    assert [path.relative_to(results).as_posix() for path in results.rglob("ingest*.json")] == ["ingest.json"]
    ingest = json.loads((results / "ingest.json").read_text())
    assert {row["run_id"] for row in ingest["rows"]} == {ingest["run"]["run_id"]}


def test_reports_are_the_same(runs: tuple[Run, Run]) -> None:
    serial, parallel = ({name: properties(case) for name, case in run.cases().items()} for run in runs)
    assert set(parallel) == set(serial)
    for name, found in parallel.items():
        assert set(found) == set(serial[name])
        assert found["gpubench_status"] == "passed"
    assert "tiny_opt_2node/tp2-32-in-16-out-conc-4" in runs[1].out.split("= gpubench (simulated) =")[1]


def properties(case: Any) -> dict[str, str]:
    return {str(entry.get("name")): str(entry.get("value")) for entry in case.iter("property")}


def test_no_process_is_left(runs: tuple[Run, Run]) -> None:
    assert [leftovers(run) for run in runs] == [[], []]


# -- one allocation per deployment; a worker that crashes ---------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, MockCluster]]:
    project = Project(tmp_path_factory.mktemp("shared") / "project")
    project.recipe("sweep", "[1, 2, 4, 8]", nodes=2)
    project.recipe("crashes")
    project.write("conftest.py", CRASH)
    with project.cluster() as cluster:
        arguments = ("-n", "3", "--workload=sweep,crashes", "-v")
        yield project.run(*arguments, env=project.env(cluster.env())), cluster


def test_fc_41_a_deployment_has_one_allocation_however_many_workers(shared: tuple[Run, MockCluster]) -> None:
    run, cluster = shared
    jobs = [job for job in cluster.jobs() if "sweep" in job.name]
    assert len(jobs) == 1, run.out
    rows = [row for row in run.rows.values() if row["workload"] == "sweep"]
    assert len(rows) == 4
    assert {row["status"] for row in rows} == {"passed"}
    assert {row["job_id"] for row in rows} == {str(jobs[0].id)}
    # Never two loads at once on one server.
    times = sorted((row["started"], row["ended"]) for row in rows)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times))


def test_a_worker_that_crashes_leaves_no_job_and_its_point_has_a_row(shared: tuple[Run, MockCluster]) -> None:
    run, cluster = shared
    assert run.code == 1, run.out
    assert [job.state for job in cluster.jobs() if not job.ended] == []
    assert run.row("crashes", "tp1-32x16-conc4")["status"] == "error"
    assert leftovers(run) == []


# -- collection ---------------------------------------------------------------------------------------


def test_fc_39_workers_collect_the_same_ids_in_the_same_order(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    names = [f"recipe_{number:02d}" for number in range(12)]
    random.Random(7).shuffle(names)
    for name in names:
        project.recipe(name, "[1, 2, 4]")
    env = project.env(None, PYTHONHASHSEED="random")
    listed = project.run("--workload=recipe_*", "--collect-only", "-q", env=env)
    ids = [line for line in listed.out.splitlines() if "::" in line]
    assert ids == [
        f"workloads/recipe_{number:02d}.yaml::test_serving[tp1-32x16-conc{conc}]"
        for number in range(12)
        for conc in (1, 2, 4)
    ]
    run = project.run("--workload=recipe_*", "--gpubench-dry-run", "-n", "4", env=env)
    assert run.code == 0, run.out
    assert "Different tests were collected" not in run.out
    assert "36 skipped" in run.out
    assert len(list(run.results.rglob("plan.json"))) == 36


# -- an interrupted run -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    project = Project(tmp_path / "project")
    project.recipe("long", prompts=80_000)
    with project.cluster() as cluster:
        running = project.start("--workload=long", env=project.env(cluster.env()))
        running.wait_for("ready: after")
        running.process.send_signal(number)
        run = running.end(30)
        assert run.code == pytest.ExitCode.INTERRUPTED, run.out
        assert [job.id for job in cluster.jobs() if not job.ended] == []
        assert [call.argv[0] for call in cluster.calls("scancel")] == ["scancel"]
    row = run.row("long", "tp1-32x16-conc4")
    assert (row["status"], row["reason"]) == ("error", "interrupted")
    assert leftovers(run) == []
