"""A project on a mocked cluster, for the benchmark scripts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pytest_gpubench.mock import MockCluster

__all__ = ["Project", "search_space"]

PROFILE = """\
GB300:
  platform: gb300
  runtime: slurm
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: "03:00:00"}
  container: {runtime: none}
"""


def search_space(
    deployments: int, concurrencies: list[int], prompts: int, isl: int = 64, osl: int = 32
) -> str:
    """A search space of so many deployments (told apart by name) with one point per concurrency."""
    lines = [
        "search_space:",
        f"  - isl: {isl}",
        f"    osl: {osl}",
        f"    num_prompts: {prompts}",
        "    points:",
    ]
    for number in range(deployments):
        seqs = 256 + number
        lines.append(
            f"      - {{name: d{number}, tp: 4, serve_args: '--max-num-seqs {seqs}', conc: {concurrencies}}}"
        )
    return "\n".join(lines)


class Project:
    """A folder with one recipe, run against a cluster."""

    def __init__(self, folder: Path, cluster: MockCluster, body: str) -> None:
        self.folder = folder
        self.cluster = cluster
        (folder / "workloads").mkdir(parents=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "workloads" / "gpu_profiles.yaml").write_text(PROFILE)
        head = "name: sweep\ngpu: GB300\nnum_nodes: 1\ngpus_per_node: 4\nvllm: {model: org/model}\n"
        (folder / "workloads" / "sweep.yaml").write_text(head + body + "\n")

    def pytest(self, *arguments: str, timeout: float = 3600) -> float:
        """Run it; returns wall seconds."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--workload",
            "sweep",
            *arguments,
        ]
        env = self.cluster.env()
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout[-4000:] + done.stderr[-4000:])
        return time.perf_counter() - began

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the ingest file."""
        rows: list[dict[str, Any]] = json.loads((self.folder / "results" / "ingest.json").read_text())["rows"]
        return rows
