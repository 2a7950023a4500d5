"""InferenceX's master files: keys selected on the command line become recipes, topologies become tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugin.project import Project, Run

from .conftest import DATA

CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "inferencex" / "inferencex_cases.yaml").read_text())
PROFILES = """
runners: {gb200: GB200, b300: B300, b300-nv: B300}
B300: {runtime: slurm, slurm: {partition: batch, gres: "gpu:8"}}
GB200: {runtime: slurm, slurm: {partition: batch, gres: "gpu:4"}}
"""


def case(name: str) -> dict[str, Any]:
    return next(item for item in CASES if item["id"] == name)


@pytest.fixture
def master(project: Project) -> Path:
    """A master file with the real entries (of two revisions of one key the later one)."""
    entries = {item["key"]: item["entry"] for item in CASES}
    path = project.write("configs/nvidia-master.yaml", yaml.safe_dump(entries, sort_keys=False))
    project.write("configs/gpu_profiles.yaml", PROFILES)
    project.write("configs/runners.yaml", (DATA / "inferencex" / "runners.yaml").read_text())
    return path


def ix(project: Project, keys: str, *arguments: str) -> Run:
    files = (
        "--gpubench-inferencex",
        "configs/nvidia-master.yaml",
        "--gpubench-runners",
        "configs/runners.yaml",
    )
    return project.run(*files, "--workload", keys, *arguments)


def collected(run: Run) -> list[str]:
    return [
        line.strip() for line in run.out.splitlines() if line.startswith("configs/") and "::test_" in line
    ]


def test_one_test_per_topology_and_concurrency(project: Project, master: Path) -> None:
    run = ix(project, "*", "--collect-only", "-q")
    assert run.code == 0, run.out
    ids = collected(run)
    assert len(ids) == len(set(ids))
    latest = {item["key"]: item for item in CASES}
    for key, item in latest.items():
        own = [node for node in ids if node.startswith(f"configs/nvidia-master.yaml::{key}::test_serving[")]
        assert len(own) == item["concurrency_points"], key
    assert len(ids) == sum(item["concurrency_points"] for item in latest.values())


def test_a_glob_selects_keys(project: Project, master: Path) -> None:
    run = ix(project, "dsr1-fp8-b300-*", "--collect-only", "-q")
    ids = collected(run)
    assert len(ids) == case("IX-03")["concurrency_points"]
    assert all("::dsr1-fp8-b300-sglang::" in node for node in ids)


def test_an_unknown_key_is_a_usage_error_with_near_keys(project: Project, master: Path) -> None:
    run = ix(project, "dsr1-fp8-b300-sglnag", "--collect-only")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "has no config key 'dsr1-fp8-b300-sglnag'; did you mean 'dsr1-fp8-b300-sglang'" in run.out


def test_without_a_key_it_says_what_is_missing(project: Project, master: Path) -> None:
    run = project.run("--gpubench-inferencex", "configs/nvidia-master.yaml")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "--workload KEY" in run.out


def test_a_node_id_selects_its_key(project: Project, master: Path) -> None:
    node = collected(ix(project, "dsr1-fp8-b300-*", "--collect-only", "-q"))[0]
    run = project.run("--gpubench-inferencex", "configs/nvidia-master.yaml", node, "--collect-only", "-q")
    assert collected(run) == [node]


def test_a_dry_run_plans_every_point_also_those_that_cannot_be_served(project: Project, master: Path) -> None:
    run = ix(project, "*", "--gpubench-dry-run", "-q")
    assert run.code == 0, run.out
    assert set(run.outcomes().values()) == {"skipped"}
    for item in {item["key"]: item for item in CASES}.values():
        plans = [json.loads(path.read_text()) for path in (run.results / item["key"]).glob("*/plan.json")]
        assert len(plans) == item["concurrency_points"]
        for plan in plans:
            assert plan["framework"] == item["entry"]["framework"]
            if plan["servable"]:
                assert plan["serve_argv"][:2] == ["vllm", "serve"]
            else:
                assert (plan["serve_argv"], plan["sbatch_argv"], plan["srun_argv"]) == (None, None, [])
                assert plan["unservable_reason"]


def test_prefill_and_decode_keep_inferencexs_keys(project: Project, master: Path) -> None:
    item = case("IX-01")
    run = ix(project, item["key"], "--gpubench-dry-run")
    (path,) = (run.results / item["key"]).glob("*/plan.json")
    plan = json.loads(path.read_text())
    (expected,) = item["expected_points"]
    for role in ("prefill", "decode"):
        assert {name: plan[role][name] for name in expected[role]} == expected[role]
    assert (plan["num_nodes"], plan["gpus_per_node"], plan["gpu_count"]) == (8, 4, 32)
    assert (plan["servable"], plan["concurrency"]) == (False, 4096)
    assert plan["metadata"]["disagg"] is True


def test_both_forms_of_a_multi_node_topology(project: Project, master: Path) -> None:
    item = case("IX-06")
    run = ix(project, item["key"], "--gpubench-dry-run")
    plans = [json.loads(path.read_text()) for path in (run.results / item["key"]).glob("*/plan.json")]
    wanted = [(point, conc) for point in item["expected_points"] for conc in point["conc"]]
    assert len(plans) == len(wanted)
    for point, conc in wanted:
        matching = [
            plan
            for plan in plans
            if plan["concurrency"] == conc
            and (plan["isl"], plan["osl"]) == (point["isl"], point["osl"])
            and all(
                {name: plan[role].get(name) for name in point[role]} == point[role]
                for role in ("prefill", "decode")
            )
        ]
        assert len(matching) == 1, (point, conc)


def test_what_cannot_be_served_is_skipped_with_the_framework_as_reason(
    project: Project, master: Path
) -> None:
    keys = f"{case('IX-01')['key']},{case('IX-03')['key']}"
    run = ix(project, keys, "--mock-slurm", "-rs")
    assert run.code == 0, run.out
    assert set(run.outcomes().values()) == {"skipped"}
    assert "framework sglang is not served here, only vllm is" in run.out
    assert "framework llm-d-vllm brings its own router" in run.out
    assert run.rows == {}


def test_vllm_points_run_on_the_mock_under_xdist(project: Project, master: Path) -> None:
    entries = yaml.safe_load(master.read_text())
    space = [{"tp": 4, "conc-list": [1, 2]}, {"tp": 8, "ep": 8, "conc-start": 1, "conc-end": 3}]
    lengths = {"isl": 32, "osl": 16, "search-space": space}
    short = {**entries[case("IX-07")["key"]], "scenarios": {"fixed-seq-len": [lengths]}}
    master.write_text(yaml.safe_dump({**entries, "short": short}, sort_keys=False))
    run = ix(project, "short,dsr1-fp8-b300-sglang", "--mock-slurm", "-n", "2")
    assert run.code == 0, run.out
    assert set(run.rows) == {
        "short/tp4-32x16-conc1",
        "short/tp4-32x16-conc2",
        "short/tp8-ep8-32x16-conc1",
        "short/tp8-ep8-32x16-conc2",
        "short/tp8-ep8-32x16-conc3",
    }
    for row in run.rows.values():
        assert (row["status"], row["simulated"], row["device"]) == ("passed", True, "b300")
    assert run.row("short", "tp4-32x16-conc1")["gpu_count"] == 4


def test_one_bad_key_does_not_stop_the_others(project: Project, master: Path) -> None:
    entries = yaml.safe_load(master.read_text())
    entries["broken"] = {**entries["dsv4-fp4-b300-vllm"], "precison": "fp4"}
    master.write_text(yaml.safe_dump(entries, sort_keys=False))
    run = ix(project, "broken,dsv4-fp4-b300-vllm", "--gpubench-dry-run", "--continue-on-collection-errors")
    assert run.code == pytest.ExitCode.TESTS_FAILED
    assert "broken.precison: unknown key 'precison'; did you mean 'precision'" in run.out
    assert "Traceback" not in run.out
    assert len(list((run.results / "dsv4-fp4-b300-vllm").glob("*/plan.json"))) == 13
    run = ix(project, "dsv4-fp4-b300-vllm", "--collect-only", "-q")
    assert (run.code, len(collected(run))) == (0, 13)


def test_an_imported_entry_is_a_recipe_that_pytest_collects(project: Project, master: Path) -> None:
    key = case("IX-07")["key"]
    from pytest_gpubench.cli.import_ import run as import_

    code = import_(["inferencex", str(master), key, "--out", str(project.workloads / "imported.yaml")])
    assert code == 0
    project.write("workloads/gpu_profiles.yaml", PROFILES)
    run = project.run("--workload=imported", "--collect-only", "-q")
    assert run.code == 0, run.out
    points = [line for line in run.out.splitlines() if line.startswith("workloads/imported.yaml::")]
    assert len(points) == case("IX-07")["concurrency_points"]
