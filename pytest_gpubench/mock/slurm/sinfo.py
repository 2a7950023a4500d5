"""``sinfo`` and ``sacct``."""

from __future__ import annotations

import re

from .. import hostlist
from . import formats, tables
from .command import Command
from .model import Job
from .schedule import partition_nodes
from .scontrol import node_state
from .store import Store

__all__ = ["sacct", "sinfo"]

_SHORT = {
    "IDLE": "idle",
    "ALLOCATED": "alloc",
    "MIXED": "mix",
    "DOWN": "down",
    "DRAIN": "drain",
    "COMPLETING": "comp",
}
_BY_NODE = "%10N %.6D %.9P %6t"
_DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo(store: Store, argv: list[str]) -> int:
    """List partitions and nodes."""
    command = Command("sinfo", store)
    parsed = command.parse(tables.SINFO, argv)
    command.reach_controller("slurm_load_partitions: ")
    holders = [job for job in store.active() if job.state in ("RUNNING", "COMPLETING")]
    if "list-reasons" in parsed:
        return _reasons(store, "noheader" in parsed)
    by_node = "Node" in parsed
    pattern = parsed.get("format") or (_BY_NODE if by_node else _DEFAULT)
    if "noheader" not in parsed:
        titles = {"P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE"}
        titles |= {"N": "NODELIST", "G": "GRES", "c": "CPUS", "m": "MEMORY", "n": "HOSTNAMES", "E": "REASON"}
        print(_fill(pattern, titles))
    # A node's own column makes a line for each node.
    alone = by_node or re.search(r"%\.?\d*n", pattern) is not None
    told = store.node_states()
    for name, part in store.spec.partitions.items():
        if "partition" in parsed and name not in parsed.values["partition"].split(","):
            continue
        groups: dict[tuple[str, str], list[str]] = {}
        for node in partition_nodes(store, name):
            state = node_state(store, node, holders)
            groups.setdefault((state, node if alone else ""), []).append(node)
        for (state, _), nodes in groups.items():
            values = {
                "P": name + ("*" if part.default else ""),
                "R": name,
                "a": "up",
                "l": "infinite" if part.max_minutes < 0 else formats.duration(part.max_minutes * 60),
                "D": str(len(nodes)),
                "t": _SHORT.get(state, state.lower()),
                "T": {"DRAIN": "drained"}.get(state, state.lower()),
                "N": hostlist.compress(nodes),
                "n": nodes[0],
                "G": ",".join(f"{key}:{count}" for key, count in store.spec.gres.items()) or "(null)",
                "c": str(store.spec.cpus),
                "m": str(store.spec.memory_mb),
                "f": "(null)",
                "E": told[nodes[0]]["reason"] if nodes[0] in told else "none",
            }
            print(_fill(pattern, values))
    return 0


def _reasons(store: Store, bare: bool) -> int:
    if not bare:
        print(f"{'REASON':<20} {'USER':<9} {'TIMESTAMP':<19} NODELIST")
    for name, data in store.node_states().items():
        print(f"{data['reason']:<20} {'root':<9} {formats.clock(float(data['time']))} {name}")
    return 0


def _fill(pattern: str, values: dict[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        right, width, key = match.groups()
        text = values.get(key, "")
        if not width:
            return text
        return text[: int(width)].rjust(int(width)) if right else text[: int(width)].ljust(int(width))

    return re.sub(r"%(\.?)(\d*)([a-zA-Z])", one, pattern)


def sacct(store: Store, argv: list[str]) -> int:
    """Job accounting, where the cluster has it; it remembers jobs that the controller forgot."""
    command = Command("sacct", store)
    parsed = command.parse(tables.SACCT, argv)
    if not store.spec.accounting:
        command.fail("Slurm accounting storage is disabled", prefix="")
    ids = [int(word) for word in re.findall(r"\d+", parsed.get("jobs") or "")]
    jobs = [job for job in store.jobs(forgotten=True) if not ids or job.id in ids]
    names = (parsed.get("format") or "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode").split(",")
    columns = [name.partition("%")[0].lower() for name in names]
    piped = "parsable" in parsed or "parsable2" in parsed
    rows = [] if "noheader" in parsed else [[name.partition("%")[0] for name in names]]
    for job in jobs:
        rows.append([_field(job, column, "") for column in columns])
        if "allocations" not in parsed and job.start and job.batch:
            rows.append([_field(job, column, ".batch") for column in columns])
    for row in rows:
        if piped:
            print("|".join(row) + ("|" if "parsable" in parsed else ""))
        else:
            print(" ".join(f"{cell[:10]:>10}" for cell in row) + " ")
    return 0


def _field(job: Job, name: str, step: str) -> str:
    state = job.state
    if state == "CANCELLED":
        state = f"CANCELLED by {job.order_text or job.uid}"
    values = {
        "jobid": f"{job.id}{step}",
        "jobidraw": f"{job.id}{step}",
        "jobname": "batch" if step else job.name,
        "partition": "" if step else job.partition,
        "account": job.account,
        "alloccpus": str(job.tasks),
        "state": "CANCELLED" if step and job.state == "CANCELLED" else state,
        "exitcode": f"{job.exit_code}:{job.exit_signal}",
        "nodelist": hostlist.compress(job.nodes) or "None assigned",
        "nnodes": str(len(job.nodes) or job.nodes_min),
        "submit": formats.clock(job.submit),
        "start": formats.clock(job.start),
        "end": formats.clock(job.end),
        "elapsed": formats.padded((job.end or job.start) - job.start),
        "user": "" if step else job.user,
        "reason": job.reason,
    }
    return values.get(name, "")
