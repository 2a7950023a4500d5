"""A master-file entry and filters -> the matrix entries that InferenceX's own generator emits.

Pure, and deliberately faithful where upstream is surprising: lists keep duplicates, a single-node range
restarts at ``min_conc`` while everything else is filtered after expansion, and when a fixed-length
``max_conc`` leaves nothing, the maximum itself is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pytest_gpubench.errors import OptionError
from pytest_gpubench.recipe.inferencex.evals import mark_evals
from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry, lengths_tag
from pytest_gpubench.recipe.inferencex.parts import (
    AgenticPoint,
    Loads,
    MultiNodePoint,
    SingleNodePoint,
    Worker,
)
from pytest_gpubench.recipe.inferencex.schema import (
    AgenticCoding,
    Entry,
    MultiNodeEntry,
    RunnersFile,
    SingleNodeEntry,
)

__all__ = ["Filters", "expand_entry"]

SEQ_LENS = {"1k1k": (1024, 1024), "8k1k": (8192, 1024)}
CONTEXT_MARGIN = 256  # max-model-len = isl + osl + this
AGENTIC_SECONDS = 3600
EARLIER_AGENTIC_SECONDS = 1800
MAX_DRAM_MIB = 2_861_022  # 3 TB decimal: what a node counts at most
SCENARIOS = ("fixed-seq-len", "agentic-coding")


@dataclass(frozen=True)
class Filters:
    """The generator's options. ``conc`` is test-config's; all others belong to full-sweep."""

    step_size: int = 2
    min_conc: int | None = None
    max_conc: int | None = None
    max_tp: int | None = None
    max_ep: int | None = None
    seq_lens: tuple[str, ...] = ()
    conc: tuple[int, ...] = ()
    runner_node_filter: str | None = None
    scenario_types: tuple[str, ...] = ()
    single_node: bool = True
    multi_node: bool = True
    evals_only: bool = False

    def __post_init__(self) -> None:
        """Refuse what upstream refuses, and limits that no concurrency can meet."""
        if self.step_size <= 1:
            raise OptionError(f"--step-size must be greater than 1 (got {self.step_size})")
        for option in ("min_conc", "max_conc", "max_tp", "max_ep"):
            value = getattr(self, option)
            if value is not None and value <= 0:
                raise OptionError(f"--{option.replace('_', '-')} must be greater than 0 (got {value})")
        if self.min_conc is not None and self.max_conc is not None and self.min_conc > self.max_conc:
            raise OptionError(f"--min-conc ({self.min_conc}) must not be above --max-conc ({self.max_conc})")
        for name in self.seq_lens:
            if name not in SEQ_LENS:
                raise OptionError(f"--seq-lens must be one of {', '.join(SEQ_LENS)} (got {name!r})")
        for name in self.scenario_types:
            if name not in SCENARIOS:
                raise OptionError(f"--scenario-type must be one of {', '.join(SCENARIOS)} (got {name!r})")

    def wants(self, scenario: str) -> bool:
        """True when the scenario type is asked for (or none is named)."""
        return not self.scenario_types or scenario in self.scenario_types


def expand_entry(
    entry: Entry, filters: Filters | None = None, runners: RunnersFile | None = None
) -> list[GeneratedEntry]:
    """Every matrix entry in the file's order. ``runners`` is needed for DRAM budgets and node filters."""
    filters = filters or Filters()
    if isinstance(entry, SingleNodeEntry) and not filters.single_node:
        return []
    if isinstance(entry, MultiNodeEntry) and not filters.multi_node:
        return []
    names = _runners(entry, filters, runners)
    found: list[GeneratedEntry] = []
    if filters.wants("fixed-seq-len"):
        if isinstance(entry, SingleNodeEntry):
            found += _single_fixed(entry, filters, names)
        else:
            found += _multi_fixed(entry, filters, names)
    if filters.wants("agentic-coding"):
        found += _agentic(entry, filters, names, runners)
    return mark_evals(found) if filters.evals_only else found


def _single_fixed(entry: SingleNodeEntry, filters: Filters, names: Sequence[str]) -> Iterator[GeneratedEntry]:
    for index, lengths in enumerate(entry.fixed):
        if not _lengths_wanted(filters, lengths.isl, lengths.osl):
            continue
        for number, point in enumerate(lengths.search_space):
            if filters.max_tp is not None and point.tp > filters.max_tp:
                continue
            ep = point.ep
            if ep is not None and filters.max_ep is not None:
                ep = min(ep, filters.max_ep)
            for conc in _single_fixed_concurrencies(point, filters):
                for name in names:
                    yield GeneratedEntry(
                        **_common(entry, point, name),
                        **_fixed(entry, lengths.isl, lengths.osl),
                        source=("fixed-seq-len", index, number),
                        tp=point.tp,
                        pp=point.pp,
                        dcp_size=point.dcp_size,
                        pcp_size=point.pcp_size,
                        ep=1 if ep is None else ep,
                        dp_attn=bool(point.dp_attn),
                        conc=conc,
                    )


