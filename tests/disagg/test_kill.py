"""Whichever process of a disaggregated deployment dies, the run says so within seconds, and names it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from .scenes import benching, cluster_of, make_project, process_of, rank_names, recipe, row_of, running

FAST = {"prefill-1-rank-1", "decode-0-rank-0", "router"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in rank_names()]
)
def test_the_death_of_any_process_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path / "project", recipe(osl=256, prompts=4000))
    # Half a minute per request: nothing ends by itself.
    with cluster_of(project, token=0.1) as cluster, running(project, cluster) as run:
        run.until(lambda: benching(project), 120, "load")
        victim = process_of(cluster, name)
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        run.until(lambda: run.when(": error: ") is not None, 60, "error")
        seen = run.when(": error: ")
        assert seen is not None
        print(f"{name}: seen after {seen - killed:.1f} s")
        assert seen - killed < 5.0
    assert run.process.returncode == 1
    row = row_of(project)
    assert (row["status"], row["reason"]) == ("error", "server_exited")
    message = str(row["message"])
    assert f"{name} on gb200-0" in message
    assert "SIGKILL" in message
    assert "while benchmarking" in message
    assert [job.state for job in cluster.jobs()] in (["CANCELLED"], ["FAILED"])
    assert cluster.processes() == []
