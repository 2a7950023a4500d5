"""``squeue``."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable

from .. import hostlist
from . import formats, tables
from .command import TIMED_OUT, Command, user
from .getopt import Parsed
from .model import ACTIVE, SHORT, Job
from .resources import cpus_on_node
from .store import Store

__all__ = ["main"]

_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_INVALID = "slurm_load_jobs error: Invalid job id specified"


def main(store: Store, argv: list[str]) -> int:
    """List jobs."""
    command = Command("squeue", store)
    parsed = command.parse(tables.SQUEUE, argv)
    _time_out(command)
    command.reach_controller("slurm_load_jobs error: ")
    if "step" in parsed:
        return _steps(store, parsed)
    jobs = _select(command, parsed)
    table = _Table(store)
    for line in table.render(parsed, jobs):
        print(line)
    return 0


def _time_out(command: Command) -> None:
    if not command.store.has_faults:
        return
    from ..faults import FaultBox, SqueueTimesOut

    trouble = FaultBox(command.store.folder).take(SqueueTimesOut)
    if trouble is not None:
        command.fail(f"slurm_load_jobs error: {TIMED_OUT}", trouble.exit_code, prefix="")


def _ids(command: Command, text: str) -> list[int]:
    found = []
    for word in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:[_+.]\S*)?", word)
        if match is None or not int(match[1]):
            command.fail(f"Invalid job id: {word}")
        found.append(int(match[1]))
    return found


def _select(command: Command, parsed: Parsed) -> list[Job]:
    store = command.store
    jobs = store.jobs()
    listed = parsed.get("job")
    if listed is not None:
        ids = _ids(command, listed)
        # One unknown id is an error; among several it is left out.
        if len(ids) == 1 and all(job.id != ids[0] for job in jobs):
            command.fail(_INVALID, prefix="")
        jobs = [job for job in jobs if job.id in ids]
    states = _states(command, parsed.get("states"))
    jobs = [job for job in jobs if job.state in states]
    for key, value in (("name", "name"), ("partition", "partition"), ("account", "account"), ("qos", "qos")):
        if key in parsed:
            wanted = parsed.values[key].split(",")
            jobs = [job for job in jobs if getattr(job, value) in wanted]
    if "me" in parsed:
        jobs = [job for job in jobs if job.user == user()]
    if "user" in parsed:
        jobs = [job for job in jobs if job.user in _users(command, parsed.values["user"])]
    if "nodelist" in parsed:
        nodes = set(hostlist.expand(parsed.values["nodelist"]))
        for name in sorted(nodes.difference(store.node_names())):
            command.fail(f"Invalid node name {name}")
        jobs = [job for job in jobs if nodes.intersection(job.nodes)]
    pending = [job for job in jobs if job.state == "PENDING"]
    rest = [job for job in jobs if job.state != "PENDING"]
    return sorted(pending, key=lambda job: (job.held, job.id)) + rest


def _users(command: Command, text: str) -> list[str]:
    found = []
    for name in text.split(","):
        try:
            found.append(pwd.getpwuid(int(name)).pw_name if name.isdigit() else pwd.getpwnam(name).pw_name)
        except KeyError:
            os.write(2, f"squeue: error: Invalid user: {name}\n".encode())
    return found


def _states(command: Command, text: str | None) -> set[str]:
    if text is None:
        return set(ACTIVE)
    if text.lower() == "all":
        return set(SHORT)
    found = set()
    for word in text.split(","):
        name = next((long for long, short in SHORT.items() if word.upper() in (long, short)), None)
        if name is None:
            known = ",".join(SHORT)
            command.fail(
                f"Invalid job state specified: {word}\nsqueue: error: Valid job states include: {known}\n"
            )
        found.add(name)
    return found


def _steps(store: Store, parsed: Parsed) -> int:
    if "noheader" not in parsed:
        print(f"{'STEPID':>15} {'NAME':>8} {'PARTITION':>9} {'USER':>8} {'TIME':>9} NODELIST")
    wanted = parsed.values.get("step") or parsed.values.get("job") or ""
    for job in store.active():
        if job.state != "RUNNING" or (wanted and str(job.id) not in re.split(r"[.,]", wanted)):
            continue
        steps = [(f"{job.id}.{step.id}", step.name, step.start, step.nodes) for step in store.steps(job.id)]
        if job.batch:
            steps.append((f"{job.id}.batch", "batch", job.start, job.nodes[:1]))
        for name, what, start, nodes in steps:
            spent = formats.duration(time.time() - start)
            values = {
                "i": name,
                "j": what,
                "P": job.partition,
                "u": job.user,
                "M": spent,
                "N": hostlist.compress(nodes),
            }
            pattern = parsed.get("format") or "%15i %8j %9P %8u %9M %N"
            print(_cells(pattern, values))
    return 0


def _cells(pattern: str, values: dict[str, str]) -> str:
    return re.sub(r"%\.?(\d*)([a-zA-Z])", lambda hit: values.get(hit[2], "").rjust(int(hit[1] or 0)), pattern)


class _Table:
    """Formats rows with ``-o`` or ``-O``."""

    def __init__(self, store: Store) -> None:
        minute = store.spec.minute
        self.fields: dict[str, tuple[str, Callable[[Job], str]]] = {
            "i": ("JOBID", lambda job: str(job.id)),
            "A": ("JOBID", lambda job: str(job.id)),
            "F": ("ARRAY_JOB_ID", lambda job: str(job.id)),
            "T": ("STATE", lambda job: job.state),
            "t": ("ST", lambda job: SHORT[job.state]),
            "r": ("REASON", lambda job: job.reason),
            "R": ("NODELIST(REASON)", _where),
            "N": ("NODELIST", lambda job: hostlist.compress(_nodes(job))),
            "B": ("EXEC_HOST", lambda job: job.nodes[0] if job.nodes else "n/a"),
            "j": ("NAME", lambda job: job.name),
            "D": ("NODES", lambda job: str(len(_nodes(job)) or job.nodes_min)),
            "C": ("CPUS", lambda job: str(_cpus(store, job))),
            "S": ("START_TIME", lambda job: formats.clock(job.start or job.begin, "N/A")),
            "e": ("END_TIME", lambda job: formats.clock(_end(job, minute), "N/A")),
            "V": ("SUBMIT_TIME", lambda job: formats.clock(job.submit)),
            "M": ("TIME", lambda job: formats.duration(_spent(job))),
            "L": ("TIME_LEFT", lambda job: _minutes(job, _spent(job) if job.start else 0.0)),
            "l": ("TIME_LIMIT", lambda job: _minutes(job, 0.0)),
            "u": ("USER", lambda job: job.user),
            "U": ("USER", lambda job: str(job.uid)),
            "P": ("PARTITION", lambda job: job.partition),
            "a": ("ACCOUNT", lambda job: job.account or "(null)"),
            "q": ("QOS", lambda job: job.qos or "(null)"),
            "k": ("COMMENT", lambda job: job.comment or "(null)"),
            "Q": ("PRIORITY", lambda job: str(0 if job.held else 4294901760 - job.id)),
            "b": ("TRES_PER_NODE", lambda job: _gres(job) or "N/A"),
            "o": ("COMMAND", lambda job: job.command),
            "Z": ("WORK_DIR", lambda job: job.workdir),
        }
        self.long = {
            "jobid": "i",
            "jobarrayid": "i",
            "state": "T",
            "statecompact": "t",
            "reason": "r",
            "reasonlist": "R",
            "nodelist": "N",
            "batchhost": "B",
            "name": "j",
            "numnodes": "D",
            "numcpus": "C",
            "starttime": "S",
            "endtime": "e",
            "submittime": "V",
            "timeused": "M",
            "timeleft": "L",
            "timelimit": "l",
            "username": "u",
            "userid": "U",
            "partition": "P",
            "account": "a",
            "qos": "q",
            "comment": "k",
            "prioritylong": "Q",
            "tres-per-node": "b",
            "command": "o",
            "workdir": "Z",
        }
        self.only_long: dict[str, Callable[[Job], str]] = {
            "restartcnt": lambda job: str(job.restarts),
            "requeue": lambda job: str(int(job.requeue)),
            "exit_code": lambda job: str(job.exit_code),
            "stdout": lambda job: job.stdout,
            "stderr": lambda job: job.stderr,
        }

    def render(self, parsed: Parsed, jobs: list[Job]) -> list[str]:
        """Lines of the table, with its header unless told not to."""
        header = "noheader" not in parsed
        if "Format" in parsed:
            return self._long(parsed.values["Format"], jobs, header)
        pattern = parsed.get("format") or _DEFAULT
        lines = [self._fill(pattern, lambda key: self.fields[key][0])] if header else []
        lines.extend(self._row(pattern, job) for job in jobs)
        return lines

    def _row(self, pattern: str, job: Job) -> str:
        return self._fill(pattern, lambda key: self.fields[key][1](job))

    def _fill(self, pattern: str, value: Callable[[str], str]) -> str:
        def one(match: re.Match[str]) -> str:
            right, width, key = match.groups()
            if key not in self.fields:
                return ""
            text = value(key)
            if not width:
                return text
            cut = text[: int(width)]
            return cut.rjust(int(width)) if right else cut.ljust(int(width))

        return re.sub(r"%(\.?)(\d*)([a-zA-Z])", one, pattern)

    def _long(self, text: str, jobs: list[Job], header: bool) -> list[str]:
        columns: list[tuple[str, Callable[[Job], str], str]] = []
        for word in text.split(","):
            name, _, width = word.partition(":")
            key = name.strip().lower()
            value = self.only_long.get(key) or (self.fields[self.long[key]][1] if key in self.long else None)
            if value is not None:
                columns.append((key.upper(), value, width))
        rows = [[title for title, _, _ in columns]] if header else []
        rows += [[value(job) for _, value, _ in columns] for job in jobs]
        return ["".join(_cell(cell, columns[at][2]) for at, cell in enumerate(row)) for row in rows]


def _cell(text: str, width: str) -> str:
    """A column of ``-O``: 20 wide unless ``:N`` says otherwise; ``:.N`` sets it to the right."""
    number = int(width.lstrip(".") or 20) if width.lstrip(".").isdigit() or not width else 20
    cut = text[:number]
    return cut.rjust(number) if width.startswith(".") else cut.ljust(number)


def _nodes(job: Job) -> list[str]:
    return job.completing_nodes or job.nodes


def _cpus(store: Store, job: Job) -> int:
    return cpus_on_node(store.spec, job) * (len(job.nodes) or job.nodes_min)


def _where(job: Job) -> str:
    if job.state == "PENDING" or job.state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY"):
        return f"({job.reason})"
    return hostlist.compress(_nodes(job))


def _spent(job: Job) -> float:
    return ((job.end or time.time()) - job.start) if job.start else 0.0


def _minutes(job: Job, spent: float) -> str:
    return "UNLIMITED" if job.minutes < 0 else formats.duration(job.minutes * 60 - spent)


def _end(job: Job, minute: float) -> float:
    return job.end or (job.start + job.minutes * minute if job.start and job.minutes >= 0 else 0.0)


def _gres(job: Job) -> str:
    return ",".join(f"gres:{key}:{count}" for key, count in job.gres.items())
