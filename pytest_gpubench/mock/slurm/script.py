"""Starts the batch script of a job on its first node, as slurmstepd does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from . import environment, formats
from .model import Job
from .store import Store

__all__ = ["BadInterpreter", "default_signals", "say", "start"]


class BadInterpreter(Exception):
    """The script's first line names a program that cannot be run; ``status`` is the job's exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def start(store: Store, job: Job, spool: Path) -> subprocess.Popen[bytes]:
    """The script's process. OSError: one of its files cannot be opened."""
    env = environment.batch(store, job, json.loads((spool / "env.json").read_text()))
    values = environment.pattern(job)
    # Appended to in any case: the keeper's own words go into the same file. Without --open-mode=append
    # a second start, too, begins a new one.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if job.append else os.O_TRUNC)
    with ExitStack() as files:

        def opened(name: str, flags: int) -> int:
            handle = os.open(Path(job.workdir, formats.fill_pattern(name, values)), flags, 0o644)
            files.callback(os.close, handle)
            return handle

        source = opened(job.stdin, os.O_RDONLY)
        out = opened(job.stdout, flags)
        err = out if job.stderr == job.stdout else opened(job.stderr, flags)
        words = f"slurmstepd-{job.nodes[0]}: error: "
        folder = job.workdir
        if not os.path.isdir(folder):
            gone = f"couldn't chdir to `{folder}': No such file or directory: going to /tmp instead"
            os.write(err, f"{words}{gone}\n".encode() * 2)  # the real one says it twice
            folder = "/tmp"
        try:
            # A running bash reads its script as it goes: the copy stays as it is until the job has ended.
            process = subprocess.Popen(
                [str(spool / "slurm_script"), *job.argv],
                stdin=source,
                stdout=out,
                stderr=err,
                env=env,
                cwd=folder,
                start_new_session=True,
                preexec_fn=default_signals,
            )
        except OSError as failure:
            with open(spool / "slurm_script", errors="replace") as text:
                program = text.readline().removeprefix("#!").strip()
            os.write(err, f"{words}execve(): bad interpreter({program}): {failure.strerror}\n".encode())
            raise BadInterpreter(failure.errno or 2) from failure
    (spool / "batch.pid").write_text(str(process.pid))
    return process


def say(job: Job, text: str) -> None:
    """Add a line of slurmstepd's to the script's standard error."""
    if not job.batch or not job.nodes:
        return
    path = Path(job.workdir, formats.fill_pattern(job.stderr, environment.pattern(job)))
    try:
        with open(path, "a") as stream:
            stream.write(f"slurmstepd-{job.nodes[0]}: {text}\n")
    except OSError:
        pass


def default_signals() -> None:
    """In the child: the keeper ignores these."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
