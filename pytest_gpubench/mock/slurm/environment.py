"""The environment that Slurm gives to batch scripts and tasks, and what ``--export`` makes of the
caller's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .. import hostlist, procs
from . import resources
from .model import Job, Step
from .store import ENV, Store

__all__ = ["batch", "export", "pattern", "task"]


def export(text: str | None, caller: Mapping[str, str], *, step: bool) -> dict[str, str]:
    """The part of the caller's environment that ``--export`` lets through.

    Values are cut at commas, as Slurm's are. With ALL, a step keeps a variable's own value over an assigned
    one.
    """
    words = (text or "ALL").split(",")
    if words[0].upper() in ("NONE", "NIL"):
        kept = (
            {}
            if step
            else {name: caller[name] for name in ("HOME", "USER", "SHELL", "PATH") if name in caller}
        )
    elif "ALL" in words:
        kept = dict(caller)
    else:
        kept = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and not (step and "ALL" in words and name in caller):
            kept[name] = value
        elif not equals and name in caller:
            kept[name] = caller[name]
    kept.update({name: value for name, value in caller.items() if name.startswith("SLURM_") and step})
    return kept


def pattern(job: Job) -> dict[str, str]:
    """The letters of an output file name that are the job's."""
    return {
        "j": str(job.id),
        "A": str(job.id),
        "J": str(job.id),
        "a": "4294967294",  # of no array
        "s": "batch",
        "t": "0",
        "n": "0",
        "x": job.name,
        "u": job.user,
        "N": _first(job),
    }


def _first(job: Job) -> str:
    return job.nodes[0] if job.nodes else ""


def _reach(store: Store, env: dict[str, str], mark: str) -> dict[str, str]:
    """Whatever the job exports, its commands are those of the mock."""
    bin_dir = str(store.folder / "bin")
    path = env.get("PATH")
    if path is not None:  # --export=NONE leaves a step without one
        env["PATH"] = path if path.split(":")[0] == bin_dir else f"{bin_dir}:{path}"
    env[ENV] = str(store.folder)
    env[procs.MARK] = mark
    return env


def _job(store: Store, job: Job) -> dict[str, str]:
    nodes, cpus = len(job.nodes), resources.cpus_on_node(store.spec, job)
    env = {
        "SLURM_CLUSTER_NAME": store.spec.name,
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_JOB_NODELIST": hostlist.compress(job.nodes),
        "SLURM_NODELIST": hostlist.compress(job.nodes),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_NNODES": str(len(job.nodes)),
        "SLURM_SUBMIT_DIR": job.submit_dir,
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": resources.per_node(resources.tasks_on_node(store.spec, job), nodes),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOB_CPUS_PER_NODE": resources.per_node(cpus, nodes),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": "0",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_WORKING_CLUSTER": f"{store.spec.name}:127.0.0.1:6817:9728:109",
    }
    if job.counted:
        env.update(SLURM_NTASKS=str(job.tasks), SLURM_NPROCS=str(job.tasks))
    if job.tasks_per_node:
        env["SLURM_NTASKS_PER_NODE"] = str(job.tasks_per_node)
    if job.cpus_per_task:
        env["SLURM_CPUS_PER_TASK"] = str(job.cpus_per_task)
    if job.memory_mb:
        env["SLURM_MEM_PER_NODE"] = str(job.memory_mb)
    if job.account:
        env["SLURM_JOB_ACCOUNT"] = job.account
    if job.restarts:
        env["SLURM_RESTART_COUNT"] = str(job.restarts)
    return env


def _gpus(name: str, numbers: Sequence[int]) -> dict[str, str]:
    """CUDA's variable, Slurm's own of that ``name``, and the count."""
    text = ",".join(map(str, numbers))
    return {"CUDA_VISIBLE_DEVICES": text, name: text, "SLURM_GPUS_ON_NODE": str(len(numbers))}