def _multi_fixed(entry: MultiNodeEntry, filters: Filters, names: Sequence[str]) -> Iterator[GeneratedEntry]:
    for index, lengths in enumerate(entry.fixed):
        if not _lengths_wanted(filters, lengths.isl, lengths.osl):
            continue
        for number, point in enumerate(lengths.search_space):
            values = _test_config(_written(point, filters), filters)
            values = [conc for conc in values if filters.min_conc is None or conc >= filters.min_conc]
            if not values:
                continue
            if filters.max_conc is not None:
                values = [conc for conc in values if conc <= filters.max_conc] or [filters.max_conc]
            prefill, decode = _on_hardware(entry, worker_pair(point))
            for name in names:
                yield GeneratedEntry(
                    **_common(entry, point, name),
                    **_fixed(entry, lengths.isl, lengths.osl),
                    source=("fixed-seq-len", index, number),
                    prefill=prefill,
                    decode=decode,
                    num_nodes=point.num_nodes,
                    conc=tuple(values),
                )


def _agentic(
    entry: Entry, filters: Filters, names: Sequence[str], runners: RunnersFile | None
) -> Iterator[GeneratedEntry]:
    for index, scenario in enumerate(entry.agentic):
        for number, point in enumerate(scenario.search_space):
            values = _test_config(_written(point, filters), filters)
            if filters.min_conc is not None:
                values = [conc for conc in values if conc >= filters.min_conc]
            if filters.max_conc is not None:
                values = [conc for conc in values if conc <= filters.max_conc]
            for conc in values:
                for name in names:
                    yield _agentic_one(entry, scenario, point, conc, name, (index, number), runners)


def _agentic_one(
    entry: Entry,
    scenario: AgenticCoding,
    point: AgenticPoint,
    conc: int,
    name: str,
    place: tuple[int, int],
    runners: RunnersFile | None,
) -> GeneratedEntry:
    prefill, decode = _on_hardware(entry, worker_pair(point)) if point.multi_node else (None, None)
    offloading = point.offloading or point.kv_offloading or "none"
    backend = point.kv_offload_backend
    earlier = point.offloading is not None
    suffix = f"kv{offloading}" + (f"-{backend.name}" if backend else "")
    if prefill is not None and decode is not None:
        exp_name = f"{entry.model_prefix}_{_worker_tag('p', prefill)}_{_worker_tag('d', decode)}_conc{conc}"
        if offloading != "none":
            exp_name += f"_offload{offloading}" if earlier else f"_{suffix}"
    elif earlier:
        exp_name = f"{entry.model_prefix}_tp{point.tp}_conc{conc}_offload{offloading}"
    else:
        exp_name = f"{entry.model_prefix}_tp{point.tp}_conc{conc}_{suffix}"
        if point.spec_decoding != "none":
            exp_name += f"_spec-{point.spec_decoding}"
    default_seconds = EARLIER_AGENTIC_SECONDS if earlier else AGENTIC_SECONDS
    sizes: dict[str, Any] = {}
    if point.tp is not None:
        sizes = {
            "tp": point.tp,
            "pp": point.pp or 1,
            "dcp_size": point.dcp_size or 1,
            "pcp_size": point.pcp_size or 1,
            "ep": 1 if point.ep is None else point.ep,
            "dp_attn": bool(point.dp_attn),
        }
    return GeneratedEntry(
        **_common(entry, point, name),
        **sizes,
        source=("agentic-coding", *place),
        scenario_type="agentic-coding",
        exp_name=exp_name,
        prefill=prefill,
        decode=decode,
        num_nodes=point.num_nodes,
        kv_offloading=None if earlier else offloading,
        offloading=point.offloading,
        kv_offload_backend=backend,
        total_cpu_dram_gb=None if earlier else _dram_gb(entry, scenario, point, runners),
        duration=scenario.duration or default_seconds,
        conc=(conc,) if point.multi_node else conc,
    )


def worker_pair(point: MultiNodePoint | AgenticPoint) -> tuple[Worker, Worker]:
    """Prefill and decode of a multi-node point; the single ``worker`` form has 0 decode workers."""
    if point.prefill is not None and point.decode is not None:
        return point.prefill, point.decode
    assert point.worker is not None  # the schema demands one of the two forms
    idle = point.worker.model_copy(update={"num_worker": 0, "additional_settings": None})
    return point.worker, idle


