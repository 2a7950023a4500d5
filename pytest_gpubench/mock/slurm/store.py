"""The state folder: every command and keeper reads and writes it under one lock; there is no daemon to
leak."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import hostlist
from ..procs import Registry, alive
from .model import ClusterSpec, Job, Step

__all__ = ["ENV", "Store"]

ENV = "GPUBENCH_MOCK"
"""Environment variable that names the state folder."""


def write_json(path: Path, data: Any) -> None:
    """Replace a file as a whole: a reader without the lock sees the old or the new text."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")
    # 0600: the environment of a job is among what is kept, and may hold tokens.
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w") as stream:
        json.dump(data, stream)
    aside.replace(path)


class Store:
    """One mocked cluster's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = ClusterSpec.load(json.loads((folder / "cluster.json").read_text()))
        self.registry = Registry(folder / "keepers")
        self._names: list[str] | None = None

    @classmethod
    def create(cls, folder: Path, spec: ClusterSpec) -> Store:
        """Lay out the folders of a new cluster, or open the one that is there."""
        for name in ("active", "ended", "steps", "spool", "keepers", "bin", "containers"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
        if not (folder / "cluster.json").exists():
            write_json(folder / "cluster.json", spec.dump())
            write_json(folder / "nodes.json", {})
        return cls(folder)

    @classmethod
    def from_env(cls) -> Store:
        """The cluster of the environment; ends the command with a message when there is none."""
        folder = os.environ.get(ENV)
        if not folder or not (Path(folder) / "cluster.json").exists():
            raise SystemExit(
                f"gpubench mock: {ENV} names no state folder (got {folder!r}); use MockCluster.env()"
            )
        return cls(Path(folder))

    @property
    def has_faults(self) -> bool:
        """False when no fault was ever put in force: then a poll need not import them, half of its time."""
        return (self.folder / "faults.json").exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive access to the state, between processes."""
        with open(self.folder / "lock", "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_names(self) -> list[str]:
        """All nodes in order."""
        if self._names is None:
            self._names = hostlist.expand(self.spec.nodes)
        return self._names

    def node_states(self) -> dict[str, dict[str, str]]:
        """Nodes that are not simply up: name -> {state: DOWN or DRAIN, reason}."""
        data: dict[str, dict[str, str]] = json.loads((self.folder / "nodes.json").read_text())
        return data

    def set_node(self, name: str, state: str | None, reason: str = "") -> None:
        """Take a node down, drain it, or bring it back (None)."""
        data = self.node_states()
        data.pop(name, None)
        if state:
            data[name] = {"state": state, "reason": reason, "time": str(time.time())}
        write_json(self.folder / "nodes.json", data)

    # -- jobs ------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Count up; call under the lock."""
        path = self.folder / "next_id"
        number = int(path.read_text()) if path.exists() else 1
        path.write_text(str(number + 1))
        return number

    def put(self, job: Job) -> None:
        """Write a job, into the folder of its kind."""
        here, there = ("ended", "active") if job.ended else ("active", "ended")
        write_json(self.folder / here / f"{job.id}.json", job.dump())
        (self.folder / there / f"{job.id}.json").unlink(missing_ok=True)

    def job(self, number: int) -> Job | None:
        """A job that the controller still knows."""
        for kind in ("active", "ended"):
            try:
                job = Job.load(json.loads((self.folder / kind / f"{number}.json").read_text()))
            except FileNotFoundError:
                continue
            return None if self._forgotten(job) else job
        return None

    def active(self) -> list[Job]:
        """Jobs that have not ended, by id."""
        return self._read("active")

    def jobs(self, *, forgotten: bool = False) -> list[Job]:
        """All jobs by id; with ``forgotten`` also those that only accounting remembers."""
        found = self._read("active") + self._read("ended")
        return sorted((job for job in found if forgotten or not self._forgotten(job)), key=lambda job: job.id)

    def _forgotten(self, job: Job) -> bool:
        return job.ended and job.end > 0 and time.time() - job.end > self.spec.min_job_age

    def _read(self, kind: str) -> list[Job]:
        found = []
        for path in (self.folder / kind).glob("*.json"):
            try:
                found.append(Job.load(json.loads(path.read_text())))
            except FileNotFoundError:  # it moved to the other folder meanwhile
                continue
        return sorted(found, key=lambda job: job.id)

    # -- steps -----------------------------------------------------------------------------------------------

    def put_step(self, step: Step) -> None:
        """Write a running step."""
        write_json(self.folder / "steps" / f"{step.job}.{step.id}.json", step.dump())

    def drop_step(self, job: int, step: int) -> None:
        """Forget a step that ended."""
        (self.folder / "steps" / f"{job}.{step}.json").unlink(missing_ok=True)

    def steps(self, job: int | None = None) -> list[Step]:
        """Running steps, of one job or of all; those whose keeper was killed do not count."""
        found = []
        for path in (self.folder / "steps").glob("*.json" if job is None else f"{job}.*.json"):
            try:
                step = Step.load(json.loads(path.read_text()))
            except FileNotFoundError:
                continue
            if not step.keeper or alive(step.keeper, step.keeper_start):
                found.append(step)
        return sorted(found, key=lambda step: (step.job, step.id))

    # -- the log of commands ---------------------------------------------------------------------------------

    def log_call(self, argv: list[str]) -> None:
        """Append one line; O_APPEND keeps lines of concurrent commands whole."""
        line = json.dumps({"time": time.time(), "pid": os.getpid(), "cwd": os.getcwd(), "argv": argv}) + "\n"
        handle = os.open(self.folder / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
