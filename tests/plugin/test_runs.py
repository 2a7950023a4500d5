"""Runs that build on each other: smoke, resume, comparison, repetition after failures, rejected points."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.mock import MockCluster, ServerExits

from .project import Project, Run, leftovers, recipe_text

FEW, MANY = "tp1-32x16-conc2", "tp1-32x16-conc4"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = Project(tmp_path_factory.mktemp("runs") / "project")
    found.recipe("load", "[2, 4]")
    return found


@pytest.fixture(scope="module")
def smoke(project: Project) -> Run:
    return project.run("--mock-slurm", "--workload=load", "--gpubench-smoke")


@pytest.fixture(scope="module")
def resumed(project: Project, smoke: Run) -> tuple[Run, dict[str, Any], str]:
    """The run, its ingest file, and the plan of the resumed point before it."""
    before = (smoke.results / "load" / FEW / "plan.json").read_text()
    run = project.run("--mock-slurm", "--workload=load", "--gpubench-resume", "-rs")
    return run, json.loads((run.results / "ingest.json").read_text()), before


@pytest.fixture(scope="module")
def dashboard() -> Iterator[socket.socket]:
    """Where rows would be posted; nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


@pytest.fixture(scope="module")
def compared(project: Project, resumed: tuple[Run, dict[str, Any], str], dashboard: socket.socket) -> Run:
    url = f"http://127.0.0.1:{dashboard.getsockname()[1]}/rows"
    baseline = json.loads(json.dumps(resumed[1]))
    baseline["rows"] = [row for row in baseline["rows"] if row["point"] == MANY]
    baseline["rows"][0]["tput_per_gpu"] *= 10
    project.write("base.json", json.dumps(baseline))
    return project.run(
        "--mock-slurm",
        "--workload=load",
        "--gpubench-compare=base.json",
        "--gpubench-compare-fail=tput_per_gpu:5%",
        "--gpubench-json=out/new.json",
        "--gpubench-html=out/report.html",
        "-rA",
        env=project.env(None, PERF_INGEST_URL=url, INGEST_BEARER_TOKEN="not-a-real-one"),
    )


def test_smoke_runs_the_smallest_point_of_each_deployment(smoke: Run) -> None:
    assert smoke.code == 0, smoke.out
    assert smoke.outcomes() == {f"test_serving[{FEW}]": "passed"}


def test_resume_measures_only_what_is_missing(resumed: tuple[Run, dict[str, Any], str]) -> None:
    run, ingest, plan_before = resumed
    assert run.code == 0, run.out
    assert run.outcomes() == {f"test_serving[{FEW}]": "skipped", f"test_serving[{MANY}]": "passed"}
    assert "already measured" in run.out
    assert [row["point"] for row in ingest["rows"]] == [FEW, MANY]
    first, second = ingest["rows"]
    assert first["run_id"] != second["run_id"] == ingest["run"]["run_id"]
    assert (run.results / "load" / FEW / "plan.json").read_text() == plan_before


def test_a_regression_fails_inside_the_test(compared: Run) -> None:
    assert compared.code == 1, compared.out
    assert compared.outcomes() == {f"test_serving[{FEW}]": "passed", f"test_serving[{MANY}]": "failure"}
    case = compared.cases()[f"workloads.load.yaml::test_serving[{MANY}]"]
    failure = case.find("failure")
    assert failure is not None
    assert "tput_per_gpu" in str(failure.text)
    assert "5%" in str(failure.text)


def test_a_missing_baseline_is_said(compared: Run) -> None:
    assert "no baseline" in compared.out


def test_outputs_go_where_the_options_say(compared: Run, project: Project) -> None:
    ingest = json.loads((project.folder / "out" / "new.json").read_text())
    rows = {row["point"]: row for row in ingest["rows"]}
    assert (rows[MANY]["status"], rows[MANY]["reason"]) == ("failed", "regression")
    assert rows[FEW]["status"] == "passed"
    assert "<html" in (project.folder / "out" / "report.html").read_text()
    assert f"report: {project.folder}/out/report.html" in compared.out


def test_simulated_rows_are_never_posted(compared: Run, dashboard: socket.socket) -> None:
    assert compared.rows
    with pytest.raises(BlockingIOError):
        dashboard.accept()
    assert "ingest:" not in compared.out


def test_ci_and_meta_are_recorded(project: Project, compared: Run) -> None:
    run = project.run(
        "--mock-slurm",
        "--workload=load",
        "--gpubench-smoke",
        "--gpubench-resume",
        "--gpubench-meta=branch=main",
        "--gpubench-meta=note=a=b",
        "--gpubench-json=out/meta.json",
        env=project.env(GITHUB_RUN_ID="77", GITHUB_RUN_ATTEMPT="3"),
    )
    assert run.code == 0, run.out
    block = json.loads((project.folder / "out" / "meta.json").read_text())["run"]
    assert block["meta"] == {"branch": "main", "note": "a=b"}
    assert block["ci"]["system"] == "github"
    assert block["run_id"] == "gh-77-3"
    assert block["recipes"]["load"]["sha256"]


