"""perf-eval's recipes as they are, in folders of their own: collected and planned by pytest from outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from plugin.project import Project, Run

from .conftest import DATA

REVISIONS = ("main", "gb300-slurm-pyxis", "kimi-k2-5-gb300-slurm")
PERF_EVAL = DATA / "perf_eval"
LABELS = ("dp", "ep", "is_multinode", "dp_attention", "disagg")


@pytest.fixture(scope="module", params=REVISIONS)
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Run]:
    """(revision, its folder outside of the project, a dry run of all its recipes).

    ``main`` keeps perf-eval's own layout, with the profiles in ``lib/``; the others have them beside.
    """
    project = Project(tmp_path_factory.mktemp("perf-eval") / "project")
    outside = project.folder.parent / "perf-eval" / "workloads"
    shutil.copytree(PERF_EVAL / request.param, outside, ignore=shutil.ignore_patterns("*.json"))
    if request.param == "main":
        (outside.parent / "lib").mkdir()
        (outside / "gpu_profiles.yaml").rename(outside.parent / "lib" / "gpu_profiles.yaml")
    run = project.run("--gpubench-dry-run", "-q", f"--workload={outside}/*.yaml")
    return request.param, outside, run


def expectations(revision: str) -> dict[str, dict[str, Any]]:
    files = sorted((PERF_EVAL / revision).glob("*.expected.json"))
    assert files
    return {path.name.removesuffix(".expected.json"): json.loads(path.read_text()) for path in files}


def test_every_recipe_is_collected_and_planned(planned: tuple[str, Path, Run]) -> None:
    revision, _, run = planned
    assert run.code == 0, run.out
    outcomes = run.outcomes()
    assert set(outcomes.values()) == {"skipped"}
    for stem, expected in expectations(revision).items():
        accuracy = 0 if expected["bench_only"] else len(expected["lm_eval_tasks"]) + len(expected["bfcl"])
        plans = sorted((run.results / stem).glob("*/plan.json"))
        assert len(plans) == len(expected["bench"]) + accuracy, stem


def test_ids_name_the_file_and_the_config(planned: tuple[str, Path, Run]) -> None:
    _, outside, run = planned
    ids = {f"{case.get('classname')}::{case.get('name')}" for case in run.cases().values()}
    assert ids
    folder = str(outside).strip("/").replace("/", ".")
    for node in ids:
        assert folder in node.split("::")[0]
    names = {name for name in run.outcomes() if name.startswith("test_serving[")}
    assert all("-conc-" in name for name in names)


def test_plans_hold_what_perf_evals_own_parser_makes_of_them(planned: tuple[str, Path, Run]) -> None:
    revision, _, run = planned
    for stem, expected in expectations(revision).items():
        for bench in expected["bench"]:
            (path,) = (run.results / stem).glob(f"*-{bench['name']}/plan.json")
            plan = json.loads(path.read_text())
            assert plan["image"] == expected["image"], stem
            assert plan["model"] == expected["model"]
            assert plan["serve_args"] == expected["serve_args"]
            assert plan["serve_argv"][2 : 3 + len(expected["serve_args"])] == [
                expected["model"],
                *expected["serve_args"],
            ]
            assert {name: plan["env"].get(name) for name in expected["env"]} == expected["env"]
            assert plan["runtime"] == expected["server_runtime"]
            assert plan["vllm_commit"] == expected["vllm_commit"]
            assert (plan["isl"], plan["osl"]) == (bench["isl"], bench["osl"])
            assert (plan["concurrency"], plan["num_prompts"]) == (bench["conc"], bench["num_prompts"])
            assert plan["repetitions"] == (bench["repetitions"] or 1)
            assert (plan["backend"], plan["dataset"]) == (bench["backend"], bench["dataset"])
            metadata = expected["bench_metadata"]
            names = ("device", "precision", "tp")
            assert [plan["metadata"][name] for name in names] == [metadata[name] for name in names]
            if revision == "gb300-slurm-pyxis":
                assert {name: plan["metadata"][name] for name in LABELS} == {
                    name: metadata[name] for name in LABELS
                }
                assert plan["gpu_count"] == metadata["gpu_count"]


def test_client_arguments_reach_the_client(planned: tuple[str, Path, Run]) -> None:
    revision, _, run = planned
    for stem, expected in expectations(revision).items():
        for bench in expected["bench"]:
            (path,) = (run.results / stem).glob(f"*-{bench['name']}/plan.json")
            plan = json.loads(path.read_text())
            argv = plan["bench_argv"]
            assert argv[argv.index("--max-concurrency") + 1] == str(bench["conc"])
            for name, value in (bench["args"] or {}).items():
                if name == "num-warmups":  # a run of its own: the client's would send measured prompts
                    assert f"--{name}" not in argv
                    warmup = plan["warmup_argv"]
                    assert warmup[warmup.index("--num-prompts") + 1] == str(value)
                elif value is True:
                    assert f"--{name}" in argv
                else:
                    assert argv[argv.index(f"--{name}") + 1] == str(value)


def test_one_of_them_runs_on_the_mock(project: Project) -> None:
    """Docker and native profiles run on the mocked Slurm, too."""
    folder = project.folder.parent / "theirs"
    shutil.copytree(PERF_EVAL / "gb300-slurm-pyxis", folder, ignore=shutil.ignore_patterns("*.json"))
    run = project.run("--mock-slurm", f"--workload={folder}/deepseek_v4_flash_gb300_slurm.yaml")
    assert run.code == 0, run.out
    (row,) = run.rows.values()
    assert (row["workload"], row["status"], row["gpu_count"]) == (
        "deepseek_v4_flash_gb300_slurm",
        "passed",
        8,
    )
    assert (row["tp"], row["dp"], row["ep"], row["is_multinode"]) == (2, 4, 1, "true")


def test_the_environment_decides_the_image_as_in_perf_eval(project: Project) -> None:
    folder = project.folder.parent / "theirs"
    shutil.copytree(PERF_EVAL / "main", folder, ignore=shutil.ignore_patterns("*.json"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    names = "glm_5_1_h200,minimax_m2_5_mi355x"
    paths = ",".join(f"{folder}/{name}.yaml" for name in names.split(","))
    images = {}
    for variables in ({"VLLM_COMMIT": commit}, {"VLLM_IMAGE": f"team/vllm:nightly-{commit}"}):
        run = project.run("--gpubench-dry-run", f"--workload={paths}", env={**project.env(), **variables})
        assert run.code == 0, run.out
        for stem in names.split(","):
            plan = json.loads(next((run.results / stem).glob("*/plan.json")).read_text())
            assert plan["vllm_commit"] == commit
            images[next(iter(variables)), stem] = plan["image"]
    assert images == {
        ("VLLM_COMMIT", "glm_5_1_h200"): f"vllm/vllm-openai:nightly-{commit}",
        ("VLLM_COMMIT", "minimax_m2_5_mi355x"): f"vllm/vllm-openai-rocm:nightly-{commit}",
        ("VLLM_IMAGE", "glm_5_1_h200"): f"team/vllm:nightly-{commit}",
        # Not a ROCm image: the profile's repository serves the same commit.
        ("VLLM_IMAGE", "minimax_m2_5_mi355x"): f"vllm/vllm-openai-rocm:nightly-{commit}",
    }
