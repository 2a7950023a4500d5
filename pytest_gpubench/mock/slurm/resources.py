"""CPUs and GPUs of jobs and steps: how many, and which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .model import ClusterSpec, Job

__all__ = ["cpus_on_node", "gpu_numbers", "per_node", "share_of_task", "take_gpus", "tasks_on_node"]


def cpus_on_node(spec: ClusterSpec, job: Job) -> int:
    """CPUs that the job has, or asks for, on each of its nodes."""
    if job.exclusive and job.start:
        return spec.cpus
    nodes = max(1, len(job.nodes) or job.nodes_min)
    each = job.tasks_per_node or -(-job.tasks // nodes)
    return max(1, each) * max(1, job.cpus_per_task)


def tasks_on_node(spec: ClusterSpec, job: Job) -> int:
    """Tasks that fit on a node where none were asked for: one for each CPU."""
    if job.tasks_per_node:
        return job.tasks_per_node
    if job.counted:
        return max(1, job.tasks // max(1, len(job.nodes)))
    return cpus_on_node(spec, job) // max(1, job.cpus_per_task)


def per_node(count: int, nodes: int) -> str:
    """``4(x2)``, as Slurm writes a number that holds for several nodes."""
    return f"{count}(x{nodes})" if nodes > 1 else str(count)


def _is_gpu(key: str) -> bool:
    return key.split(":")[0] == "gpu"


def gpu_numbers(spec: ClusterSpec, wanted: str) -> list[int]:
    """The numbers of a node's GPUs that a request may get; one without a type gets any."""
    found: list[int] = []
    first = 0
    for key, count in spec.gres.items():
        if _is_gpu(key):
            if wanted in (key, "gpu"):
                found.extend(range(first, first + count))
            first += count
    return found


def take_gpus(
    spec: ClusterSpec, job: Job, nodes: Sequence[str], holders: Sequence[Job]
) -> dict[str, list[int]]:
    """The GPUs that a job gets on each of its nodes, the lowest free ones."""
    found: dict[str, list[int]] = {}
    for node in nodes:
        taken = {number for other in holders for number in other.gpus.get(node, ())}
        mine: list[int] = []
        for key, count in job.gres.items():
            if _is_gpu(key):
                free = [
                    number for number in gpu_numbers(spec, key) if number not in taken and number not in mine
                ]
                mine.extend(free[:count])
        if mine:
            found[node] = sorted(mine)
    return found


def share_of_task(
    mine: Sequence[int], options: Mapping[str, str], local: int, nodes: int
) -> list[int] | None:
    """The GPUs of the task with the number ``local`` on its node, out of those of the job there.

    ``options`` are srun's, as counts of GPUs by option. None: the step asked for none (--gres=none).
    """
    if options.get("gres") == "none":
        return None
    each = int(options.get("gpus-per-task") or 0)
    if each:
        return list(mine[local * each : (local + 1) * each])
    count = int(options.get("gres") or options.get("gpus-per-node") or 0)
    if not count and "gpus" in options:
        count = -(-int(options["gpus"]) // max(1, nodes))
    return list(mine[:count] if count else mine)
