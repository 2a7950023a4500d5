"""The GPUs and nodes behind an InferenceX topology, and the typed part of ``additional-settings``. Pure.

InferenceX counts ``tp x pp x pcp`` GPUs per worker. With ``dp-attn`` attention is data-parallel inside the
expert group, which has ``max(tp, ep)`` GPUs: ``tp: 1, ep: 8`` and ``tp: 8, ep: 8`` are the same DEP8, eight
ranks on eight GPUs, and ``tp: 4, ep: 16`` is four replicas of TP4.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry, worker_block
from pytest_gpubench.recipe.inferencex.parts import Worker
from pytest_gpubench.recipe.inferencex.schema import CLUSTER_PREFIX, RunnersFile
from pytest_gpubench.recipe.types import Pairs, Parallel, Role

__all__ = [
    "Topology",
    "family",
    "gpus_per_node",
    "inferencex_block",
    "parse_settings",
    "sizes",
    "topology_of",
]

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COUNTS = ("DECODE_NODES", "PREFILL_WORKERS", "DECODE_WORKERS")
_POSITIVE = ("PREFILL_NODES", "GPUS_PER_NODE")
_RATIOS = ("MAX_FAILURE_RATE", "RANDOM_RANGE_RATIO")
_FACTORS = ("BENCH_NUM_PROMPTS_MULTIPLIER",)
_FOUR_PER_NODE = frozenset({"gb200", "gb300"})


def parse_settings(written: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """``K=V`` texts as a mapping, and what is wrong with them. InferenceX exports them unquoted."""
    values: dict[str, str] = {}
    problems: list[str] = []
    for text in written:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.fullmatch(key):
            problems.append(f"must be NAME=VALUE (got {text!r})")
        elif re.search(r"\s", value):
            problems.append(f"{key}: blanks split the exported value in two (got {value!r})")
        elif values.setdefault(key, value) != value:
            problems.append(f"{key} is set twice, to {values[key]!r} and to {value!r}")
        else:
            problems += _wrong_value(key, value)
    return values, problems


def _wrong_value(key: str, value: str) -> list[str]:
    if key in _COUNTS and not re.fullmatch(r"\d+", value):
        return [f"{key} must be a whole number (got {value!r})"]
    if key in _POSITIVE and not re.fullmatch(r"0*[1-9]\d*", value):
        return [f"{key} must be a whole number above 0 (got {value!r})"]
    if key in _RATIOS:
        number = _float(value)
        if number is None or not 0 <= number <= 1:
            return [f"{key} must be a number from 0 to 1 (got {value!r})"]
    if key in _FACTORS:
        number = _float(value)
        if number is None or number < 1:
            return [f"{key} must be 1 or more, or the concurrency is never reached (got {value!r})"]
    return []


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def sizes(tp: int, ep: int, dp_attn: bool, *, pp: int = 1, pcp: int = 1, dcp: int = 1) -> Parallel:
    """The true parallel sizes of one server or worker."""
    if not dp_attn:
        return Parallel(tp=tp, pp=pp, dp=1, ep=ep, pcp=pcp, dcp=dcp)
    if ep > tp and ep % tp == 0:
        return Parallel(tp=tp, pp=pp, dp=ep // tp, ep=ep, pcp=pcp, dcp=dcp)
    return Parallel(tp=1, pp=pp, dp=max(tp, ep), ep=ep, pcp=pcp, dcp=dcp)


def worker_sizes(worker: Worker) -> Parallel:
    """The true parallel sizes of one prefill or decode worker."""
    return sizes(worker.tp, worker.ep, worker.dp_attn, pp=worker.pp, pcp=worker.pcp_size, dcp=worker.dcp_size)


def family(label: str) -> str:
    """The GPU family that a runner label starts with: ``cluster:b300-nv`` -> ``b300``."""
    return label.removeprefix(CLUSTER_PREFIX).split("-", 1)[0].split("_", 1)[0].lower()


def gpus_per_node(label: str, runners: RunnersFile | None) -> int | None:
    """GPUs per node by ``runners.yaml``: the label's own entry, else what its whole family agrees on."""
    if runners is None:
        return None
    exact = runners.hardware.get(label)
    if exact is not None:
        return exact.gpus_per_node
    same = {facts.gpus_per_node for name, facts in runners.hardware.items() if family(name) == family(label)}
    return same.pop() if len(same) == 1 else None


@dataclass(frozen=True)
class Topology:
    """What an entry needs: ``gpu_count`` GPUs on ``num_nodes`` nodes. ``problems`` make it impossible."""

    num_nodes: int
    gpus_per_node: int
    gpu_count: int
    parallel: Parallel
    dp_attention: bool
    prefill: Role | None = None
    decode: Role | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def disaggregated(self) -> bool:
        """True when decode workers exist; ``num-worker: 0`` means that prefill workers do both."""
        return self.decode is not None and self.decode.workers > 0

    @property
    def serving_gpus(self) -> int:
        """GPUs that serve, over all workers."""
        if self.prefill is not None and self.decode is not None:
            return self.prefill.gpus + self.decode.gpus
        return self.parallel.world_size


