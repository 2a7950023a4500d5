"""One run in which every deployment meets a trouble of its own."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugin.project import Project, Run, recipe_text

from pytest_gpubench.mock import (
    Call,
    CancelledExternally,
    ForeignServer,
    ImportFails,
    Job,
    LoadHangs,
    LogNoise,
    NodeFails,
    PortTaken,
    Preempted,
    Requeued,
    SbatchAnswers,
    SbatchRefuses,
    ServerExits,
    SlowQueue,
)

from .cases import environment

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
UNKNOWN_FLAG = "vllm: error: unrecognized arguments: --frobnicate"
ENROOT = "[ERROR] /tmp/enroot.Xa1: write error: No space left on device"
GRES = "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification"
SEGMENT = "sbatch: error: Batch job submission failed: Invalid --segment specification"
NOT_AVAILABLE = "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]"
PROFILE = """
SEGMENTS:
  platform: gb300
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00", segment: 2}
  container: {runtime: pyxis}
"""
LONG = 200_000
"""Prompts that take longer than anything here."""


@dataclass(frozen=True)
class Trouble:
    """The run, and what its cluster knows afterwards."""

    run: Run
    calls: list[Call]
    jobs: list[Job]
    started: float

    def text(self, recipe: str) -> str:
        """The message of the first point of a recipe, as JUnit has it: of its set-up or of its call."""
        for name, case in self.run.cases().items():
            if f".{recipe}.yaml::" in name:
                found = next(
                    (case.find(tag) for tag in ("error", "failure") if case.find(tag) is not None), None
                )
                assert found is not None, ET.tostring(case)
                return found.text or ""
        raise AssertionError(f"no case of {recipe}: {list(self.run.cases())}")

    def row(self, recipe: str) -> dict[str, Any]:
        """Its only row."""
        (row,) = (row for row in self.run.rows.values() if row["workload"] == recipe)
        return row

    def rows(self, recipe: str) -> list[dict[str, Any]]:
        """All its rows."""
        return [row for row in self.run.rows.values() if row["workload"] == recipe]

    def jobs_of(self, recipe: str) -> list[Job]:
        """Its jobs."""
        return [job for job in self.jobs if f"-{recipe}-" in job.name]

    def calls_of(self, program: str, word: str = "") -> list[tuple[str, ...]]:
        """Calls of a program with ``word`` on their command line."""
        return [call.argv for call in self.calls if call.argv[0] == program and word in " ".join(call.argv)]

    def log(self, recipe: str, name: str) -> str:
        """A log of the recipe's deployment."""
        (path,) = (self.run.results / recipe).glob(f"*/{name}")
        return path.read_text(errors="replace")


def _project(folder: Path) -> Project:
    project = Project(folder / "project")
    profiles = project.workloads / "gpu_profiles.yaml"
    profiles.write_text(profiles.read_text() + PROFILE)
    ready = "deadlines: {ready: 30m}\n"
    project.recipe("fc13_load", extra=ready, nodes=2)
    project.recipe("fc13_ready", extra=ready, nodes=2)
    project.recipe("fc13_bench", extra=ready, nodes=2, prompts=LONG)
    for name in ("fc15", "fc16", "fc17", "fc23", "fc25", "fc45"):
        project.recipe(name, extra="deadlines: {load: 30m}\n")
    project.recipe("fc18", extra="deadlines: {load: 2s}\n")
    for name in ("fc30_preempted", "fc30_node", "fc30_requeued", "fc30_cancelled"):
        project.recipe(name, nodes=2, prompts=LONG)
    project.recipe("fc31_held", extra="deadlines: {queue: 10m}\n")
    project.recipe("fc31_wait", extra="deadlines: {queue: 3s}\n")
    project.recipe("fc37_gres", "[2, 4]")
    text = recipe_text("fc37_segment", "[2, 4]", nodes=2, gpu="SEGMENTS")
    project.write("workloads/fc37_segment.yaml", text)
    return project


FAULTS = (
    ServerExits(match="*-fc13_load-*", rank=1, code=1, seconds=0.5, text=OUT_OF_MEMORY),
    ServerExits(match="*-fc13_ready-*", rank=1, code=1, phase="ready", text=OUT_OF_MEMORY),
    ServerExits(match="*-fc13_bench-*", rank=1, code=1, phase="benching", seconds=0.5, text=OUT_OF_MEMORY),
    ForeignServer(match="*-fc15-*", model="other/model"),
    PortTaken(match="*-fc16-*"),
    ServerExits(match="*-fc17-*", code=2, text=UNKNOWN_FLAG),
    LoadHangs(match="*-fc18-*"),
    ImportFails(match="*-fc23-*", text=ENROOT),
    SbatchAnswers("site-filter 2 - using account perf\n{id}\n", match="*-fc25-*"),
    Preempted(match="*-fc30_preempted-*", phase="benching", seconds=0.3),
    NodeFails(match="*-fc30_node-*", node="1", phase="benching", seconds=0.3),
    Requeued(match="*-fc30_requeued-*", phase="benching", seconds=0.3),
    CancelledExternally(match="*-fc30_cancelled-*", phase="benching", seconds=0.3, uid=1234),
    SlowQueue(600.0, "JobHeldUser", match="*-fc31_held-*"),
    SlowQueue(600.0, NOT_AVAILABLE, match="*-fc31_wait-*"),
    SbatchRefuses(GRES, match="*-fc37_gres-*"),
    SbatchRefuses(SEGMENT, match="*-fc37_segment-*"),
    ServerExits(match="*-fc45-*", code=1, seconds=0.3, text="RuntimeError: the engine is gone"),
    LogNoise(match="*-fc45-*"),
)


def run_trouble(folder: Path) -> Trouble:
    """Some twenty deployments on four workers, with warnings as errors and a token in the environment."""
    project = _project(folder)
    arguments = ("--workload=fc*", "-n", "4", "-vv", "-l", "--setup-show", "-rA", "-W", "error")
    started = time.time()
    with project.cluster(*FAULTS, nodes="gb300-[01-40]", version="24.05.0") as cluster:
        env = project.env(cluster.env(), **environment("FC-46"))
        run = project.run(*arguments, env=env, timeout=300)
        return Trouble(run, cluster.calls(), cluster.jobs(), started)
