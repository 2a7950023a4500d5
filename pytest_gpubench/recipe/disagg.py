"""Prefill and decode on workers of their own: roles, router, and the KV transfer configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_gpubench.recipe.models import DeploymentModel, RoleModel
from pytest_gpubench.recipe.parallel import parallel_id
from pytest_gpubench.recipe.problems import near
from pytest_gpubench.recipe.source import Allocation, Source, allocation_of, serve_arguments
from pytest_gpubench.recipe.types import Deployment, Parallel, Role, RouterSettings
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["disaggregated", "kv_transfer_json"]

# vLLM's KVTransferConfig by the short names that recipes use.
_KV_NAMES = {
    "connector": "kv_connector",
    "role": "kv_role",
    "buffer_device": "kv_buffer_device",
    "buffer_size": "kv_buffer_size",
    "rank": "kv_rank",
    "parallel_size": "kv_parallel_size",
    "ip": "kv_ip",
    "port": "kv_port",
    "load_failure_policy": "kv_load_failure_policy",
    "extra_config": "kv_connector_extra_config",
    "module_path": "kv_connector_module_path",
    "engine_id": "engine_id",
    "enable_permute_local_kv": "enable_permute_local_kv",
}


def kv_transfer_json(settings: dict[str, object]) -> str:
    """The text of ``--kv-transfer-config``. Raises ValueError naming a key that vLLM does not have."""
    config: dict[str, object] = {}
    for key, value in settings.items():
        name = _KV_NAMES.get(key, key)
        if name not in _KV_NAMES.values():
            raise ValueError(f"unknown key {key!r}{near(key, [*_KV_NAMES, *_KV_NAMES.values()])}")
        if name in config:
            raise ValueError(f"{key!r} is given twice")
        config[name] = value
    if not isinstance(config.get("kv_connector"), str):
        raise ValueError("expected connector, such as NixlConnector")
    if config["kv_connector"] == "NixlConnector":  # others have sides, which the plan fills in by role
        config.setdefault("kv_role", "kv_both")
    return json.dumps(config, allow_nan=False)


def disaggregated(
    source: Source, base: Deployment, model: DeploymentModel, arguments: Sequence[str], where: KeyPath
) -> tuple[Deployment, str]:
    """``base`` with its roles filled in, and its id: ``3p-tp1-dp8-ep-1d-tp1-dp8-ep``."""
    point_level = source.file.holds((*where, "prefill"))
    place: KeyPath = where if point_level else ("deployment",)
    prefill = _role(source, "prefill", model.prefill, (*place, "prefill"))
    decode = _role(source, "decode", model.decode, (*place, "decode"))
    if source.profile.runtime == "slurm":
        per_node = _gpus_per_node(source, max(prefill.parallel.world_size, decode.parallel.world_size))
        prefill = replace(
            prefill, nodes=_nodes(source, prefill, model.prefill, per_node, (*place, "prefill"))
        )
        decode = replace(decode, nodes=_nodes(source, decode, model.decode, per_node, (*place, "decode")))
        allocation = Allocation(prefill.nodes + decode.nodes, per_node)
    else:
        prefill, decode, allocation = _one_host(source, prefill, decode, where)
    stated = source.model.num_nodes
    if stated is not None and stated != allocation.num_nodes:
        source.problems.add(
            ("num_nodes",),
            f"prefill takes {prefill.nodes} nodes and decode {decode.nodes}, "
            f"together {allocation.num_nodes} (got {stated})"
            if source.profile.runtime == "slurm"
            else f"the runtime {source.profile.runtime} has one host (got {stated})",
        )
    if source.model.num_gpus is not None and source.model.num_gpus != allocation.gpus:
        source.problems.add(
            ("num_gpus",),
            f"contradicts the allocation of {allocation.num_nodes} nodes x {allocation.gpus_per_node} GPUs "
            f"= {allocation.gpus} (got {source.model.num_gpus})",
        )
    try:
        kv_transfer = kv_transfer_json(model.kv_transfer)
    except ValueError as error:
        source.problems.add(("deployment", "kv_transfer"), str(error))
        kv_transfer = ""
    router = model.router
    deployment = replace(
        base,
        serve_args=tuple(arguments),
        parallel=decode.parallel,
        num_nodes=allocation.num_nodes,
        gpus_per_node=allocation.gpus_per_node,
        gpu_count=allocation.gpus,
        prefill=prefill,
        decode=decode,
        router=RouterSettings(router.command, router.args, router.name, router.version)
        if router is not None
        else RouterSettings(),
        kv_transfer=kv_transfer,
    )
    return deployment, f"{_role_id(prefill, model.prefill, 'p')}-{_role_id(decode, model.decode, 'd')}"


def _role(source: Source, name: str, model: RoleModel, where: KeyPath) -> Role:
    whole = model.tp * model.dp * model.pcp
    if not isinstance(model.ep, bool) and model.ep not in (1, whole):
        source.problems.add((*where, "ep"), f"expected true, false, 1 or TP x DP = {whole} (got {model.ep})")
    own = serve_arguments(source, where, {"serve_args": model.serve_args, "serve": model.serve})
    return Role(
        name=name,
        workers=model.workers,
        parallel=Parallel(model.tp, model.pp, model.dp, whole if _expert(model) else 1, model.pcp, model.dcp),
        nodes=model.nodes or 0,
        serve_args=tuple(own),
        env=tuple((model.env or {}).items()),
        dp_attention=model.dp_attention,
    )


def _one_host(source: Source, prefill: Role, decode: Role, where: KeyPath) -> tuple[Role, Role, Allocation]:
    """Docker and native: all workers on this host, each on GPUs of its own."""
    needed = prefill.gpus + decode.gpus
    held = source.model.gpus_per_node or source.model.num_gpus or needed
    if needed > held:
        source.problems.add(
            where, f"prefill needs {prefill.gpus} GPUs and decode {decode.gpus}, but this host has {held}"
        )
    return replace(prefill, nodes=1), replace(decode, nodes=1), Allocation(1, held)


def _expert(model: RoleModel) -> bool:
    return model.ep if isinstance(model.ep, bool) else model.ep > 1


def _role_id(role: Role, model: RoleModel, letter: str) -> str:
    return f"{role.workers}{letter}-{parallel_id(role.parallel, expert=_expert(model))}"


def _gpus_per_node(source: Source, largest: int) -> int:
    if source.model.gpus_per_node is None and source.model.num_nodes is None:
        # A total cannot be split before the roles' nodes are known: one worker's size decides.
        metadata = source.model.vllm_bench.metadata if source.model.vllm_bench else None
        if source.model.num_gpus is not None and not (metadata and metadata.gpus_per_node):
            return min(largest, source.model.num_gpus)
    return allocation_of(source, largest, ()).gpus_per_node


def _nodes(source: Source, role: Role, model: RoleModel, per_node: int, where: KeyPath) -> int:
    """Nodes of a role: as written, else each worker on nodes of its own."""
    size = role.parallel.world_size
    nodes = model.nodes or role.workers * math.ceil(size / per_node)
    needed, held = role.gpus, nodes * per_node
    if needed > held:
        source.problems.add(
            where, f"{role.workers} workers x {size} GPUs need {needed} GPUs, {nodes} nodes have {held}"
        )
    if size > per_node and size % per_node != 0:
        source.problems.add(where, f"a worker of {size} GPUs does not divide into nodes of {per_node} GPUs")
    return nodes
