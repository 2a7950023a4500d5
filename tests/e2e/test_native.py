"""The laptop recipe on a real vLLM: no Slurm, no container, this machine's CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import environment_of, find_processes
from .vllm_cpu import VllmCpu

WORKLOADS = Path(__file__).parents[2] / "workloads"
MODEL = "facebook/opt-125m"
MARK = "GPUBENCH_E2E_NATIVE"


@pytest.fixture
def hub(tmp_path: Path, vllm_cpu: VllmCpu) -> Path:
    """A hub's cache in which the recipe's model has the tiny weights: nothing is fetched here."""
    entry = tmp_path / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = entry / "snapshots" / ("0" * 40)
    shutil.copytree(vllm_cpu.model, snapshot)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0" * 40)
    return tmp_path


def test_the_laptop_recipe(tmp_path: Path, vllm_cpu: VllmCpu, hub: Path) -> None:
    workloads = tmp_path / "checkout" / "workloads"
    workloads.mkdir(parents=True)
    for name in ("laptop_tiny.yaml", "gpu_profiles.yaml"):
        shutil.copy(WORKLOADS / name, workloads)
    (tmp_path / "checkout" / "pytest.ini").write_text("[pytest]\n")
    env = {**os.environ, "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", MARK: "1"}
    env["PATH"] = os.pathsep.join([str(vllm_cpu.bin), env["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workload", "laptop_tiny"],
        cwd=tmp_path / "checkout",
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "checkout" / "results"
    rows = json.loads((results / "ingest.json").read_text())["rows"]
    assert [(row["status"], row["conc"], row["completed"], row["failed"]) for row in rows] == [
        ("passed", 1, 4, 0),
        ("passed", 4, 8, 0),
    ]
    assert {row["job_id"] for row in rows} == {rows[0]["job_id"]}  # one server start
    row = rows[1]
    assert (row["model"], row["device"], row["gpu_count"], row["simulated"]) == (MODEL, "cpu", 1, False)
    assert row["total_output_tokens"] == 8 * 16
    assert row["nodelist"] == [os.uname().nodename]
    assert vllm_cpu.version.startswith(row["vllm_version"])  # the server leaves out what comes after the +
    raw = json.loads((results / "laptop_tiny" / row["point"] / "bench.json").read_text())
    assert row["tput_per_gpu"] == raw["total_token_throughput"]
    # The whole group is gone: API server, engine, workers, client.
    assert find_processes(lambda pid: MARK in environment_of(pid)) == []
