"""A point that its recipe cannot do is refused before anything is submitted (TP 4 is for 8192/1024 only)."""

from __future__ import annotations

import re

import pytest
from plugin.project import Project, Run

RECIPE = """
name: dsr1
gpu: B300
gpus_per_node: 8
vllm: {model: deepseek-ai/DeepSeek-R1-0528, serve_args: --max-model-len 16384}
constraints:
  - when: {tp: 4}
    require: {isl: 8192, osl: 1024}
    reason: TP=4 is tuned for 8192/1024 only
search_space:
  - {isl: 1024, osl: 1024, num_prompts: 8, points: [{tp: 4, conc: 4}, {tp: 8, conc: [4, 8]}]}
  - {isl: 8192, osl: 1024, num_prompts: 8, points: [{tp: 4, conc: 4}]}
"""
PROFILE = "B300: {runtime: slurm, slurm: {partition: batch, gres: 'gpu:8', time: '01:00:00'}}\n"
REFUSED = "test_serving[tp4-1k1k-conc4]"
ALLOWED = [f"test_serving[{name}]" for name in ("tp8-1k1k-conc4", "tp8-1k1k-conc8", "tp4-8k1k-conc4")]


@pytest.fixture
def dsr1(project: Project) -> Project:
    project.write("workloads/dsr1.yaml", RECIPE)
    project.write("workloads/gpu_profiles.yaml", PROFILE)
    return project


def ids(run: Run) -> list[str]:
    return [
        line.split("::")[1] for line in run.out.splitlines() if line.startswith("workloads/") and "::" in line
    ]


def test_collecting_shows_it_as_an_error_with_the_reason_and_what_is_allowed(dsr1: Project) -> None:
    run = dsr1.run("--workload=dsr1", "--collect-only", "-q")
    assert run.code != 0
    assert f"ERROR workloads/dsr1.yaml::{REFUSED}" in run.out
    where = r"workloads/dsr1\.yaml:11(:\d+)?: point tp4-1k1k-conc4: TP=4 is tuned for 8192/1024 only"
    assert re.search(where, run.out)
    assert "allowed with tp 4: isl 8192, osl 1024" in run.out
    assert "points of this recipe that are allowed: tp4-8k1k-conc4" in run.out
    assert sorted(set(ids(run)) - {REFUSED}) == sorted(ALLOWED)
    assert "Traceback" not in run.out


def test_nothing_is_submitted(dsr1: Project) -> None:
    with dsr1.cluster() as cluster:
        run = dsr1.run("--workload=dsr1", env=dsr1.env(cluster.env()))
        assert run.code == pytest.ExitCode.INTERRUPTED
        assert [call for call in cluster.calls() if call.argv[0] == "sbatch"] == []


def test_skipped_when_asked_to(dsr1: Project) -> None:
    run = dsr1.run("--workload=dsr1", "--collect-only", "-q", "--gpubench-skip-rejected")
    assert run.code == 0
    assert sorted(ids(run)) == sorted([REFUSED, *ALLOWED])
    run = dsr1.run("--workload=dsr1", "--gpubench-dry-run", "--gpubench-skip-rejected", "-rs")
    assert run.code == 0
    assert run.outcomes()[REFUSED] == "skipped"
    plan = run.plan("dsr1", "tp4-1k1k-conc4")
    assert "TP=4 is tuned for 8192/1024 only" in plan["rejected"]
    assert (plan["serve_argv"], plan["sbatch_argv"]) == (None, None)


def test_a_skipped_point_says_the_reason_and_the_others_run(dsr1: Project) -> None:
    small = RECIPE.replace("isl: 1024, osl: 1024", "isl: 32, osl: 16").replace("isl: 8192", "isl: 64")
    dsr1.write("workloads/dsr1.yaml", small.replace("osl: 1024", "osl: 16"))
    run = dsr1.run("--workload=dsr1", "--mock-slurm", "--gpubench-skip-rejected", "-rs")
    assert run.code == 0, run.out
    assert run.outcomes()["test_serving[tp4-32x16-conc4]"] == "skipped"
    assert "rejected: TP=4 is tuned for 8192/1024 only" in run.out
    assert sorted(run.rows) == ["dsr1/tp4-64x16-conc4", "dsr1/tp8-32x16-conc4", "dsr1/tp8-32x16-conc8"]


@pytest.mark.parametrize("more", [(), ("--gpubench-skip-rejected",)])
def test_smoke_never_picks_it(dsr1: Project, more: tuple[str, ...]) -> None:
    run = dsr1.run("--workload=dsr1", "--collect-only", "-q", "--gpubench-smoke", *more)
    assert run.code == 0, run.out
    # TP 4's shortest load is refused, so its next one is taken.
    assert ids(run) == ["test_serving[tp4-8k1k-conc4]", "test_serving[tp8-1k1k-conc4]"]


def test_a_recipe_whose_only_point_is_refused_runs_nothing(dsr1: Project) -> None:
    lone = RECIPE.split("search_space")[0] + (
        "search_space: [{isl: 1024, osl: 1024, points: [{tp: 4, ep: 1, conc_start: 4, conc_end: 4}]}]\n"
    )
    dsr1.write("workloads/dsr1.yaml", lone)
    run = dsr1.run("--workload=dsr1", "--mock-slurm")
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert "no point of this recipe that it speaks of is allowed" in run.out
    assert run.rows == {}