def topology_of(entry: GeneratedEntry, runners: RunnersFile | None) -> Topology:
    """The topology of one matrix entry; what makes it impossible is collected in ``problems``."""
    if entry.prefill is None or entry.decode is None:
        return _single_node(entry, runners)
    return _multi_node(entry, entry.prefill, entry.decode, runners)


def _single_node(entry: GeneratedEntry, runners: RunnersFile | None) -> Topology:
    assert entry.tp is not None
    parallel = sizes(entry.tp, entry.ep, entry.dp_attn, pp=entry.pp, pcp=entry.pcp_size, dcp=entry.dcp_size)
    needed = parallel.world_size
    available = gpus_per_node(entry.runner, runners)
    problems = []
    if available is not None and needed > available:
        problems.append(f"needs {needed} GPUs on one node, but a node of {entry.runner} has {available}")
    return Topology(
        num_nodes=1,
        gpus_per_node=needed,
        gpu_count=needed,
        parallel=parallel,
        dp_attention=entry.dp_attn,
        problems=tuple(problems),
    )


def _multi_node(
    entry: GeneratedEntry, prefill: Worker, decode: Worker, runners: RunnersFile | None
) -> Topology:
    settings: dict[str, str] = {}
    problems: list[str] = []
    for worker in (prefill, decode):
        own, wrong = parse_settings(worker.additional_settings or [])
        problems += [f"additional-settings: {text}" for text in wrong]
        for key, value in own.items():
            if settings.setdefault(key, value) != value:
                problems.append(
                    f"additional-settings: {key} is {settings[key]!r} for prefill and {value!r} for decode: "
                    "InferenceX exports both into one environment, where the last one wins"
                )
    if problems:
        return Topology(1, 1, 1, Parallel(), False, problems=tuple(problems))
    roles, per_node = [], []
    for name, worker in (("prefill", prefill), ("decode", decode)):
        label = worker.hardware or entry.runner
        known = settings.get("GPUS_PER_NODE")
        gpus = int(known) if known else gpus_per_node(label, runners) or _usual_gpus(label)
        role = _role(name, worker, gpus, settings.get(f"{name.upper()}_NODES"), entry.num_nodes)
        roles.append(role)
        per_node.append(gpus)
        problems += _role_problems(role, gpus, settings)
    counted = [(role, gpus) for role, gpus in zip(roles, per_node, strict=True) if role.workers > 0]
    aggregated = roles[1].workers == 0
    return Topology(
        num_nodes=sum(role.nodes for role in roles),
        gpus_per_node=max(gpus for _, gpus in counted) if counted else max(per_node),
        gpu_count=sum(role.nodes * gpus for role, gpus in counted),
        parallel=roles[0].parallel if aggregated else roles[1].parallel,
        dp_attention=roles[0].dp_attention if aggregated else roles[1].dp_attention,
        prefill=roles[0],
        decode=roles[1],
        settings=settings,
        problems=tuple(problems),
    )


def _usual_gpus(label: str) -> int:
    return 4 if family(label) in _FOUR_PER_NODE else 8


def _role(name: str, worker: Worker, gpus: int, nodes: str | None, aggregated_nodes: int | None) -> Role:
    parallel = worker_sizes(worker)
    count = math.ceil(worker.num_worker * parallel.world_size / gpus)
    if worker.num_worker == 0:
        count = 0
    elif nodes is not None:
        count = int(nodes)
    elif aggregated_nodes is not None and name == "prefill":
        count = aggregated_nodes
    block = worker_block(worker)
    return Role(
        name=name,
        workers=worker.num_worker,
        parallel=parallel,
        nodes=count,
        dp_attention=worker.dp_attn,
        extra=tuple((key, json.dumps(value)) for key, value in block.items()),
    )


def _role_problems(role: Role, gpus: int, settings: Mapping[str, str]) -> list[str]:
    problems = []
    said = settings.get(f"{role.name.upper()}_WORKERS")
    if said is not None and int(said) != role.workers:
        problems.append(f"{role.name}: num-worker is {role.workers}, but {role.name.upper()}_WORKERS={said}")
    if role.gpus > role.nodes * gpus:
        problems.append(
            f"{role.name}: {role.workers} x {role.parallel.world_size} GPUs do not fit "
            f"{role.nodes} nodes x {gpus} GPUs"
        )
    return problems


def inferencex_block(role: Role) -> dict[str, Any]:
    """The role under InferenceX's own keys (``num-worker tp ep dp-attn …``), as its generator has them."""
    pairs: Pairs = role.extra
    return {key: json.loads(text) for key, text in pairs}
