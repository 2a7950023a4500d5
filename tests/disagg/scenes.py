"""A disaggregated deployment under load on the mocked Slurm, and its processes by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plugin.project import MARK, Project

from pytest_gpubench.mock import MockCluster

PROFILE = """
GB200_SLURM:
  platform: gb200
  slurm: {partition: batch, gres: 'gpu:4', exclusive: true, time: "01:00:00"}
  container: {runtime: pyxis}
"""
RECIPE = """
name: pd
gpu: GB200_SLURM
num_nodes: %(nodes)d
gpus_per_node: 4
vllm: {model: org/model, serve_args: --max-model-len 512}
deployment:
  prefill: {workers: %(prefill)d, dp: 8, ep: true, nodes: %(prefill_nodes)d}
  decode: {workers: 1, dp: 8, ep: true, nodes: 2}
%(more)s
search_space:
  - {isl: 64, osl: %(osl)d, points: [{conc: 8, num_prompts: %(prompts)d, num_warmups: 0}]}
"""


def recipe(prefill: int = 3, *, osl: int = 32, prompts: int = 24, more: str = "") -> str:
    """``prefill`` prefill workers and one decode worker, each on two nodes of four GPUs."""
    return RECIPE % {
        "nodes": 2 * prefill + 2,
        "prefill": prefill,
        "prefill_nodes": 2 * prefill,
        "osl": osl,
        "prompts": prompts,
        "more": more,
    }


def rank_names(prefill: int = 3) -> list[str]:
    """The names of all processes."""
    workers = [*(f"prefill-{number}" for number in range(prefill)), "decode-0"]
    return [*(f"{worker}-rank-{rank}" for worker in workers for rank in (0, 1)), "router"]


def make_project(folder: Path, text: str) -> Project:
    """A project with the recipe ``pd``."""
    project = Project(folder)
    project.write("workloads/gpu_profiles.yaml", PROFILE)
    (project.workloads / "pd.yaml").write_text(text)
    return project


@contextmanager
def cluster_of(project: Project, **sim: object) -> Iterator[MockCluster]:
    """Nine nodes of four GPUs."""
    cluster = MockCluster(
        project.folder / "cluster", nodes="gb200-[01-09]", gres={"gpu": 4}, kill_wait=1.0, sim=sim
    )
    try:
        yield cluster
    finally:
        cluster.close()


@dataclass
class LiveRun:
    """pytest while it runs; ``lines`` grow, each with the moment it was read."""

    process: subprocess.Popen[str]
    lines: list[tuple[float, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that was written so far."""
        return "".join(line for _, line in self.lines)

    def when(self, words: str) -> float | None:
        """The moment at which a line with ``words`` was read."""
        return next((moment for moment, line in self.lines if words in line), None)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait, bounded."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {seconds:g} s:\n{self.text}"
            time.sleep(0.05)


@contextmanager
def running(project: Project, cluster: MockCluster, *arguments: str) -> Iterator[LiveRun]:
    """Start pytest on the recipe ``pd``; it is ended at the latest when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workload", "pd", *arguments],
        cwd=project.folder,
        env=project.env(cluster.env(), **{MARK: "disagg", "PYTHONUNBUFFERED": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    run = LiveRun(process)
    assert process.stdout is not None
    stream = process.stdout

    def read() -> None:
        for line in stream:
            run.lines.append((time.monotonic(), line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield run
        process.wait(120)
        reader.join(5)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        stream.close()


def process_of(cluster: MockCluster, name: str) -> int:
    """The id of the process of a rank or of the router."""
    found = {}
    for pid in cluster.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if name == "router":
            mine = words[0] == "vllm::router" or words[4:5] == ["vllm-router"]
        else:
            mine = words[4:6] == ["vllm", "serve"] and f"/{name}.started\0".encode() in environment
        if mine:
            found[pid] = parent
    top = [pid for pid, parent in found.items() if parent not in found]
    assert len(top) == 1, (name, found)
    return top[0]


def benching(project: Project) -> bool:
    """Whether the client has begun."""
    logs = list((project.folder / "results" / "pd").glob("*/client.log"))
    return bool(logs) and "Starting main benchmark run" in logs[0].read_text()


def row_of(project: Project) -> dict[str, object]:
    """The only row."""
    (row,) = json.loads((project.folder / "results" / "ingest.json").read_text())["rows"]
    assert isinstance(row, dict)
    return row


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
