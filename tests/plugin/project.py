"""A project of a user in a temporary folder: recipes, a profile, and pytest run on it from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from pytest_gpubench.mock import MockCluster

REPOSITORY = Path(__file__).resolve().parents[2]
PROFILES = """
GB300_SLURM:
  platform: gb300
  runtime: slurm
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00"}
  container: {runtime: pyxis, mounts: [/home/bench:/nfs_home]}
H200_SLURM:
  platform: h200
  runtime: slurm
  slurm: {partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00"}
  container: {runtime: pyxis}
"""
QUICK = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
MARK = "GPUBENCH_TEST_RUN"
"""In the environment of every process of a run, also of those that leave its process group."""
CI_NAMES = (
    "WORKLOADS", "VLLM_IMAGE", "VLLM_COMMIT", "NIGHTLY", "PERF_INGEST_URL", "INGEST_BEARER_TOKEN",
    "BUILDKITE_BUILD_ID", "BUILDKITE_RETRY_COUNT", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GPUBENCH_MOCK",
    "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST",
)  # fmt: skip


def recipe_text(
    name: str,
    conc: str = "[4]",
    extra: str = "",
    *,
    nodes: int = 1,
    gpu: str = "GB300_SLURM",
    prompts: int = 8,
) -> str:
    """A tiny recipe with one GPU per node; its serving points are ``tp<nodes>-32x16-conc<N>``."""
    return (
        f"name: {name}\n"
        f"gpu: {gpu}\n"
        f"num_nodes: {nodes}\n"
        "gpus_per_node: 4\n"
        f"vllm: {{model: org/tiny, serve_args: '--max-model-len 256 --tensor-parallel-size {nodes}'}}\n"
        "search_space:\n"
        f"  - {{isl: 32, osl: 16, num_prompts: {prompts}, points: [{{conc: {conc}}}]}}\n"
    ) + dedent(extra)


@dataclass
class Run:
    """How a run of pytest ended, and what it left."""

    code: int
    out: str
    results: Path
    junit: Path
    pid: int
    env: dict[str, str] = field(repr=False)

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """``<recipe>/<point>`` -> row of the ingest file."""
        path = self.results / "ingest.json"
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
        return {f"{row['workload']}/{row['point']}": row for row in rows}

    def row(self, recipe: str, point: str) -> dict[str, Any]:
        """One row."""
        return self.rows[f"{recipe}/{point}"]

    def plan(self, recipe: str, point: str) -> dict[str, Any]:
        """``plan.json`` of a point."""
        found: dict[str, Any] = json.loads((self.results / recipe / point / "plan.json").read_text())
        return found

    def cases(self) -> dict[str, ET.Element]:
        """``<classname>::<name>`` -> JUnit test case."""
        return {
            f"{case.get('classname')}::{case.get('name')}": case
            for case in ET.parse(self.junit).getroot().iter("testcase")
        }

    def outcomes(self) -> dict[str, str]:
        """Test case name -> passed, skipped, failure or error."""
        return {
            str(case.get("name")): case[_verdict(case)].tag if _verdict(case) is not None else "passed"
            for case in self.cases().values()
        }


def _verdict(case: ET.Element) -> Any:
    tags = [child.tag for child in case]
    return next((tags.index(tag) for tag in ("failure", "error", "skipped") if tag in tags), None)


class Project:
    """A folder with ``workloads/`` and what pytest is told in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workloads = folder / "workloads"
        self.workloads.mkdir(parents=True)
        (self.workloads / "gpu_profiles.yaml").write_text(PROFILES)
        (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nstrict_markers = true\n")
        self._runs = 0

    def recipe(self, name: str, conc: str = "[4]", extra: str = "", **settings: Any) -> Path:
        """Write ``workloads/<name>.yaml``."""
        return self.write(f"workloads/{name}.yaml", recipe_text(name, conc, extra, **settings))

    def write(self, name: str, text: str) -> Path:
        """Write any file of the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def cluster(self, *faults: Any, **settings: Any) -> MockCluster:
        """A mocked cluster for runs with ``env=cluster.env(...)``; close it at the end."""
        settings.setdefault("nodes", "gb300-[01-06]")
        sim = {"import_seconds": 0.0, "load_seconds": 0.05, "capture_seconds": 0.0}
        return MockCluster(
            self.folder / "cluster", gres={"gpu:b300": 4}, faults=faults, kill_wait=1.0, sim=sim, **settings
        )

    def env(self, base: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
        """An environment without the caller's run ids and options."""
        found = {name: value for name, value in (base or os.environ).items() if name not in CI_NAMES}
        if base is not None and "GPUBENCH_MOCK" in base:
            found["GPUBENCH_MOCK"] = base["GPUBENCH_MOCK"]
        return {**found, **extra}

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 90,
    ) -> Run:
        """Run pytest in a process of its own, in a session of its own."""
        return self.start(*arguments, env=env, cwd=cwd).end(timeout)

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Running:
        """Start such a run."""
        self._runs += 1
        junit = self.folder / f"junit-{self._runs}.xml"
        output = self.folder / f"out-{self._runs}.txt"
        environment = {**(self.env() if env is None else env), MARK: uuid.uuid4().hex}
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", f"--junitxml={junit}", *QUICK, *arguments],
                cwd=cwd or self.folder,
                env=environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return Running(process, output, self.folder / "results", junit, environment)


@dataclass
class Running:
    """A run under way."""

    process: subprocess.Popen[bytes]
    output: Path
    results: Path
    junit: Path
    env: dict[str, str]

    def wait_for(self, text: str, timeout: float = 30) -> None:
        """Until the run printed ``text``."""
        deadline = time.monotonic() + timeout
        while text not in self.output.read_text(errors="replace"):
            assert self.process.poll() is None, self.output.read_text(errors="replace")
            assert time.monotonic() < deadline, self.output.read_text(errors="replace")
            time.sleep(0.05)

    def end(self, timeout: float = 90) -> Run:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no end in {timeout:g} s:\n{self.output.read_text()}") from None
        text = self.output.read_text(errors="replace")
        return Run(code, text, self.results, self.junit, self.process.pid, self.env)


def leftovers(run: Run) -> list[str]:
    """Processes alive that belong to a run: by its session, or by what stands in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            session = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[3])
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError, IndexError):
            continue
        if session == run.pid or f"{MARK}={run.env[MARK]}\0".encode() in environment:
            found.append(f"{folder.name} {command}")
    return found
