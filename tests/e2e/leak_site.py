"""One run on a real Slurm with the simulated vLLM, to be struck by an event: seconds instead of minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leak.stage import PLUGINS

from pytest_gpubench.mock import MockCluster
from pytest_gpubench.slurm.journal import JournalEntry, journal_folder, open_jobs

from .processes import command_of, environment_of, find_processes, kill_all
from .real_slurm import RealSlurm

MARK = "GPUBENCH_LEAK_CELL"
HEARTBEAT = 3
# One GPU a node, not exclusive: several cells fit on the two nodes at a time.
PROFILE = """\
GB300:
  platform: gb300
  runtime: slurm
  slurm: {{partition: batch, gres: "gpu:b300:1", time: "00:10:00", extra_sbatch_args: [{extra}]}}
  container: {{runtime: none}}
  deadlines: {{teardown: 40}}
"""
RECIPE = """\
name: victim
gpu: GB300
num_nodes: 2
gpus_per_node: 1
vllm: {{model: org/victim, serve_args: --tensor-parallel-size 2}}
vllm_bench:
  metadata: {{device: gb300, precision: fp8}}
  configs:
    - {{name: before, input_len: 16, output_len: 16, num_prompts: 2, max_concurrency: 2, num_warmups: 0}}
    - {{name: struck, input_len: 16, output_len: {osl}, num_prompts: 2, max_concurrency: 2, num_warmups: 0}}
"""


class LeakSite:
    """``begin``: the job may start so many seconds after its submission."""

    def __init__(self, folder: Path, slurm: RealSlurm, *, begin: int = 0, osl: int = 16, **sim: Any) -> None:
        self.folder = folder
        self.slurm = slurm
        self.mark = uuid.uuid4().hex
        self.results = folder / "results"
        (folder / "workloads").mkdir(parents=True)
        (folder / "bin").mkdir()
        extra = f'"--begin=now+{begin}"' if begin else ""
        (folder / "workloads" / "gpu_profiles.yaml").write_text(PROFILE.format(extra=extra))
        (folder / "workloads" / "victim.yaml").write_text(RECIPE.format(osl=osl))
        (folder / "pytest.ini").write_text(f"[pytest]\ngpubench_heartbeat = {HEARTBEAT}\n")
        self._mock = MockCluster(folder / "mock", nodes=list(slurm.spec.nodes), sim=sim)
        # Of the mock the server and the client alone: everything of Slurm is real.
        (folder / "bin" / "vllm").symlink_to(self._mock.bin / "vllm")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """A login node's environment, with what the simulated vLLM needs."""
        base = self.slurm.env({MARK: self.mark, "GPUBENCH_MOCK": str(self._mock.folder)})
        return {**base, "PATH": f"{self.folder / 'bin'}:{base['PATH']}"}

    def start(self) -> None:
        """Start pytest in a session of its own."""
        with open(self.folder / "pytest.out", "wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PLUGINS, "--workload", "victim"],
                cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What pytest has said so far."""
        return (self.folder / "pytest.out").read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To pytest alone."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def reap(self) -> subprocess.CompletedProcess[str]:
        """`gpubench reap`."""
        code = "import sys; from pytest_gpubench.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, "reap", "--results", str(self.results)],
            cwd=self.folder, env=self.slurm.env(), capture_output=True, text=True, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # -- what is there -------------------------------------------------------------------------

    def journal(self) -> list[JournalEntry]:
        """All jobs that the journals hold open."""
        return open_jobs(journal_folder(self.results))

    def job(self) -> str:
        """The id of the open job; empty without one."""
        ids = [str(entry.id) for entry in self.journal() if entry.id is not None]
        return ids[-1] if ids else ""

    def rank(self, *, head: bool) -> int:
        """The process of rank 0, or of the follower."""
        found = [
            pid
            for pid in self.processes()
            if " vllm serve " in command_of(pid) and ("--headless" not in command_of(pid)) is head
            if Path(f"/proc/{pid}/exe").resolve().name.startswith("python")
        ]
        return min(found)  # its engine is a child

    def reached(self, phase: str) -> bool:
        """Whether the run is in the phase now."""
        job = self.job()
        if not job:
            return False
        if phase == "pending":
            return self.slurm.job_state(job) == "PENDING"
        if phase == "loading":
            return len(list(self.results.glob("victim/*/state/*/rank-*.started"))) == 2
        clients = [pid for pid in self.processes() if " vllm bench " in command_of(pid)]
        return bool(clients) and self.row("before") is not None

    def processes(self) -> list[int]:
        """Living processes of our pytest, its commands, and its jobs' tasks."""
        return find_processes(lambda pid: environment_of(pid).get(MARK) == self.mark)

    def row(self, point: str) -> dict[str, Any] | None:
        """The row of a point; None without one."""
        found = next(self.results.glob(f"victim/*{point}*/row.json"), None)
        row: dict[str, Any] | None = None if found is None else json.loads(found.read_text())
        return row

    def row_time(self, point: str) -> float | None:
        """When the row of a point was written."""
        found = next(self.results.glob(f"victim/*{point}*/row.json"), None)
        return None if found is None else found.stat().st_mtime

    def until(self, what: str, done: Callable[[], Any], seconds: float) -> None:
        """Wait; an AssertionError says what did not come, and what pytest said."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.output[-4000:]}")
            time.sleep(0.2)

    def close(self) -> None:
        """Nothing outlives the test, whatever came of it."""
        for entry in self.journal():
            if entry.id is not None:
                self.slurm.run("scancel", str(entry.id), check=False)
        kill_all(self.processes())
        if self.process is not None:
            self.process.wait(10)
        self._mock.close()


def terminated(number: int) -> int:
    """The exit code of a process that a signal ended."""
    return -number


SIGKILLED = terminated(signal.SIGKILL)
