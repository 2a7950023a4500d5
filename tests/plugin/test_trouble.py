"""Runs in which much goes wrong: verdicts, reasons, reports, and what runs on after it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from pytest_gpubench.mock import Call, EngineDeadButHealthy, LogNoise, RequestFailures, ServerExits

from .project import Project, Run, leftovers

GATES = """
gates:
  floors: {output_tput_per_gpu: 1.0e+9, request_throughput: 0.001}
  ceilings: {p99_ttft: 1.0e-9, mean_tpot: 10}
  references: {tput_per_gpu: {value: 1.0e+9, lower: -0.05, upper: 0.20}}
"""
FLAKY = """
search_space:
  - isl: 32
    osl: 16
    num_prompts: 8
    points:
      - {conc: [1], gates: {max_failure_rate: 0.5}}
      - {conc: [4]}
"""


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """The commands of the run, filled by it."""
    return []


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> Iterator[tuple[Run, Run]]:
    """Two runs at once on one cluster: one with servers that die, one with requests that fail."""
    project = Project(tmp_path_factory.mktemp("trouble") / "project")
    project.recipe("a_dies", "[2, 4]", prompts=100)
    project.recipe("b_broken", "[1, 2, 4]", nodes=2)
    flaky = project.recipe("c_flaky")
    flaky.write_text(flaky.read_text().split("search_space")[0] + FLAKY)
    project.recipe("d_gates", extra=GATES)
    project.recipe("e_empty")
    faults = [
        ServerExits(match="*a_dies*-1", code=3, after_requests=20, text="CUDA error: unspecified"),
        ServerExits(match="*b_broken*", rank=1, code=1, text="ImportError: libnccl.so.2"),
        LogNoise(match="*b_broken*"),
        RequestFailures(0.25, match="*c_flaky*"),
        EngineDeadButHealthy(after_requests=2, match="*e_empty*"),
    ]
    with project.cluster(*faults) as cluster:
        env = project.env(cluster.env())
        first = project.start("--workload=a_dies,b_broken,d_gates", "-vv", env=env)
        second = project.start("--workload=c_flaky,e_empty", "--gpubench-results=more", env=env)
        second.results = project.folder / "more"
        ended = first.end(), second.end()
        calls.extend(cluster.calls())
        yield ended


@pytest.fixture(scope="module")
def run(both: tuple[Run, Run]) -> Run:
    return both[0]


@pytest.fixture(scope="module")
def shaky(both: tuple[Run, Run]) -> Run:
    return both[1]


def text_of(run: Run, recipe: str, point: str, tag: str) -> str:
    """The text of a JUnit failure or error."""
    case = run.cases()[f"workloads.{recipe}.yaml::test_serving[{point}]"]
    found = case.find(tag)
    assert found is not None, ET.tostring(case)
    return found.text or ""


def kinds(run: Run) -> dict[str, str]:
    """``<recipe> conc<n>`` -> what JUnit has for it."""
    found = {}
    for name, case in run.cases().items():
        short = re.sub(r"workloads\.(\w+)\.yaml::test_serving\[tp\d-32x16-(conc\d)\]", r"\1 \2", name)
        tags = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[short] = " ".join(tags) or "passed"
    return found


def verdicts(run: Run) -> dict[str, str]:
    """``<recipe> conc<n>`` -> the reason in its row, else its status."""
    return {
        f"{row['workload']} conc{row['conc']}": str(row["reason"] or row["status"])
        for row in run.rows.values()
    }


def test_exit_1_and_every_point_has_its_row(run: Run, shaky: Run) -> None:
    assert run.code == pytest.ExitCode.TESTS_FAILED, run.out
    assert verdicts(run) == {
        "a_dies conc2": "server_exited",
        "a_dies conc4": "passed",
        "b_broken conc1": "server_exited",
        "b_broken conc2": "deployment_failed",
        "b_broken conc4": "deployment_failed",
        "d_gates conc4": "gate_missed",
    }
    assert shaky.code == pytest.ExitCode.TESTS_FAILED, shaky.out
    assert verdicts(shaky) == {
        "c_flaky conc1": "passed",
        "c_flaky conc4": "gate_missed",
        "e_empty conc4": "nothing_completed",
    }


def test_rows_tell_a_failure_from_an_error(run: Run, shaky: Run) -> None:
    status = {row["reason"]: row["status"] for found in (run, shaky) for row in found.rows.values()}
    assert status == {
        None: "passed",
        "gate_missed": "failed",
        "nothing_completed": "failed",
        "server_exited": "error",
        "deployment_failed": "error",
    }


def test_gates_are_failures_and_setup_errors_are_errors(run: Run, shaky: Run) -> None:
    assert kinds(run) == {
        "a_dies conc2": "failure",  # it was measuring: pytest has no errors there, the first line says so
        "a_dies conc4": "passed",
        "b_broken conc1": "error",
        "b_broken conc2": "error",
        "b_broken conc4": "error",
        "d_gates conc4": "failure",
    }
    assert kinds(shaky) == {"c_flaky conc1": "passed", "c_flaky conc4": "failure", "e_empty conc4": "failure"}


def test_all_missed_gates_stand_in_one_message_with_values_limits_units(run: Run) -> None:
    text = text_of(run, "d_gates", "tp1-32x16-conc4", "failure")
    first, *rest = text.splitlines()
    assert first == "3 gates missed:"
    assert re.fullmatch(
        r"  output_tput_per_gpu [\d.]+ tok/s/GPU is below the floor 1e\+09 tok/s/GPU .*", rest[0]
    )
    assert re.fullmatch(r"  p99_ttft [\d.]+ s is above the ceiling 1e-09 s .*", rest[1])
    assert "tput_per_gpu" in rest[2]
    assert "-5.0%" in rest[2]
    assert len(rest) == 3
    violations = run.row("d_gates", "tp1-32x16-conc4")["violations"]
    assert [(found["metric"], found["kind"], found["limit"]) for found in violations] == [
        ("output_tput_per_gpu", "floor", 1e9),
        ("p99_ttft", "ceiling", 1e-9),
        ("tput_per_gpu", "reference_lower", 0.95e9),
    ]


def test_failed_requests_are_counted_against_the_limit_of_the_point(shaky: Run) -> None:
    row = shaky.row("c_flaky", "tp1-32x16-conc4")
    assert row["failed"] >= 1
    assert row["failure_rate"] == row["failed"] / row["num_prompts"]
    text = text_of(shaky, "c_flaky", "tp1-32x16-conc4", "failure")
    assert f"({row['failed']}/8) is above max_failure_rate 0" in text
    assert shaky.row("c_flaky", "tp1-32x16-conc1")["failed"] >= 1


def test_an_invalid_measurement_has_no_numbers(shaky: Run) -> None:
    row = shaky.row("e_empty", "tp1-32x16-conc4")
    assert (row["completed"], row["failed"], row["failure_rate"]) == (0, 8, 1.0)
    assert row["mean_ttft"] is None
    assert row["tput_per_gpu"] is None
    text = text_of(shaky, "e_empty", "tp1-32x16-conc4", "failure")
    assert text.startswith("not a valid measurement [nothing_completed]: ")


def test_a_server_that_dies_during_load_says_rank_code_and_last_words_at_once(run: Run) -> None:
    text = text_of(run, "a_dies", "tp1-32x16-conc2", "failure")
    first = text.splitlines()[0]
    assert first.startswith("infrastructure error [server_exited] while benchmarking: ")
    assert re.search(
        r"rank-0 on gb300-0\d ended with exit code 3; last line: .*CUDA error: unspecified", first
    )
    assert "CUDA error: unspecified" in text.split("last lines of rank-0")[1]
    assert "CUDA error: unspecified" in run.out
    row = run.row("a_dies", "tp1-32x16-conc2")
    # It dies after a fifth of a load that takes a second.
    assert row["phase_seconds"]["bench"] < 5.0
    assert row["mean_ttft"] is None


def test_an_unhealthy_server_is_started_again_for_the_next_point(run: Run) -> None:
    first, second = (run.row("a_dies", f"tp1-32x16-conc{n}") for n in (2, 4))
    assert first["job_id"] != second["job_id"]


def test_a_deployment_that_cannot_start_fails_its_other_points_with_the_first_cause(
    run: Run, calls: list[Call]
) -> None:
    text = text_of(run, "b_broken", "tp2-32x16-conc4", "error")
    assert "deployment_failed" in text.splitlines()[0]
    assert "[server_exited]" in text.splitlines()[0]
    assert "rank-1" in text
    assert "libnccl" in text.split("last lines of rank-1")[1]
    submitted = [call for call in calls if call.argv[0] == "sbatch" and "b_broken" in " ".join(call.argv)]
    assert len(submitted) == 1


def test_noise_of_a_log_breaks_no_report(run: Run) -> None:
    data = run.junit.read_bytes()
    ET.fromstring(data.decode("utf-8"))
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", data)
    ingest = (run.results / "ingest.json").read_bytes().decode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", ingest)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(ingest, parse_constant=refuse)
    case = run.cases()["workloads.b_broken.yaml::test_serving[tp2-32x16-conc1]"]
    assert len(ET.tostring(case)) < 100_000


def test_nothing_is_a_traceback_or_a_warning_of_ours(run: Run) -> None:
    assert "Traceback" not in run.out
    assert "gpubench warning" not in run.out
    assert "suite.py" not in run.out


def test_the_table_and_the_headlines_tell_recipes_apart(run: Run) -> None:
    table = run.out.split("= gpubench =")[1]
    for recipe in ("a_dies", "b_broken", "d_gates"):
        assert f"\n{recipe}/tp" in table
    assert " d_gates: test_serving[tp1-32x16-conc4] " in run.out


def test_no_process_is_left(run: Run, shaky: Run) -> None:
    assert leftovers(run) == leftovers(shaky) == []
