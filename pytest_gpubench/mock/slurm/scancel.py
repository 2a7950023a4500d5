"""``scancel``."""

from __future__ import annotations

import re
import signal
import sys
import time

from .. import procs
from . import tables
from .command import Command, user
from .getopt import Parsed
from .model import SHORT, Job
from .store import Store

__all__ = ["cancel", "main"]

_FINISHED = "Job/step already completing or completed"


def main(store: Store, argv: list[str]) -> int:
    """Cancel or signal jobs and steps."""
    command = Command("scancel", store)
    parsed = command.parse(tables.SCANCEL, argv)
    filters = {"name", "user", "me", "partition", "account", "qos", "state", "nodelist"}.intersection(
        parsed.values
    )
    words = [word for group in parsed.rest for word in group.split(",") if word]
    if not words and not filters:
        command.fail("No job identification provided")
    for word in words:
        if not re.fullmatch(r"\d+(_\S+|\+\d+)?(\.(\d+|batch|extern))?", word):
            command.fail(f"Invalid job id {word}")
    number = _signal(command, parsed.get("signal"))
    command.reach_controller()
    if filters:
        return _filtered(command, parsed, words, number)
    status = 0
    for word in words:
        head, dot, step = word.partition(".")
        job = int(re.split(r"[_+]", head)[0])
        if dot:
            status = max(status, _step(command, parsed, job, step, number))
        else:
            _one(command, parsed, job, number)
    return status


def _signal(command: Command, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    found = getattr(signal, f"SIG{text.upper().removeprefix('SIG')}", None)
    if found is None:
        command.fail(f"Unknown job signal: {text}")
    return int(found)


def _filtered(command: Command, parsed: Parsed, words: list[str], number: int | None) -> int:
    for job in command.store.active():
        if words and str(job.id) not in words:
            continue
        if "name" in parsed and job.name not in parsed.values["name"].split(","):
            continue
        if "user" in parsed and parsed.values["user"] not in (job.user, str(job.uid)):
            continue
        if "me" in parsed and job.user != user():
            continue
        if "partition" in parsed and job.partition != parsed.values["partition"]:
            continue
        if "state" in parsed and parsed.values["state"].upper() not in (job.state, SHORT[job.state]):
            continue
        _one(command, parsed, job.id, number)
    return 0


def _one(command: Command, parsed: Parsed, number: int, sig: int | None) -> None:
    """Silent about unknown and finished jobs unless verbose, with exit status 0: seen with Slurm 22.05."""
    if "verbose" in parsed:
        sys.stderr.write(f"scancel: Terminating job {number}\n")
    store = command.store
    with store.lock():
        job = store.job(number)
        problem = "Invalid job id specified" if job is None else _FINISHED if _over(job) else ""
        ends = sig is None or (sig == signal.SIGKILL and "batch" not in parsed and "full" not in parsed)
        if job is not None and not problem and ends:
            cancel(store, job)
            return
    if problem:
        if "verbose" in parsed and "quiet" not in parsed:
            sys.stderr.write(f"scancel: error: Kill job error on job id {number}: {problem}\n")
        return
    _deliver(
        store, number, "batch" if "batch" in parsed else "all" if "full" in parsed else "steps", sig or 0
    )


def _over(job: Job) -> bool:
    return job.ended or job.state == "COMPLETING" or bool(job.order)


def cancel(store: Store, job: Job, by: str = "") -> None:
    """Order the cancellation of a job that has not ended. Call under the lock."""
    if job.state == "PENDING":
        # The keeper notices and goes; the queue forgets the job at once.
        job.state, job.end = "CANCELLED", time.time()
        job.start = job.end
    else:
        job.state, job.completing_nodes, job.end = "COMPLETING", list(job.nodes), time.time()
    job.order, job.order_text = "cancel", by
    store.put(job)


def _deliver(store: Store, number: int, where: str, sig: int) -> None:
    if where == "batch":  # the script's shell alone, not what it started
        path = store.folder / "spool" / str(number) / "batch.pid"
        procs.send([int(path.read_text())] if path.exists() else [], sig)
        return
    prefix = f"{store.folder}:{number}:"
    everyone = set(procs.marked(prefix)) - set(store.registry.living())
    script = set(procs.marked(prefix + "batch."))
    procs.send(everyone if where == "all" else everyone - script, sig)


def _step(command: Command, parsed: Parsed, job: int, name: str, sig: int | None) -> int:
    store = command.store
    if name == "batch":
        _deliver(store, job, "batch", sig or signal.SIGKILL)
        return 0
    for step in store.steps(job):
        if str(step.id) != name:
            continue
        if sig is None or sig == signal.SIGKILL:
            procs.send([step.keeper], signal.SIGUSR1)
        else:
            procs.send(procs.marked(f"{store.folder}:{job}:{step.id}."), sig)
        return 0
    sys.stderr.write(
        f"scancel: error: Kill job error on job step id {job}.{name}: Invalid job id specified\n"
    )
    return 0
