"""A desk in front of a cluster, mocked or real: runs commands, follows jobs, cleans up after a check."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
}


class Desk:
    """Everything goes through the command line with the cluster's environment; jobs of the desk end with
    it."""

    def __init__(self, env: Mapping[str, str], folder: Path, patience: float = 30.0) -> None:
        self.env = {key: value for key, value in env.items() if not key.startswith(("SLURM_J", "SBATCH_"))}
        self.folder, self.patience = folder, patience
        self.jobs: list[str] = []
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Desk:
        self.until(lambda: not self.say("squeue", "-h"), "an empty queue to start with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.jobs:
            self.run("scancel", *self.jobs)
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.until(lambda: not self.say("squeue", "-h"), "an empty queue at the end")

    def run(
        self, *argv: str, text: str | None = None, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its standard input is ``text``, or nothing."""
        return subprocess.run(
            argv,
            env={**self.env, **(env or {})},
            cwd=self.folder,
            input=text if text is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def say(self, *argv: str) -> str:
        """What a command that must succeed prints."""
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command and let it run."""
        process = subprocess.Popen(
            argv,
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def script(self, body: str, name: str = "job.sh", head: str = "#!/bin/bash\n") -> str:
        """Write a batch script; its name."""
        (self.folder / name).write_text(head + body)
        return name

    def submit(
        self, body: str, *options: str, name: str = "job.sh", env: Mapping[str, str] | None = None
    ) -> str:
        """Submit a script; the job's id."""
        done = self.run("sbatch", "--parsable", *options, self.script(body, name), env=env)
        assert done.returncode == 0, done.stderr
        self.jobs.append(done.stdout.strip())
        return self.jobs[-1]

    def hold_nodes(self, *options: str, body: str = "sleep 600\n") -> str:
        """A job that has both nodes to itself; its id."""
        job = self.submit(
            body, "-N2", "--exclusive", "--gres", "gpu:b300:4", "--output", "hold-%j.out", *options
        )
        self.wait(job, "RUNNING")
        return job

    def state(self, job: str) -> str:
        """The job's state, also after its end; GONE when nobody knows it any more."""
        done = self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")
        return done.stdout.strip() if done.returncode == 0 else "GONE"

    def wait(self, job: str, *states: str, patience: float | None = None) -> str:
        """Wait for one of the states (none: for the end); the state."""
        wanted = set(states) or ENDED
        self.until(lambda: self.state(job) in wanted, f"job {job} in {sorted(wanted)}", patience)
        return self.state(job)

    def until(self, done: Callable[[], bool], what: str, patience: float | None = None) -> None:
        """Poll until ``done``; fails with ``what`` after the desk's patience."""
        deadline = time.monotonic() + (patience or self.patience)
        while not done():
            assert time.monotonic() < deadline, f"waited in vain for {what}; {self.queue()}"
            time.sleep(0.1)

    def queue(self) -> str:
        """What the queue looks like, for messages."""
        return self.run("squeue", "-t", "all", "-o", "%i %T %r %N").stdout

    def detail(self, job: str, key: str) -> str:
        """One field of ``scontrol show job``."""
        text = self.say("scontrol", "-o", "show", "job", job)
        return next(word.partition("=")[2] for word in text.split() if word.startswith(f"{key}="))

    def read(self, name: str) -> str:
        """A file that a job wrote."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def written(self, name: str, text: str) -> None:
        """Wait until a file holds a text."""
        self.until(lambda: text in self.read(name), f"{text!r} in {name}: {self.read(name)!r}")

    def step(self, job: str, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a step of a job from outside."""
        return self.run("srun", f"--jobid={job}", "--overlap", *words, text=text)


def alive(pid: int) -> bool:
    """True when a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
