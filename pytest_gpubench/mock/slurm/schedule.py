"""Which pending job may start where: first in, first out within a partition, on whole counts of nodes, GRES
and CPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .. import hostlist
from ..faults import FaultBox, SlowQueue
from .model import Job
from .resources import cpus_on_node, take_gpus
from .store import Store

__all__ = ["gres_kinds", "misfit", "try_start"]

_DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def gres_kinds(store: Store) -> set[str]:
    """The names of generic resources that the cluster has, without types: ``{"gpu"}``."""
    return {key.split(":")[0] for key in store.spec.gres}


def _offered(store: Store, wanted: str) -> int:
    """How many of a resource one node has; a request without a type takes any type."""
    return sum(
        count for key, count in store.spec.gres.items() if key == wanted or key.split(":")[0] == wanted
    )


def misfit(store: Store, job: Job) -> bool:
    """True when no node could ever serve the job's request (Requested node configuration is not
    available)."""
    if job.held:  # looked at when it is released
        return False
    too_big = cpus_on_node(store.spec, job) > store.spec.cpus or job.memory_mb > store.spec.memory_mb
    return too_big or any(count > _offered(store, key) for key, count in job.gres.items())


def partition_nodes(store: Store, name: str) -> list[str]:
    """The nodes of a partition in order."""
    text = store.spec.partitions[name].nodes
    return store.node_names() if text == "ALL" else hostlist.expand(text)


def _limits(store: Store, job: Job) -> str | None:
    """The reason of a request that its partition does not allow."""
    partition = store.spec.partitions[job.partition]
    most = len(partition_nodes(store, job.partition))
    if partition.max_nodes >= 0:
        most = min(most, partition.max_nodes)
    if job.nodes_min > most:
        return "PartitionNodeLimit"
    if partition.max_minutes >= 0 and (job.minutes < 0 or job.minutes > partition.max_minutes):
        return "PartitionTimeLimit"
    return None


def _free(store: Store, job: Job, holders: Sequence[Job], node: str) -> bool:
    here = [other for other in holders if node in (other.completing_nodes or other.nodes)]
    if not here:
        return True
    if job.exclusive or any(other.exclusive for other in here):
        return False
    if sum(cpus_on_node(store.spec, other) for other in [*here, job]) > store.spec.cpus:
        return False
    for key, count in job.gres.items():
        kind = key.split(":")[0]
        used = sum(
            number
            for other in here
            for name, number in other.gres.items()
            if name == key or name.split(":")[0] == kind
        )
        if used + count > _offered(store, key):
            return False
    return True


def _fixed_reason(store: Store, faults: FaultBox, job: Job, now: float) -> str | None:
    """Why the job cannot start whatever is free."""
    slow = faults.find(SlowQueue, job.name)
    if slow is not None and now < job.submit + slow.seconds:
        return slow.reason
    if job.held:
        return "JobHeldUser"
    if now < job.begin:
        return "BeginTime"
    return _limits(store, job)


def try_start(store: Store, job: Job, jobs: Sequence[Job], faults: FaultBox) -> bool:
    """Give the job its nodes and the state RUNNING, or a reason to wait. Call under the lock; writes what
    changed."""
    now = time.time()
    before = job.reason
    job.reason = _fixed_reason(store, faults, job, now) or ""
    nodes: list[str] = []
    if not job.reason:
        nodes, job.reason = _place(store, faults, job, jobs, now)
    if nodes:
        job.nodes, job.state, job.reason, job.start = nodes, "RUNNING", "None", now
        holders = [other for other in jobs if other.state in ("RUNNING", "COMPLETING") and other.id != job.id]
        job.gpus = take_gpus(store.spec, job, nodes, holders)
    if nodes or job.reason != before:
        store.put(job)
    return bool(nodes)


def _place(
    store: Store, faults: FaultBox, job: Job, jobs: Sequence[Job], now: float
) -> tuple[list[str], str]:
    waiting = [other for other in jobs if other.state == "PENDING" and other.id < job.id]
    if any(
        other.partition == job.partition and _fixed_reason(store, faults, other, now) is None
        for other in waiting
    ):
        return [], "Priority"
    unusable = store.node_states()
    candidates = [name for name in partition_nodes(store, job.partition) if name not in job.excluded]
    if job.wanted:
        gone = [name for name in job.wanted if name in unusable]
        if gone:
            return [], f"ReqNodeNotAvail, UnavailableNodes:{hostlist.compress(gone)}"
        # Asked-for nodes come first; more are added when the count is higher.
        candidates = sorted(candidates, key=lambda name: name not in job.wanted)
    up = [name for name in candidates if name not in unusable]
    if len(up) < job.nodes_min:
        return [], _DOWN
    holders = [other for other in jobs if other.state in ("RUNNING", "COMPLETING")]
    free: list[str] = []
    for name in up:
        if _free(store, job, holders, name):
            free.append(name)
        if len(free) == job.nodes_max:
            break
    if len(free) < job.nodes_min or any(name not in free for name in job.wanted):
        return [], "Resources"
    order = {name: at for at, name in enumerate(partition_nodes(store, job.partition))}
    return sorted(free, key=order.__getitem__), "None"
