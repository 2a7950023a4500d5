"""The manual GB300 smoke, on real parts: a real Slurm, a real vLLM, the product between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .real_slurm import RealSlurm
from .site import Site, make_site
from .vllm_cpu import VllmCpu


@pytest.fixture
def site(tmp_path: Path, slurm: RealSlurm, vllm_cpu: VllmCpu) -> Site:
    return make_site(tmp_path, slurm, vllm_cpu)


@pytest.mark.parametrize(("recipe", "nodes", "gpus"), [("tiny_opt_1node", 1, 4), ("tiny_opt_2node", 2, 8)])
def test_smoke(site: Site, slurm: RealSlurm, recipe: str, nodes: int, gpus: int) -> None:
    done = site.pytest("-m", "gb300", "--workload", recipe, "--junitxml", "junit.xml")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = site.rows()
    assert (row["status"], row["completed"], row["failed"]) == ("passed", 4, 0)
    assert (row["num_nodes"], row["gpus_per_node"], row["gpu_count"]) == (nodes, 4, gpus)
    assert row["total_output_tokens"] == 4 * 16
    assert row["simulated"] is False
    assert row["nodelist"] == [f"gb300-{number:02d}" for number in range(1, nodes + 1)]
    assert "0.32" in row["vllm_version"]
    point = site.results / recipe / row["point"]
    raw = json.loads((point / "bench.json").read_text())
    # Written by the client inside the container, through its workdir's mount, onto the shared checkout.
    assert row["tput_per_gpu"] == pytest.approx(raw["total_token_throughput"] / gpus, rel=1e-12)
    plan = json.loads((point / "plan.json").read_text())
    step = plan["srun_argv"][0]
    assert step[step.index("--container-workdir") + 1] == "/nfs_home/checkout"
    assert [argv.count("--headless") for argv in plan["rank_argv"]] == [0, 1][:nodes]
    assert slurm.live_jobs() == []
    print(json.dumps(row, indent=1))
