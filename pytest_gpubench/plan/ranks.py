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
from pytest_gpubench.recipe.parallel import SIZE_FLAGS, without_sizes
from pytest_gpubench.recipe.types import Deployment, Parallel, Role

__all__ = [
    "ROUTER_METRICS_PORT",
    "ROUTER_PORT",
    "RankPlan",
    "WorkerPlan",
    "head_variable",
    "plan_router",
    "plan_workers",
    "port_variable",
]

ROUTER_PORT = "GPUBENCH_ROUTER_PORT"
"""Shell variable with the port that the router listens on, on the first worker's head node."""
ROUTER_METRICS_PORT = "GPUBENCH_ROUTER_METRICS_PORT"
"""Shell variable with the port of the router's own metrics."""
_SIZES = (*SIZE_FLAGS, "ep")
_BOTH_SIDES = ("NixlConnector", "MultiConnector", "OffloadingConnector")
_ROUTER_CONNECTORS = {"MooncakeConnector": "mooncake", "MoRIIOConnector": "moriio"}

DEFAULT_ROUTER = (
    "vllm-router", "--vllm-pd-disaggregation", "{prefill}", "{decode}",
    "--host", "{host}", "--port", "{port}", "--prometheus-port", "{metrics_port}",
)  # fmt: skip
"""The command line of vllm-router 0.1 for prefill and decode workers; its metrics port is fixed otherwise."""


@dataclass(frozen=True)
class RankPlan:
    """One process: ``node`` indexes the allocation, ``name`` names its log and its exit record."""

    worker: int
    role: str  # server, prefill, decode, router
    rank: int
    node: int
    name: str
    argv: tuple[str, ...]
    num_nodes: int = 1  # of its worker
    command: str | None = None  # a site hook's shell command, which replaces argv
    devices: str | None = None  # ``CUDA_VISIBLE_DEVICES=0,1`` where workers share a node

    @property
    def words(self) -> tuple[str, ...]:
        """What the rank's wrapper becomes. A site's own command finds ours in its arguments, ``"$@"``."""
        prefix = ("env", self.devices) if self.devices else ()
        own = self.argv if self.command is None else ("bash", "-c", self.command, self.name, *self.argv)
        return (*prefix, *own)

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
        return (_worker(deployment, _Place(0, "server", 0, 0, deployment.num_nodes), None),)
    workers: list[WorkerPlan] = []
    roles = (deployment.prefill, deployment.decode)
    shared = sum(role.nodes for role in roles) > deployment.num_nodes  # one host holds both roles
    node, used = 0, 0  # the next free node, and the GPUs of it that are taken
    for role in roles:
        if role.workers == 0:  # InferenceX writes an aggregated deployment as decode with no worker
            continue
        size = role.parallel.world_size
        packed = shared or role.nodes < role.workers
        per_worker = 1 if packed else role.nodes // role.workers
        for number in range(role.workers):
            if used + size > deployment.gpus_per_node and used:
                node, used = node + 1, 0
            devices = tuple(range(used, used + size)) if packed else ()
            place = _Place(len(workers), role.name, number, node, per_worker, devices)
            workers.append(_worker(deployment, place, role))
            if packed:
                used += size
            else:
                node += per_worker
        if used and not shared:
            node, used = node + 1, 0
    return tuple(workers)


def plan_router(deployment: Deployment) -> RankPlan | None:
    """The router in front of a disaggregated deployment: a process of its own on the first node.

    A command template may name, as words of their own, ``{prefill}`` and ``{decode}`` (the workers' URLs,
    each after an option of that name), ``{prefill_urls}`` and ``{decode_urls}`` (the bare URLs), ``{host}``,
    ``{port}`` and ``{metrics_port}``; the default is vllm-router's own command line.
    """
    settings = deployment.router
    if settings is None or deployment.prefill is None or deployment.decode is None:
        return None
    urls: dict[str, list[str]] = {"prefill": [], "decode": []}
    for worker in plan_workers(deployment):
        head, port = head_variable(worker.index), port_variable("API", worker.index)
        urls[worker.role].append(Runtime(f"http://${{{head}}}:${{{port}}}"))
    options: dict[str, list[str]] = {
        "{prefill}": [word for url in urls["prefill"] for word in ("--prefill", url)],
        "{decode}": [word for url in urls["decode"] for word in ("--decode", url)],
        "{prefill_urls}": urls["prefill"],
        "{decode_urls}": urls["decode"],
        "{host}": ["0.0.0.0"],
        "{port}": [Runtime(f"${{{ROUTER_PORT}}}")],
        "{metrics_port}": [Runtime(f"${{{ROUTER_METRICS_PORT}}}")],
    }
    template = shlex.split(settings.command) if settings.command else _default_router(deployment)
    argv = [part for word in template for part in options.get(word, [word])]
    return RankPlan(0, "router", 0, 0, "router", (*argv, *settings.args))