# -- repetition --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, MockCluster]]:
    project = Project(tmp_path_factory.mktemp("repeated") / "project")
    project.recipe("unlucky", prompts=200, extra="gates: {floors: {tput_per_gpu: 1.0e+9}}\n")
    with project.cluster(ServerExits(match="*unlucky*-1", after_requests=20)) as cluster:
        run = project.run("--workload=unlucky", "--gpubench-retry-infra=2", env=project.env(cluster.env()))
        yield run, cluster


def test_an_infrastructure_failure_is_repeated_and_both_attempts_are_kept(
    repeated: tuple[Run, MockCluster],
) -> None:
    run, _ = repeated
    row = run.row("unlucky", MANY)
    first = json.loads((run.results / "unlucky" / MANY / "row-attempt-1.json").read_text())
    assert (first["status"], first["reason"], first["attempt"]) == ("error", "server_exited", 1)
    assert (row["run_id"], row["attempt"]) == (first["run_id"], 2)
    assert row["job_id"] != first["job_id"]
    assert row["completed"] == 200


def test_a_missed_gate_is_not_repeated(repeated: tuple[Run, MockCluster]) -> None:
    run, cluster = repeated
    row = run.row("unlucky", MANY)
    assert (row["status"], row["reason"], row["attempt"]) == ("failed", "gate_missed", 2)
    assert len({job.name for job in cluster.jobs()}) == len(cluster.jobs()) == 2
    assert run.code == 1
    assert leftovers(run) == []


def test_junit_has_the_last_attempts_properties_once(repeated: tuple[Run, MockCluster]) -> None:
    (case,) = repeated[0].cases().values()
    found = [(entry.get("name"), entry.get("value")) for entry in case.iter("property")]
    assert len(found) == len(dict(found))
    assert ("gpubench_attempt", "2") in found


# -- rejected points, points that cannot be served -----------------------------------------------------


@pytest.fixture
def partly(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    rule = "constraints:\n  - {when: {conc: 4}, require: {isl: 64}, reason: four need longer prompts}\n"
    project.recipe("partly", "[2, 4]", rule)
    return project


def test_a_rejected_point_is_a_collection_error_and_others_still_collect(partly: Project) -> None:
    run = partly.run("--workload=partly", "--gpubench-dry-run", "--continue-on-collection-errors")
    assert run.code == 1, run.out
    assert f"partly.yaml:7:49: point {MANY}: four need longer prompts" in run.out
    assert run.outcomes()[f"test_serving[{FEW}]"] == "skipped"
    assert "Traceback" not in run.out


def test_rejected_points_can_be_skipped(partly: Project) -> None:
    run = partly.run("--workload=partly", "--gpubench-dry-run", "--gpubench-skip-rejected", "-rs")
    assert run.code == 0, run.out
    assert run.outcomes() == {f"test_serving[{FEW}]": "skipped", f"test_serving[{MANY}]": "skipped"}
    plan = run.plan("partly", MANY)
    assert "four need longer prompts" in plan["rejected"]
    assert plan["serve_argv"] is None


def test_a_framework_that_cannot_be_served_here_gets_a_plan_without_commands(project: Project) -> None:
    master = """
    dsr1-fp8-h200-trt:
      image: nvcr.io/x/tensorrt-llm:1
      model: deepseek-ai/DeepSeek-R1-0528
      model-prefix: dsr1
      runner: h200
      precision: fp8
      framework: trt
      multinode: false
      scenarios:
        fixed-seq-len:
        - isl: 1024
          osl: 1024
          search-space:
          - {tp: 8, ep: 1, conc-start: 4, conc-end: 8}
    """
    project.write("master.yaml", master)
    run = project.run(
        "--gpubench-inferencex=master.yaml",
        "--workload=dsr1-*",
        "--gpubench-dry-run",
        "-rs",
        f"--gpubench-results={project.folder}/unserved",
    )
    assert run.code == 0, run.out
    plans = [json.loads(path.read_text()) for path in (project.folder / "unserved").rglob("plan.json")]
    assert len(plans) == 2
    for plan in plans:
        assert plan["servable"] is False
        assert plan["serve_argv"] is plan["bench_argv"] is plan["sbatch_argv"] is None
        assert plan["srun_argv"] == []
    assert not list((project.folder / "unserved").rglob("*.sbatch"))


def test_secret_values_are_masked_in_plans(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    text = recipe_text("masked").replace("vllm: {", "vllm: {env: {API_KEY: shown-never-1, MODE: fast}, ")
    project.write("workloads/masked.yaml", text)
    run = project.run("--workload=masked", "--gpubench-dry-run", env=project.env(HF_TOKEN="shown-never-2"))
    assert run.code == 0, run.out
    assert run.plan("masked", MANY)["env"] == {"API_KEY": "***", "MODE": "fast", "HF_TOKEN": "***"}
    kept = "".join(path.read_text() for path in run.results.rglob("*") if path.is_file())
    assert "shown-never" not in kept + run.out
