"""Our own Slurm client in front of either cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gpubench.slurm.client import CliSlurm, SlurmTimeouts
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, Submission
from pytest_gpubench.world import CommandResult, SystemClock, SystemRunner

from .backends import Backend


class CountingRunner(SystemRunner):
    """Remembers what was run."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.calls: list[tuple[str, ...]] = []

    def run(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        self.calls.append(tuple(argv))
        return super().run(argv, timeout=timeout, env=env)

    def count(self, program: str) -> int:
        """How often a program was run."""
        return sum(call[0] == program for call in self.calls)


class ClientDesk:
    """Submits through the client; ``slurm`` is the client, ``shell`` runs commands beside it."""

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        timeouts: SlurmTimeouts | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.backend, self.folder = backend, folder
        self.env = backend.env() if env is None else env
        self.runner = CountingRunner(self.env)
        self.clock = SystemClock()
        self.slurm = CliSlurm(self.runner, self.clock, env=self.env, timeouts=timeouts)

    @staticmethod
    def name(what: str = "job") -> str:
        """A job name that nobody else has."""
        return f"gpubench-{what}-{uuid.uuid4().hex[:12]}"

    def submission(self, body: str, *options: str, name: str | None = None) -> Submission:
        """What to submit: a script with ``body``, its output in out-<id>."""
        name = name or self.name()
        script = self.folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{body}")
        fixed = (f"--job-name={name}", f"--output={self.folder}/out-%j")
        return Submission(script=str(script), job_name=name, options=(*fixed, *options))

    def submit(self, body: str, *options: str, name: str | None = None) -> JobId:
        """Submit; the id."""
        return self.slurm.submit(self.submission(body, *options, name=name))

    def info(self, job: JobId) -> JobInfo:
        """What the client says now."""
        return self.slurm.info([job])[job]

    def wait(self, job: JobId, *states: JobState, seconds: float = 30.0) -> JobInfo:
        """Wait for one of the states; the client's answer."""
        last: list[JobInfo] = []

        def there() -> bool:
            last[:] = [self.info(job)]
            return last[0].state in states

        self.until(there, f"job {job} in {states}", lambda: str(last), seconds)
        return last[0]

    def until(
        self,
        done: Callable[[], bool],
        what: str,
        detail: Callable[[], str] = str,
        seconds: float = 30.0,
    ) -> None:
        """Poll until ``done``."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {detail()}"
            time.sleep(0.1)

    def shell(self, *argv: str) -> CommandResult:
        """Run one of Slurm's commands."""
        return SystemRunner(self.env).run(argv, timeout=60.0)

    def alive(self, name: str) -> list[str]:
        """The ids of the jobs of a name that wait or run."""
        return self.shell("squeue", "-h", f"--name={name}", "-o", "%i").stdout.split()

    def output(self, job: JobId) -> str:
        """What a job has written."""
        path = self.folder / f"out-{job}"
        return path.read_text() if path.exists() else ""