def _default_router(deployment: Deployment) -> list[str]:
    connector = json.loads(deployment.kv_transfer or "{}").get("kv_connector")
    name = _ROUTER_CONNECTORS.get(connector)
    return [*DEFAULT_ROUTER, *(("--kv-connector", name) if name is not None else ())]


@dataclass(frozen=True)
class _Place:
    """Where a worker stands; ``devices`` are its GPUs on a node that it shares, empty for whole nodes."""

    index: int
    role: str
    number: int
    first_node: int
    num_nodes: int
    devices: tuple[int, ...] = ()


def _worker(deployment: Deployment, place: _Place, role: Role | None) -> WorkerPlan:
    prefix = "" if role is None else f"{role.name}-{place.number}-"
    ranks = tuple(
        RankPlan(
            worker=place.index,
            role=place.role,
            rank=rank,
            node=place.first_node + rank,
            name=f"{prefix}rank-{rank}",
            argv=_serve_argv(deployment, place.index, rank, place.num_nodes, role),
            num_nodes=place.num_nodes,
            command=deployment.profile.slurm.server_command,
            devices=_devices(deployment, place.devices),
        )
        for rank in range(place.num_nodes)
    )
    return WorkerPlan(place.index, place.role, place.number, place.first_node, place.num_nodes, ranks)


def _devices(deployment: Deployment, devices: tuple[int, ...]) -> str | None:
    """``NAME=0,1`` for a worker that has a part of its node's GPUs."""
    if not devices:
        return None
    amd = deployment.profile.platform.startswith("mi")
    name = "HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES"
    return f"{name}={','.join(map(str, devices))}"


def _serve_argv(
    deployment: Deployment, worker: int, rank: int, nodes: int, role: Role | None
) -> tuple[str, ...]:
    model = Runtime("${GPUBENCH_MODEL}") if deployment.preferred_path else deployment.model_path
    argv: list[str] = ["vllm", "serve", model]
    if role is None:
        argv += deployment.serve_args
    else:
        # A role has its own sizes: those that all share, or that it repeats itself, would contradict them.
        argv += without_sizes(deployment.serve_args, _SIZES)
    if (deployment.preferred_path or deployment.check_model_path) and not _names_itself(deployment):
        # Staged or not, the API answers to the hub id.
        argv += ["--served-model-name", deployment.model]
    if role is not None:
        argv += [*_sizes(role.parallel), *without_sizes(role.serve_args, _SIZES)]
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


def _sizes(parallel: Parallel) -> list[str]:
    """The options of a role's parallel sizes; those that are 1 are vLLM's defaults."""
    argv = [
        word
        for short, flag in SIZE_FLAGS.items()
        if (size := getattr(parallel, short)) > 1
        for word in (f"--{flag}", str(size))
    ]
    return [*argv, "--enable-expert-parallel"] if parallel.ep > 1 else argv


def _names_itself(deployment: Deployment) -> bool:
    return any(argument.split("=", 1)[0] == "--served-model-name" for argument in deployment.serve_args)


def _kv_config(text: str, role: str) -> str:
    """The role's own ``--kv-transfer-config``: ``kv_role`` filled in unless the recipe says it."""
    config = json.loads(text)
    side = "kv_producer" if role == "prefill" else "kv_consumer"
    config.setdefault("kv_role", "kv_both" if config.get("kv_connector") in _BOTH_SIDES else side)
    return json.dumps(config, separators=(",", ":"))