def batch(store: Store, job: Job, caller: Mapping[str, str]) -> dict[str, str]:
    """The environment of the batch script, on the first node."""
    env = {**caller, **_job(store, job)}
    env.update(
        ENVIRONMENT="BATCH",
        HOSTNAME=_first(job),
        TMPDIR="/tmp",
        SLURMD_NODENAME=_first(job),
        SLURM_NODEID="0",
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        SLURM_GTIDS="0",
        SLURM_TOPOLOGY_ADDR=_first(job),
    )
    if gpus := job.gpus.get(_first(job)):
        env.update(_gpus("SLURM_JOB_GPUS", gpus))
    if job.export is not None and job.export.upper() != "ALL":
        env["SLURM_EXPORT_ENV"] = job.export  # every srun of the script takes it for its own
    if (job.export or "").upper().startswith(("NONE", "NIL")):
        env["SLURM_GET_USER_ENV"] = "1"
    return _reach(store, env, f"{store.folder}:{job.id}:batch.")


_ALWAYS = {
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_USER",
    "SLURM_JOB_UID",
    "SLURM_NODELIST",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_GID",
    "SLURM_PRIO_PROCESS",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_WORKING_CLUSTER",
}
"""What a step tells its tasks of the job, whatever srun's own environment says."""


def task(
    store: Store,
    job: Job,
    step: Step,
    caller: Mapping[str, str],
    placed: Sequence[str],
    rank: int,
    options: Mapping[str, str],
) -> dict[str, str]:
    """The environment of one task; ``placed`` has the node of each rank, ``options`` are srun's."""
    node = placed[rank]
    here = [number for number, name in enumerate(placed) if name == node]
    each = [placed.count(name) for name in step.nodes]
    per_node = (
        f"{each[0]}(x{len(each)})" if len(each) > 1 and len(set(each)) == 1 else ",".join(map(str, each))
    )
    nodes = hostlist.compress(step.nodes)
    # From within the job these are the job's own; an srun from outside knows only its step.
    env = {"SLURM_JOB_NAME": step.name, "SLURM_JOB_NODELIST": nodes, **caller}
    for name, value in _job(store, job).items():
        if name in _ALWAYS:
            env[name] = value
    env.update(
        TMPDIR="/tmp",
        SLURM_STEP_ID=str(step.id),
        SLURM_STEPID=str(step.id),
        SLURM_STEP_NODELIST=nodes,
        SLURM_STEP_NUM_NODES=str(len(step.nodes)),
        SLURM_STEP_NUM_TASKS=str(len(placed)),
        SLURM_STEP_TASKS_PER_NODE=per_node,
        SLURM_NNODES=str(len(step.nodes)),
        SLURM_TASKS_PER_NODE=per_node,
        SLURM_PROCID=str(rank),
        SLURM_LOCALID=str(here.index(rank)),
        SLURM_GTIDS=",".join(map(str, here)),
        SLURM_NODEID=str(step.nodes.index(node)),
        SLURMD_NODENAME=node,
        SLURM_LAUNCH_NODE_IPADDR="127.0.0.1",
        SLURM_DISTRIBUTION="cyclic",
        SLURM_UMASK="0022",
        SLURM_TOPOLOGY_ADDR=node,
    )
    env.update(SLURM_NTASKS=str(len(placed)), SLURM_NPROCS=str(len(placed)))
    for key in ("ntasks-per-node", "cpus-per-task"):
        if key in options:
            env[f"SLURM_{key.upper().replace('-', '_')}"] = options[key]
    mine = job.gpus.get(node, [])
    gpus = resources.share_of_task(mine, options, here.index(rank), len(step.nodes)) if mine else None
    if gpus:
        env.update(_gpus("SLURM_STEP_GPUS", gpus))
    elif mine:
        env.pop("CUDA_VISIBLE_DEVICES", None)
    return _reach(store, env, f"{store.folder}:{job.id}:{step.id}.")
