"""A sweep over deployments on the mocked Slurm: starts, prefetch, nodes taken over, parallel workers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.mock import MockCluster

PROFILE = """\
GB300:
  platform: gb300
  runtime: slurm
  slurm:
    {{partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00", reuse_allocation: {reuse}}}
  container: {{runtime: none}}
"""
RECIPE = """\
name: sweep
gpu: GB300
num_nodes: 1
gpus_per_node: 4
vllm: {model: org/model}
search_space:
  - isl: 32
    osl: 16
    num_prompts: 16
    points:
      - {tp: 4, conc: [1, 2, 8]}
      - {tp: 2, dp: 2, conc: [2, 8]}
      - {tp: 1, dp: 4, conc: [2, 8]}
"""


class Project:
    def __init__(self, folder: Path, cluster: MockCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        (folder / "workloads").mkdir(parents=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        self.write(RECIPE)

    def write(self, recipe: str, reuse: bool = False) -> None:
        (self.folder / "workloads" / "sweep.yaml").write_text(recipe)
        profile = PROFILE.format(reuse=str(reuse).lower())
        (self.folder / "workloads" / "gpu_profiles.yaml").write_text(profile)

    def pytest(self, *arguments: str, code: int = 0) -> str:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--workload",
            "sweep",
            *arguments,
        ]
        done = subprocess.run(
            command, cwd=self.folder, env=self.cluster.env(), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.folder / "results" / "ingest.json").read_text())["rows"]
        return rows

    def calls(self, program: str) -> list[list[str]]:
        return [list(call.argv) for call in self.cluster.calls() if os.path.basename(call.argv[0]) == program]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with MockCluster(tmp_path / "cluster", nodes="gb300-[01-08]", gres={"gpu:b300": 4}) as cluster:
        yield Project(tmp_path / "project", cluster)


def test_one_start_per_deployment_whatever_the_selection(project: Project) -> None:
    project.pytest("-k", "conc8")
    assert len(project.calls("sbatch")) == 3
    assert sorted(row["conc"] for row in project.rows()) == [8, 8, 8]
    assert all(job.state != "RUNNING" for job in project.cluster.jobs())


def test_nodes_of_the_same_shape_are_taken_over(project: Project) -> None:
    project.write(RECIPE, reuse=True)
    out = project.pytest()
    assert len(project.calls("sbatch")) == 1, out
    assert len(project.rows()) == 7
    assert len({row["job_id"] for row in project.rows()}) == 1
    assert "takes over" in out
    assert all(job.state != "RUNNING" for job in project.cluster.jobs())


@pytest.mark.slow
def test_the_next_allocation_is_asked_for_while_the_last_point_is_measured(project: Project) -> None:
    project.pytest("--gpubench-prefetch", "1", "-k", "conc8")
    names = [row["deployment"] for row in project.rows()]
    assert len(project.calls("sbatch")) == 3
    assert len(set(names)) == 3


@pytest.mark.slow
def test_a_node_budget_is_never_exceeded(project: Project) -> None:
    project.pytest("--gpubench-max-nodes", "1", "--gpubench-prefetch", "3", "-k", "conc8")
    jobs = sorted(project.cluster.jobs(), key=lambda job: job.start)
    assert len(jobs) == 3
    assert all(earlier.end <= later.submit for earlier, later in itertools.pairwise(jobs))


@pytest.mark.slow
def test_workers_never_split_a_deployment_and_lose_no_row(project: Project) -> None:
    project.pytest("-n", "3")
    assert len(project.calls("sbatch")) == 3
    rows = project.rows()
    assert len(rows) == 7
    jobs: dict[str, set[str]] = {}
    for row in rows:
        jobs.setdefault(row["deployment"], set()).add(row["job_id"])
    assert all(len(ids) == 1 for ids in jobs.values())
    assert len({next(iter(ids)) for ids in jobs.values()}) == 3
