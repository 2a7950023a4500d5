"""Jobs of several rows on a real Slurm: nobody else makes them here, but their rows must not be misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpubench.slurm.types import JobId, JobState

from .backends import Backend
from .client_desk import ClientDesk

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("backend", ["real"], indirect=True)]


def test_an_array_lives_as_long_as_any_of_its_jobs(backend: Backend, folder: Path) -> None:
    desk = ClientDesk(backend, folder)
    name = desk.name("array")
    job = desk.submit("sleep 300\n", "--array=0-2%1", "--nodes=1", name=name)
    info = desk.wait(job, JobState.RUNNING)
    assert (info.nodes, info.name) == (("gb300-01",), name)
    rows = desk.shell("squeue", "-h", f"--jobs={job}", "-o", "%i %T").stdout.split()
    assert sorted(rows) == sorted([f"{job}_[1-2%1]", "PENDING", f"{job}_0", "RUNNING"])
    assert desk.slurm.cancel(JobId(job.number)).done
    assert desk.wait(job, JobState.CANCELLED).state.ended


def test_a_heterogeneous_job_has_the_nodes_of_all_its_parts(backend: Backend, folder: Path) -> None:
    desk = ClientDesk(backend, folder)
    name = desk.name("het")
    job = desk.submit("sleep 300\n", "--nodes=1", "--exclusive", ":", "--nodes=1", "--exclusive", name=name)
    info = desk.wait(job, JobState.RUNNING)
    assert info.nodes == ("gb300-01", "gb300-02")
    found = desk.slurm.find(name)
    assert found is not None
    assert (found.id, found.state) == (job, JobState.RUNNING)
    assert desk.slurm.cancel(job).done
    assert desk.wait(job, JobState.CANCELLED).state.ended
