"""The environment that Slurm gives to batch scripts and tasks, and what ``--export`` makes of the
caller's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .. import hostlist, procs
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
        "x": job.name,
        "u": job.user,
        "N": _first(job),
    }


def _first(job: Job) -> str:
    return job.nodes[0] if job.nodes else ""


def _reach(store: Store, env: dict[str, str], mark: str) -> dict[str, str]:
    """Whatever the job exports, its commands are those of the mock."""
    bin_dir = str(store.folder / "bin")
    path = env.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    env["PATH"] = path if path.split(":")[0] == bin_dir else f"{bin_dir}:{path}"
    env[ENV] = str(store.folder)
    env[procs.MARK] = mark
    return env


def _job(store: Store, job: Job) -> dict[str, str]:
    each = job.tasks_per_node or max(1, job.tasks // max(1, len(job.nodes)))
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
        "SLURM_SUBMIT_DIR": job.workdir,
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": str(each) + (f"(x{len(job.nodes)})" if len(job.nodes) > 1 else ""),
        "SLURM_CPUS_ON_NODE": str(store.spec.cpus),
    }
    if job.account:
        env["SLURM_JOB_ACCOUNT"] = job.account
    if job.restarts:
        env["SLURM_RESTART_COUNT"] = str(job.restarts)
    gpus = sum(count for key, count in job.gres.items() if key.split(":")[0] == "gpu")
    if gpus:
        env["SLURM_GPUS_ON_NODE"] = str(gpus)
    return env


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
    )
    return _reach(store, env, f"{store.folder}:{job.id}:batch.")


_ALWAYS = {
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_USER",
    "SLURM_JOB_UID",
    "SLURM_NODELIST",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
}
"""What a step tells its tasks of the job, whatever srun's own environment says."""


def task(
    store: Store,
    job: Job,
    step: Step,
    caller: Mapping[str, str],
    placed: Sequence[str],
    rank: int,
    counted: bool,
) -> dict[str, str]:
    """The environment of one task; ``placed`` has the node of each rank, ``counted`` says that -n was
    given."""
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
        SLURM_TOPOLOGY_ADDR=node,
    )
    if counted:
        env.update(SLURM_NTASKS=str(len(placed)), SLURM_NPROCS=str(len(placed)))
    return _reach(store, env, f"{store.folder}:{job.id}:{step.id}.")