def _on_hardware(entry: Entry, pair: tuple[Worker, Worker]) -> tuple[Worker, Worker]:
    """The workers with the entry's own hardware where they name none."""
    if entry.hardware is None:
        return pair
    given = (entry.hardware.prefill, entry.hardware.decode)
    prefill, decode = (
        worker if worker.hardware else worker.model_copy(update={"hardware": name})
        for worker, name in zip(pair, given, strict=True)
    )
    return prefill, decode


def _written(point: Loads, filters: Filters) -> list[int]:
    if point.conc_list:
        return list(point.conc_list)
    assert point.conc_start is not None
    assert point.conc_end is not None
    return _range(point.conc_start, point.conc_end, filters.step_size)


def _range(start: int, end: int, step: int) -> list[int]:
    """``start`` times ``step`` over and over, the last value clamped to ``end``."""
    values = []
    while start < end and start > 0:
        values.append(start)
        start *= step
    return [*values, end]


def _single_fixed_concurrencies(point: SingleNodePoint, filters: Filters) -> list[int]:
    low, high = filters.min_conc, filters.max_conc
    if point.conc_list:
        values = [conc for conc in point.conc_list if low is None or conc >= low]
        if values and high is not None:
            values = [conc for conc in values if conc <= high] or [high]
        return _test_config(values, filters)
    assert point.conc_start is not None
    assert point.conc_end is not None
    start, end = point.conc_start, point.conc_end
    if low is not None:
        if end < low:
            return []
        start = max(start, low)
    if high is not None:
        start, end = (high, high) if start > high else (start, min(end, high))
    return _test_config(_range(start, end, filters.step_size), filters)


def _test_config(values: list[int], filters: Filters) -> list[int]:
    return [conc for conc in values if conc in filters.conc] if filters.conc else values


def _lengths_wanted(filters: Filters, isl: int, osl: int) -> bool:
    return not filters.seq_lens or (isl, osl) in {SEQ_LENS[name] for name in filters.seq_lens}


def _worker_tag(letter: str, worker: Worker) -> str:
    tag = f"{letter}{worker.num_worker}x{worker.tp}"
    if worker.ep != 1:
        tag += f"ep{worker.ep}"
    return tag + ("dpa" if worker.dp_attn else "")


def _common(entry: Entry, point: Loads, runner: str) -> dict[str, Any]:
    return {
        "image": entry.image,
        "model": entry.model,
        "model_prefix": entry.model_prefix,
        "precision": entry.precision,
        "framework": entry.framework,
        "runner": runner,
        "disagg": entry.disagg,
        "spec_decoding": point.spec_decoding,
        "router": point.router or entry.router,
        "kv_p2p_transfer": point.kv_p2p_transfer or entry.kv_p2p_transfer,
        "srt_recipe": point.srt_recipe,
    }


def _fixed(entry: Entry, isl: int, osl: int) -> dict[str, Any]:
    return {
        "scenario_type": "fixed-seq-len",
        "isl": isl,
        "osl": osl,
        "max_model_len": isl + osl + CONTEXT_MARGIN,
        "exp_name": f"{entry.model_prefix}_{lengths_tag(isl, osl, '_')}",
    }


def _runners(entry: Entry, filters: Filters, runners: RunnersFile | None) -> list[str]:
    text = filters.runner_node_filter
    if text is None:
        return [entry.runner]
    if runners is None:
        raise OptionError("--runner-node-filter needs the runners file, which lists the nodes of a label")
    return [node for node in runners.labels.get(entry.runner, []) if text in node]


def _dram_gb(
    entry: Entry, scenario: AgenticCoding, point: AgenticPoint, runners: RunnersFile | None
) -> int | None:
    """The DRAM budget of one server node in decimal GB: 0 without offloading, None when not known."""
    if point.kv_offloading != "dram" or scenario.dram_utilization is None:
        return 0
    hardware = runners.hardware.get(entry.runner) if runners is not None else None
    if hardware is None:
        return None
    per_node = hardware.gpus_per_node
    if point.tp is not None:
        used = point.tp * (point.pp or 1) * (point.pcp_size or 1)
    else:
        worker = worker_pair(point)[0]
        used = worker.tp * worker.pp * worker.pcp_size
    mib = min(hardware.available_cpu_dram_mib, MAX_DRAM_MIB)
    share = Decimal(min(used, per_node)) / per_node
    return int(mib * 2**20 * Decimal(str(scenario.dram_utilization)) * share / 10**9)
