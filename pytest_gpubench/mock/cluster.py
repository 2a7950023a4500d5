"""A mocked cluster: a folder with Slurm's commands, `vllm` and `lm_eval`, to be put in front of PATH."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import procs
from .faults import Fault, FaultBox
from .hostlist import compress
from .slurm.model import ClusterSpec, Job, Partition
from .slurm.scancel import cancel
from .slurm.scontrol import fail_jobs
from .slurm.store import ENV, Store, write_json

__all__ = ["COMMANDS", "Call", "MockCluster"]

COMMANDS = (
    "sbatch", "srun", "squeue", "sacct", "scontrol", "scancel", "sinfo", "vllm", "vllm-router", "lm_eval",
)  # fmt: skip
"""The executables of a cluster's ``bin`` folder."""


@dataclass(frozen=True)
class Call:
    """One command that was run: its words (without a folder), when (seconds since the epoch), and where."""

    argv: tuple[str, ...]
    time: float
    pid: int
    cwd: str


class MockCluster:
    """A Slurm cluster on this machine, without daemons; jobs are real processes.

    ``folder`` holds its state. ``nodes`` are names or one host list (``gb300-[0001-1000]``). ``gres`` is what
    each node has. ``partitions`` maps names to Partition. ``faults`` are in force from the start. ``sim``
    sets how the simulated vLLM behaves (``pytest_gpubench.mock.vllm.settings``). Other settings
    (``kill_wait``, ``min_job_age``, ``minute``, ``version``, ``accounting``, ``image_env``, …) are the fields
    of ClusterSpec. A folder that already holds a cluster is opened as it is.

    >>> with MockCluster(tmp_path / "cluster") as cluster:          # doctest: +SKIP
    ...     subprocess.run(["sbatch", "job.sh"], env=cluster.env())
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        nodes: str | Sequence[str] = ("gb300-01", "gb300-02"),
        gres: Mapping[str, int] | None = None,
        partitions: Mapping[str, Partition] | None = None,
        faults: Sequence[Fault] = (),
        sim: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = Path(folder).resolve()
        spec = ClusterSpec(nodes=nodes if isinstance(nodes, str) else compress(nodes), **settings)
        if gres is not None:
            spec.gres = dict(gres)
        if partitions is not None:
            spec.partitions = dict(partitions)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = not (self.folder / "cluster.json").exists()
        self.store = Store.create(self.folder, spec)
        self.faults = FaultBox(self.folder)
        if fresh:
            self._write_commands()
            self.simulate(**dict(sim or {}))
            for fault in faults:
                self.inject(fault)

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_commands(self) -> None:
        launch = Path(__file__).with_name("launch.py")
        for name in COMMANDS:
            words = " ".join(shlex.quote(word) for word in (sys.executable, "-I", "-S", str(launch), name))
            # Coverage measures subprocesses through a site file, which -S would hide.
            measured = words.replace(" -I -S ", " -I ", 1)
            text = (
                f'#!/bin/sh\n[ -z "$COVERAGE_PROCESS_CONFIG" ] || exec {measured} "$@"\nexec {words} "$@"\n'
            )
            path = self.folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)

    # -- use -------------------------------------------------------------------------------------------------

    @property
    def bin(self) -> Path:
        """The folder of the commands."""
        return self.folder / "bin"

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base`` (default: our own environment) with the cluster's commands first on PATH."""
        found = dict(os.environ if base is None else base)
        rest = [part for part in found.get("PATH", os.defpath).split(os.pathsep) if part != str(self.bin)]
        found["PATH"] = os.pathsep.join([str(self.bin), *rest])
        found[ENV] = str(self.folder)
        return found

    def jobs(self) -> list[Job]:
        """All jobs ever submitted, by id, also those that the controller forgot."""
        return self.store.jobs(forgotten=True)

    def job(self, number: int) -> Job:
        """One job; LookupError when there is none."""
        for job in self.jobs():
            if job.id == number:
                return job
        raise LookupError(f"no job {number} in {self.folder}; there are {[job.id for job in self.jobs()]}")

    def calls(self, name: str | None = None) -> list[Call]:
        """The commands run so far (or those of one name), in order."""
        path = self.folder / "calls.jsonl"
        if not path.exists():
            return []
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        found = [Call(tuple(item["argv"]), item["time"], item["pid"], item["cwd"]) for item in entries]
        return [call for call in found if name is None or call.argv[0] == name]

    def wait(self, number: int, *states: str, timeout: float = 10.0) -> Job:
        """Wait until a job is in one of ``states`` (none: until it has ended); TimeoutError otherwise."""
        deadline = time.monotonic() + timeout
        while True:
            job = self.job(number)
            if job.state in states or (not states and job.ended):
                return job
            if time.monotonic() > deadline:
                wanted = " or ".join(states) or "at its end"
                raise TimeoutError(
                    f"job {number} is {job.state} ({job.reason}) after {timeout:g} s, not {wanted}"
                )
            time.sleep(0.02)

    # -- trouble ---------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Put a fault in force; running commands and jobs see it at once."""
        self.faults.add(fault)

    def clear(self, kind: type[Fault] | None = None) -> None:
        """Take faults of a kind (or all) out of force."""
        self.faults.clear(kind)

    def simulate(self, **sim: Any) -> None:
        """Set how servers and clients that start from now on behave."""
        path = self.folder / "sim.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        write_json(path, {**known, **sim})

    def fail_node(self, name: str, reason: str = "Not responding") -> None:
        """A node goes down, with the processes of its jobs."""
        with self.store.lock():
            self.store.set_node(name, "DOWN", reason)
            fail_jobs(self.store, [name])

    def restore_node(self, name: str) -> None:
        """A node comes back."""
        with self.store.lock():
            self.store.set_node(name, None)

    def cancel_externally(self, number: int, uid: int = 1234) -> None:
        """Another user cancels a job."""
        with self.store.lock():
            job = self.store.job(number)
            if job is not None and not job.ended and not job.order:
                cancel(self.store, job, str(uid))

    def requeue(self, number: int) -> None:
        """The administrator requeues a running job."""
        with self.store.lock():
            job = self.store.job(number)
            if job is not None and job.state == "RUNNING" and not job.order:
                job.order, job.state, job.completing_nodes = "requeue", "COMPLETING", list(job.nodes)
                self.store.put(job)

    # -- the end ---------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Ids of living processes that the cluster started: jobs, steps, servers, and their keepers."""
        return sorted({*procs.marked(f"{self.folder}:"), *self.store.registry.living()})

    def close(self, timeout: float = 10.0) -> None:
        """End every process of the cluster; RuntimeError when one is alive after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while left := self.processes():
            # Keepers first, so that none starts a process while we look.
            procs.send(self.store.registry.living(), signal.SIGKILL)
            procs.send(left, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes of the mocked cluster {self.folder} are still alive: {left}")
            time.sleep(0.02)
        with self.store.lock():
            for job in self.store.active():
                job.state, job.end = "CANCELLED", time.time()
                self.store.put(job)
            for step in self.store.steps():
                self.store.drop_step(step.job, step.id)
