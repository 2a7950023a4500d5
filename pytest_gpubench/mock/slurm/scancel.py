"""``scancel``."""

from __future__ import annotations

import pwd
import re
import signal
import sys
import time

from .. import procs
from . import formats, script, tables
from .command import TIMED_OUT, Command, user
from .getopt import Parsed
from .model import SHORT, Job, Step
from .store import Store

__all__ = ["cancel", "main"]

_UNKNOWN = "Invalid job id specified"
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
    trouble = command.unreached() or (command.unanswered() if filters else None)
    if trouble is not None:
        return _unreached(words, trouble)
    if filters:
        return _filtered(command, parsed, words, number)
    status = 0
    for word in words:
        head, dot, step = word.partition(".")
        job = int(re.split(r"[_+]", head)[0])
        if dot:
            status = max(status, _step(command, parsed, job, step, number))
        else:
            status = max(status, _one(command, parsed, job, number))
    trouble = command.unanswered()
    return status if trouble is None else _unreached(words, trouble)


def _unreached(words: list[str], trouble: str) -> int:
    """The real one's exit status is Slurm's own error number cut to a byte."""
    for word in words:
        sys.stderr.write(f"scancel: error: Kill job error on job id {word}: {trouble}\n")
    if not words:
        sys.stderr.write(f"scancel: error: slurm_load_jobs error: {trouble}\n")
        return 1
    return 140 if trouble == TIMED_OUT else 8


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
    """With a filter the jobs are listed first: here an unknown or ended id is an error."""
    if "user" in parsed and not _is_user(parsed.values["user"]):
        command.fail(f"Invalid user name: {parsed.values['user']}")
    active = {str(job.id) for job in command.store.active()}
    unknown = [word for word in words if word not in active]
    if unknown:
        for word in unknown:
            sys.stderr.write(f"scancel: error: Kill job error on job id {word}: {_UNKNOWN}\n")
        return 1
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


def _is_user(text: str) -> bool:
    try:
        pwd.getpwuid(int(text)) if text.isdigit() else pwd.getpwnam(text)
    except KeyError:
        return False
    return True


def _one(command: Command, parsed: Parsed, number: int, sig: int | None) -> int:
    """Silent about unknown and finished jobs unless verbose or with a signal: seen with Slurm 22.05."""
    store = command.store
    with store.lock():
        job = store.job(number)
        # Only a plain cancel goes straight to the controller; all else looks the job up in a list first.
        if sig is not None or {"batch", "full", "quiet"}.intersection(parsed.values):
            if job is None or job.ended:
                sys.stderr.write(f"scancel: error: Kill job error on job id {number}: {_UNKNOWN}\n")
                return 1
        elif "verbose" in parsed:
            sys.stderr.write(f"scancel: Terminating job {number}\n")
        problem = _UNKNOWN if job is None else _FINISHED if _over(job) else ""
        ends = sig is None or (sig == signal.SIGKILL and "batch" not in parsed and "full" not in parsed)
        if job is not None and not problem and ends:
            cancel(store, job)
            return 0
    if problem:
        if "verbose" in parsed:
            sys.stderr.write(f"scancel: error: Kill job error on job id {number}: {problem}\n")
        return 0
    _deliver(
        store, number, "batch" if "batch" in parsed else "all" if "full" in parsed else "steps", sig or 0
    )
    return 0


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
    """To the script's shell (``batch``), to all that it started (``all``), or to the tasks of steps."""
    if where == "steps":
        for step in store.steps(number):
            _to_tasks(step, sig)
        return
    path = store.folder / "spool" / str(number) / "batch.pid"
    shell = [int(path.read_text())] if path.exists() else []
    job = store.job(number)
    if shell and job is not None and sig in (signal.SIGTERM, signal.SIGKILL):
        stamp = formats.clock(time.time())
        script.say(job, f"error: *** JOB {job.id} ON {job.nodes[0]} CANCELLED AT {stamp} ***")
    everyone = list(procs.marked(f"{store.folder}:{number}:batch.")) if where == "all" else []
    procs.send({*shell, *everyone}, sig)


def _to_tasks(step: Step, sig: int) -> None:
    """Only to the tasks themselves, as with proctrack/cgroup."""
    if sig == signal.SIGTERM:
        procs.send([step.keeper], signal.SIGRTMIN)  # which says so
    procs.send([pid for pid, _, _, _ in step.tasks], sig)


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
            _to_tasks(step, sig)
        return 0
    sys.stderr.write(f"scancel: error: Kill job error on job step id {job}.{name}: {_UNKNOWN}\n")
    return 1
