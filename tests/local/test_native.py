"""Plain processes on this host: the same results and errors as elsewhere, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin.project import MARK

from pytest_gpubench.mock import ServerExits

from .sites import Site, make_site

RECIPE = """
gpu: H200
gpus_per_node: 8
vllm: {model: org/tiny, serve_args: --max-model-len 256}
search_space: [{isl: 32, osl: %d, points: [{conc: [2, 4], num_prompts: 8, num_warmups: 0}]}]
"""
DISAGG = """
gpu: H200
vllm: {model: org/tiny, serve_args: --max-model-len 256}
deployment:
  prefill: {workers: 2, tp: 2}
  decode: {workers: 1, tp: 4}
search_space: [{isl: 32, osl: 8, points: [{conc: 2, num_prompts: 8, num_warmups: 0}]}]
"""


def until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.05)


def start(site: Site, mark: str) -> subprocess.Popen[bytes]:
    """pytest in the background; ``mark`` is in the environment of all that it starts."""
    with (site.project.folder / "log").open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workload", "one"],
            cwd=site.project.folder,
            env={**site.env, MARK: mark},
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def marked(mark: str) -> list[str]:
    """Living processes with the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state not in "ZX" and f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def rows(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((site.project.folder / "results" / "ingest.json").read_text())[
        "rows"
    ]
    return found


def benching(site: Site) -> bool:
    logs = list((site.project.folder / "results").glob("*/*/client.log"))
    return bool(logs) and "Starting main" in logs[0].read_text()


def test_two_points_on_one_server(tmp_path: Path) -> None:
    with make_site(tmp_path, "native") as site:
        site.project.write("workloads/one.yaml", RECIPE % 8)
        done = site.project.run("--workload", "one", env={**site.env, "CUDA_VISIBLE_DEVICES": "3"})
        assert done.code == 0, done.out
        found = rows(site)
        assert [row["conc"] for row in found] == [2, 4]
        assert {row["job_id"] for row in found} == {found[0]["job_id"]}
        assert found[0]["job_id"].startswith("pid-")
        assert found[0]["nodelist"] == [os.uname().nodename]
        assert marked(done.env[MARK]) == []


def test_roles_share_this_host(tmp_path: Path) -> None:
    with make_site(tmp_path, "native", router="simulated") as site:
        site.project.write("workloads/one.yaml", DISAGG)
        done = site.project.run("--workload", "one", env=site.env)
        assert done.code == 0, done.out
        (row,) = rows(site)
        assert (row["num_prefill_gpu"], row["num_decode_gpu"], row["num_nodes"]) == (4, 4, 1)
        (script,) = (site.project.folder / "results" / "one").glob("*/ranks.sh")
        text = script.read_text()
        for devices in ("0,1", "2,3", "4,5,6,7"):
            assert f"CUDA_VISIBLE_DEVICES={devices} vllm" in text
        assert marked(done.env[MARK]) == []


def test_a_killed_rank_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    with make_site(tmp_path, "native") as site:
        site.cluster.inject(ServerExits(rank=0, code=-9, after_requests=3))
        site.project.write("workloads/one.yaml", RECIPE % 8)
        done = site.project.run("--workload", "one", env=site.env)
        row = rows(site)[0]
        assert (row["status"], row["reason"]) == ("error", "server_exited")
        assert "SIGKILL" in row["message"]
        assert "Slurm" not in row["message"]
        # The engine of the simulated server outlives it, as vLLM's does: the whole group goes.
        assert marked(done.env[MARK]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with make_site(tmp_path, "native", token=0.2) as site:
        site.project.write("workloads/one.yaml", RECIPE % 200)
        mark = f"interrupted-{number.name}-{os.getpid()}"
        process = start(site, mark)
        until(lambda: benching(site), "load")
        process.send_signal(number)
        process.wait(30)
        assert rows(site)[0]["reason"] == "interrupted"
        until(lambda: not marked(mark), "end of all processes", 3)


@pytest.mark.slow
def test_ranks_end_by_themselves_after_a_killed_run(tmp_path: Path) -> None:
    with make_site(tmp_path, "native", token=0.2) as site:
        site.project.write("workloads/one.yaml", RECIPE % 200)
        site.project.write("pytest.ini", "[pytest]\ngpubench_heartbeat = 3\n")
        mark = f"killed-{os.getpid()}"
        process = start(site, mark)
        until(lambda: benching(site), "load")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        assert any("vllm serve" in words for words in marked(mark))
        until(lambda: not any("vllm serve" in words for words in marked(mark)), "end of the ranks", 25)


def test_more_nodes_than_this_host_are_refused_at_collection(tmp_path: Path) -> None:
    with make_site(tmp_path, "native") as site:
        site.project.write(
            "workloads/one.yaml", RECIPE.replace("gpus_per_node", "num_nodes: 2\ngpus_per_node") % 8
        )
        done = site.project.run("--workload", "one", env=site.env)
        assert done.code == 2
        assert "has the runtime native, which is this host alone" in done.out


def test_without_vllm_the_error_says_so(tmp_path: Path) -> None:
    with make_site(tmp_path, "native") as site:
        (site.cluster.bin / "vllm").unlink()
        site.project.write("workloads/one.yaml", RECIPE % 8)
        site.project.run("--workload", "one", env={**site.env, "PATH": f"{site.cluster.bin}:/usr/bin:/bin"})
        row = rows(site)[0]
        assert row["status"] == "error"
        assert "vllm" in row["message"]
        assert "not found" in row["message"] or "No such file" in row["message"]
