"""Which process runs on which node: the ``vllm serve`` command of every rank, pure.

An aggregated deployment has one worker. A disaggregated one has its prefill workers first, then its
decode workers, every worker on nodes of its own. Each worker is one server: rank 0 is its head and
has the API; the other ranks run ``--headless``.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.recipe.types import Deployment, Role

__all__ = ["RankPlan", "WorkerPlan", "head_variable", "plan_router", "plan_workers", "port_variable"]

DEFAULT_ROUTER = ["vllm-router", "--vllm-pd-disaggregation", "{prefill}", "{decode}"]
DEFAULT_ROUTER += ["--host", "{host}", "--port", "{port}"]
"""vllm-router's command line for prefill and decode workers."""


@dataclass(frozen=True)
class RankPlan:
    """One process: ``node`` indexes the allocation, ``name`` names its log and its exit record."""

    worker: int
    role: str  # server, prefill, decode, router
    rank: int
    node: int
    name: str
    argv: tuple[str, ...]
    command: str | None = None  # a site hook's shell command, which replaces argv

    @property
    def is_head(self) -> bool:
        """Rank 0 serves the API of its worker."""
        return self.rank == 0


@dataclass(frozen=True)
class WorkerPlan:
    """One server: ``role`` is server, prefill or decode; ``index`` counts over all workers."""

    index: int
    role: str
    number: int  # within its role
    first_node: int
    num_nodes: int
    ranks: tuple[RankPlan, ...]

    @property
    def label(self) -> str:
        """``prefill-0``; plain ``server`` when there is only the one."""
        return self.role if self.role == "server" else f"{self.role}-{self.number}"


def head_variable(worker: int) -> str:
    """Shell variable with the address of a worker's head node."""
    return f"GPUBENCH_HEAD_{worker}"


def port_variable(kind: str, worker: int) -> str:
    """Shell variable with a port of a worker; ``kind``: API, MASTER, DP, VLLM or SIDE."""
    return f"GPUBENCH_{kind}_PORT_{worker}"


def plan_workers(deployment: Deployment) -> tuple[WorkerPlan, ...]:
    """All workers with their ranks, in the order of their nodes."""
    if deployment.prefill is None or deployment.decode is None:
        return (_worker(deployment, 0, "server", 0, 0, deployment.num_nodes, None),)
    workers: list[WorkerPlan] = []
    node = 0
    for role in (deployment.prefill, deployment.decode):
        if role.workers == 0:  # InferenceX writes an aggregated deployment as decode with no worker
            continue
        per_worker = max(1, role.nodes // role.workers)
        for number in range(role.workers):
            workers.append(_worker(deployment, len(workers), role.name, number, node, per_worker, role))
            node += per_worker
    return tuple(workers)


def plan_router(deployment: Deployment) -> RankPlan | None:
    """The router in front of a disaggregated deployment: a process of its own on the first node.

    A command template may name ``{prefill}`` and ``{decode}`` (the workers' URLs as repeated options),
    ``{host}`` and ``{port}``; the default is vllm-router's own command line.
    """
    settings = deployment.router
    if settings is None:
        return None
    urls: dict[str, list[str]] = {"prefill": [], "decode": [], "server": []}
    for worker in plan_workers(deployment):
        head, port = head_variable(worker.index), port_variable("API", worker.index)
        urls[worker.role].append(Runtime(f"http://${{{head}}}:${{{port}}}"))
    listen = Runtime("${GPUBENCH_ROUTER_PORT}")
    options: dict[str, list[str]] = {
        "{prefill}": [word for url in urls["prefill"] for word in ("--prefill", url)],
        "{decode}": [word for url in urls["decode"] for word in ("--decode", url)],
        "{workers}": [word for url in urls["server"] for word in ("--worker-urls", url)],
        "{host}": ["0.0.0.0"],
        "{port}": [listen],
    }
    template: list[str] = shlex.split(settings.command) if settings.command else DEFAULT_ROUTER
    argv = [part for word in template for part in options.get(word, [word])]
    return RankPlan(0, "router", 0, 0, "router", (*argv, *settings.args))


def _worker(
    deployment: Deployment, index: int, role: str, number: int, node: int, nodes: int, settings: Role | None
) -> WorkerPlan:
    ranks = []
    for rank in range(nodes):
        prefix = "" if role == "server" else f"{role}-{number}-"
        ranks.append(
            RankPlan(
                worker=index,
                role=role,
                rank=rank,
                node=node + rank,
                name=f"{prefix}rank-{rank}",
                argv=_serve_argv(deployment, index, rank, nodes, settings),
                command=deployment.profile.slurm.server_command,
            )
        )
    return WorkerPlan(index, role, number, node, nodes, tuple(ranks))


def _serve_argv(
    deployment: Deployment, worker: int, rank: int, nodes: int, role: Role | None
) -> tuple[str, ...]:
    model = Runtime("${GPUBENCH_MODEL}") if deployment.preferred_path else deployment.model_path
    argv: list[str] = ["vllm", "serve", model, *deployment.serve_args]
    if deployment.preferred_path and not _names_itself(deployment):
        # Staged or not, the API answers to the hub id.
        argv += ["--served-model-name", deployment.model]
    if role is not None:
        argv += role.serve_args
        if deployment.kv_transfer is not None:
            argv += ["--kv-transfer-config", _kv_config(deployment.kv_transfer, role.name)]
    if nodes > 1:
        argv += ["--distributed-executor-backend", "mp"]
        argv += ["--nnodes", str(nodes)]
        argv += ["--master-addr", Runtime(f"${{{head_variable(worker)}}}")]
        # vLLM's default master port is a fixed 29501: two jobs on one node would meet on it.
        argv += ["--master-port", Runtime(f"${{{port_variable('MASTER', worker)}}}")]
        argv += ["--node-rank", str(rank)]
        parallel = deployment.parallel if role is None else role.parallel
        if parallel.dp > 1:
            argv += ["--data-parallel-rpc-port", Runtime(f"${{{port_variable('DP', worker)}}}")]
    if rank == 0:
        argv += ["--host", "0.0.0.0", "--port", Runtime(f"${{{port_variable('API', worker)}}}")]
    else:
        argv += ["--headless"]
    return tuple(argv)


def _names_itself(deployment: Deployment) -> bool:
    return any(argument.split("=", 1)[0] == "--served-model-name" for argument in deployment.serve_args)


def _kv_config(text: str, role: str) -> str:
    """The role's own ``--kv-transfer-config``: ``kv_role`` filled in unless the recipe says it."""
    config = json.loads(text)
    default = "kv_both" if config.get("kv_connector") == "NixlConnector" else None
    config.setdefault("kv_role", default or ("kv_producer" if role == "prefill" else "kv_consumer"))
    return json.dumps(config, separators=(",", ":"))
