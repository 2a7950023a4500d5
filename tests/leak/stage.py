"""A login node with a mocked Slurm, a bystander's job, two recipes, and a pytest that is interrupted."""

from __future__ import annotations

import itertools
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

from pytest_gpubench.mock import MockCluster
from pytest_gpubench.mock.slurm.model import Job
from pytest_gpubench.slurm.journal import JournalEntry, journal_folder, open_jobs

MARK = "GPUBENCH_LEAK_CELL"
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Not those of our own tests: they would take longer to load than many a cell takes."""
VICTIM = "gpubench-victim-*"
HEARTBEAT = 3
PROFILE = """\
GB300:
  platform: gb300
  runtime: slurm
  slurm: {{partition: batch, gres: "gpu:b300:4", exclusive: true, time: "00:30:00"}}
  container: {{runtime: pyxis, mounts: ["{folder}:/nfs_home"]}}
  deadlines: {{teardown: {teardown}}}
"""
RECIPE = """\
name: {name}
gpu: GB300
num_nodes: {nodes}
gpus_per_node: 4
vllm: {{model: org/{name}, serve_args: --tensor-parallel-size {gpus}}}
vllm_bench:
  metadata: {{device: gb300, precision: fp8}}
  configs:
"""
CONFIG = """\
    - {{name: {name}, input_len: 16, output_len: {osl}, num_prompts: 2, max_concurrency: 2, num_warmups: 0}}
"""
CONFTEST = """\
import pathlib, time

HERE = pathlib.Path(__file__).parent

def pytest_runtest_protocol(item, nextitem):
    # Between two points of one server: wait here until the test has seen it, then go on.
    if "struck" in item.name and (HERE / "hold").exists():
        (HERE / "held").touch()
        deadline = time.monotonic() + 30
        while (HERE / "hold").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
"""


_STAGES = itertools.count(1)


class Stage:
    """``start`` begins; every wait has a deadline; ``close`` ends whatever is left."""

    def __init__(self, folder: Path, *, teardown: float = 30.0) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.project = folder / "project"
        self.results = self.project / "results"
        (self.project / "workloads").mkdir(parents=True)
        self.cluster = MockCluster(folder / "cluster", nodes="gb300-[01-04]", kill_wait=5.0)
        # Ports come from job ids: clusters side by side on one machine must not count the same ones.
        (self.cluster.folder / "next_id").write_text(str(os.getpid() % 5000 * 1000 + next(_STAGES) * 10))
        profile = PROFILE.format(folder=self.project, teardown=teardown)
        self._write("workloads/gpu_profiles.yaml", profile)
        self._write("pytest.ini", f"[pytest]\ngpubench_heartbeat = {HEARTBEAT}\n")
        self._write("conftest.py", CONFTEST)
        self.process: subprocess.Popen[bytes] | None = None
        self.bystander = self._submit_bystander()

    def _write(self, name: str, text: str) -> None:
        (self.project / name).write_text(text, encoding="utf-8")

    def recipes(self, *points: str, osl: int = 16, first_osl: int = 16, first_nodes: int = 1) -> None:
        """The recipe that is done before anything happens, and the one that is struck."""
        first = RECIPE.format(name="first", nodes=first_nodes, gpus=4 * first_nodes)
        first += CONFIG.format(name="done", osl=first_osl)
        victim = RECIPE.format(name="victim", nodes=2, gpus=8)
        victim += "".join(CONFIG.format(name=name, osl=osl if name == "struck" else 16) for name in points)
        self._write("workloads/first.yaml", first)
        self._write("workloads/victim.yaml", victim)

    def _submit_bystander(self) -> int:
        """A job of the same user whose name begins as ours do: nothing may touch it."""
        done = subprocess.run(
            ["sbatch", "--parsable", "--job-name", "gpubench-victim-of-somebody", "--exclusive", "--wrap",
             "sleep 600"],
            env=self.cluster.env(), cwd=self.folder, capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return int(done.stdout)

    def bystander_runs(self) -> bool:
        """Untouched: it runs, in its first start, and nobody was asked to end it."""
        job = self.cluster.job(self.bystander)
        return (job.state, job.restarts, job.order) == ("RUNNING", 0, "")

    # -- pytest --------------------------------------------------------------------------------

    @property
    def env(self) -> dict[str, str]:
        """What our pytest and all that comes of it have; MARK finds them."""
        return {**self.cluster.env(), MARK: self.mark, "VLLM_IMAGE": "registry/vllm:1"}

    def start(self, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
        """Start pytest in a session of its own."""
        command = [*prefix, sys.executable, "-m", "pytest", *PLUGINS, "--workload", "first,victim"]
        with open(self.folder / "pytest.out", "wb") as sink:
            self.process = subprocess.Popen(
                [*command, "--gpubench-prefetch", "0", *arguments], cwd=self.project, env=self.env,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What pytest has said so far."""
        return (self.folder / "pytest.out").read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To pytest alone, as `kill` and most CI agents do."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def signal_group(self, number: int) -> None:
        """To the process group, as a terminal does."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def finish(self, seconds: float) -> int:
        """Wait for pytest's end; its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pytest did not end in {seconds:g} s\n{self.output[-4000:]}") from None

    def reap(self) -> subprocess.CompletedProcess[str]:
        """`gpubench reap` as the user would call it."""
        code = "import sys; from pytest_gpubench.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, "reap", "--results", str(self.results)],
            cwd=self.project, env=self.cluster.env(), capture_output=True, text=True, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # -- what is there -------------------------------------------------------------------------

    def job(self) -> Job | None:
        """The latest job of the victim."""
        found = [job for job in self.ours() if job.name.startswith("gpubench-victim-")]
        return found[-1] if found else None

    def ours(self) -> list[Job]:
        """Every job that our pytest submitted."""
        return [job for job in self.cluster.jobs() if job.id != self.bystander]

    def entry(self) -> JournalEntry | None:
        """The journal's open entry of the victim's job."""
        found = [e for e in self.journal() if e.job_name.startswith("gpubench-victim-")]
        return found[-1] if found else None

    def journal(self) -> list[JournalEntry]:
        """All jobs that the journals hold open."""
        return open_jobs(journal_folder(self.results))

    def processes(self) -> list[int]:
        """Living processes of our pytest, its workers, its commands, and its jobs."""
        wanted = f"{MARK}={self.mark}".encode()
        session = str(self.process.pid) if self.process is not None else ""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                state, _, _, sid = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            # An xdist worker that sets its title overwrites its environment: it is in pytest's session.
            if state not in "ZX" and (wanted in environ or sid == session):
                found.append(int(name))
        return found

    def row(self, recipe: str, point: str) -> dict[str, Any] | None:
        """The row of a point; None without one, AssertionError for one that cannot be read."""
        found = list(self.results.glob(f"{recipe}/*{point}*/row.json"))
        if not found:
            return None
        row: dict[str, Any] = json.loads(found[0].read_text())
        return row

    def row_time(self, recipe: str, point: str) -> float | None:
        """When the row of a point was written."""
        found = list(self.results.glob(f"{recipe}/*{point}*/row.json"))
        return found[0].stat().st_mtime if found else None

    def until(self, what: str, done: Callable[[], Any], seconds: float) -> None:
        """Wait; an AssertionError says what did not come, and what pytest said."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.output[-4000:]}")
            time.sleep(0.2)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing outlives the test, whatever came of it."""
        for _ in range(50):
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not left:
                break
            time.sleep(0.05)
        if self.process is not None:
            self.process.wait(10)
        self.cluster.close()
