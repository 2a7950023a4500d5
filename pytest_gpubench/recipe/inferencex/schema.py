"""What an InferenceX master file and ``runners.yaml`` may hold: the rules that upstream itself enforces.

Shapes and cross-field rules only. What upstream accepts although it cannot work (``tp: 0``, a worker
larger than its nodes) is judged in :mod:`~pytest_gpubench.recipe.inferencex.sense`, after expansion rules
have been applied, so that expansion itself stays comparable with the upstream generator.

Three generations are read: ``scenarios`` with ``kv-offloading``/``dram-utilization`` (current), the same
with ``offloading``/``duration`` (mid 2026), and ``seq-len-configs`` (the first).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = [
    "AgenticCoding",
    "AgenticPoint",
    "Component",
    "Entry",
    "FixedSeqLen",
    "Loads",
    "MultiNodeEntry",
    "MultiNodePoint",
    "OffloadBackend",
    "RunnerHardware",
    "RunnersFile",
    "SingleNodeEntry",
    "SingleNodePoint",
    "SpecDecoding",
    "Worker",
]

Text = Annotated[str, StringConstraints(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
SpecDecoding = Literal["mtp", "draft_model", "none"]
CLUSTER_PREFIX = "cluster:"


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _Model(BaseModel):
    """Strict types, unknown keys refused, keys in InferenceX's kebab case."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=_kebab, protected_namespaces=()
    )


class Component(_Model):
    """A named, versioned part of the serving stack, such as the router."""

    name: Text
    version: Text


class OffloadBackend(_Model):
    """Where KV blocks are offloaded to; the version is optional."""

    name: Text
    version: Text | None = None


class Worker(_Model):
    """One kind of worker: ``num_worker`` servers of the same sizes. 0 decode workers means aggregated."""

    num_worker: int = 1
    tp: int
    ep: int
    dp_attn: bool
    pp: Positive = 1
    dcp_size: Positive = 1
    pcp_size: Positive = 1
    hardware: Text | None = None
    additional_settings: list[str] | None = None

    @model_validator(mode="after")
    def _context_parallel(self) -> Worker:
        _check_dcp(self.tp, self.dcp_size)
        return self


class RoleWorker(Worker):
    """A prefill or decode worker: here the count must be written."""

    num_worker: int


class Loads(_Model):
    """The concurrencies of one search-space entry: a doubling range or a list, never both."""

    spec_decoding: SpecDecoding = "none"
    router: Component | None = None
    kv_p2p_transfer: Text | None = None
    conc_start: int | None = None
    conc_end: int | None = None
    conc_list: list[int] | None = None

    @model_validator(mode="after")
    def _concurrencies(self) -> Loads:
        start, end = self.conc_start, self.conc_end
        if self.conc_list and start is not None and end is not None:
            raise ValueError("conc-list and conc-start/conc-end exclude each other: write one of them")
        if not self.conc_list and (start is None or end is None):
            raise ValueError("concurrencies are missing: write conc-list, or both conc-start and conc-end")
        if self.conc_list and min(self.conc_list) <= 0:
            raise ValueError(f"conc-list must hold numbers above 0 (got {min(self.conc_list)})")
        if start is not None and end is not None and start > end:
            raise ValueError(f"conc-start ({start}) must not be above conc-end ({end})")
        return self


class SingleNodePoint(Loads):
    """A fixed-length search-space entry on one node."""

    tp: int
    ep: int | None = None
    dp_attn: bool | None = None
    pp: Positive = 1
    dcp_size: Positive = 1
    pcp_size: Positive = 1

    @model_validator(mode="after")
    def _context_parallel(self) -> SingleNodePoint:
        _check_dcp(self.tp, self.dcp_size)
        if self.kv_p2p_transfer is not None:
            raise ValueError("kv-p2p-transfer belongs to entries with multinode: true")
        return self


class MultiNodePoint(Loads):
    """A fixed-length search-space entry over several nodes: prefill and decode, or one worker."""

    prefill: RoleWorker | None = None
    decode: RoleWorker | None = None
    worker: Worker | None = None
    num_nodes: Positive | None = None

    @model_validator(mode="after")
    def _roles(self) -> MultiNodePoint:
        _check_roles(self.prefill, self.decode, self.worker)
        return self


class AgenticPoint(Loads):
    """An agentic search-space entry: sizes of one node, or workers, and where KV blocks are offloaded."""

    tp: int | None = None
    ep: int | None = None
    dp_attn: bool | None = None
    pp: Positive | None = None
    dcp_size: Positive | None = None
    pcp_size: Positive | None = None
    prefill: RoleWorker | None = None
    decode: RoleWorker | None = None
    worker: Worker | None = None
    num_nodes: Positive | None = None
    kv_offloading: Literal["none", "dram"] | None = None
    kv_offload_backend: OffloadBackend | None = None
    offloading: Literal["none", "cpu"] | None = None  # the earlier schema's name of kv-offloading

    @property
    def multi_node(self) -> bool:
        """True when workers are written instead of the sizes of one server."""
        return self.tp is None

    @model_validator(mode="after")
    def _topology(self) -> AgenticPoint:
        workers = (self.prefill, self.decode, self.worker)
        if self.tp is not None and any(workers):
            raise ValueError("tp and prefill/decode exclude each other: write one topology")
        if self.tp is None:
            _check_roles(*workers)
            for name in ("ep", "dp_attn", "pp", "dcp_size", "pcp_size"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{_kebab(name)} belongs inside prefill and decode here")
        else:
            _check_dcp(self.tp, self.dcp_size or 1)
            if self.kv_offloading is None and self.offloading is None:
                raise ValueError("kv-offloading is required beside tp (none or dram)")
        return self

    @model_validator(mode="after")
    def _offload(self) -> AgenticPoint:
        if self.offloading is not None and (self.kv_offloading or self.kv_offload_backend):
            raise ValueError("offloading is the earlier name of kv-offloading: write one of them")
        if self.kv_offloading == "dram" and self.kv_offload_backend is None:
            raise ValueError("kv-offload-backend is required with kv-offloading: dram")
        if self.kv_offloading != "dram" and self.kv_offload_backend is not None:
            raise ValueError("kv-offload-backend needs kv-offloading: dram")
        return self


class SingleNodeFixed(_Model):
    """Load points of one pair of lengths, on one node."""

    isl: int
    osl: int
    search_space: list[SingleNodePoint]


class FixedSeqLen(_Model):
    """Load points of one pair of lengths, over several nodes."""

    isl: int
    osl: int
    search_space: list[MultiNodePoint]


class AgenticCoding(_Model):
    """Trace replay: load points that share a DRAM budget (or, earlier, a duration in seconds)."""

    dram_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    duration: Positive | None = None
    trace_source: Text | None = None
    search_space: list[AgenticPoint]

    @model_validator(mode="after")
    def _dram_budget(self) -> AgenticCoding:
        for index, point in enumerate(self.search_space):
            if point.kv_offloading == "dram" and self.dram_utilization is None:
                raise ValueError(
                    f"dram-utilization is required: search-space.{index} has kv-offloading: dram"
                )
        return self

    @property
    def earlier_schema(self) -> bool:
        """True when nothing of the current agentic keys is used, so that its rules do not apply."""
        current = self.dram_utilization is not None or any(p.kv_offloading for p in self.search_space)
        return not current


class SingleNodeScenarios(_Model):
    """The scenarios of a single-node entry."""

    fixed_seq_len: list[SingleNodeFixed] | None = None
    agentic_coding: list[AgenticCoding] | None = None

    @model_validator(mode="after")
    def _some(self) -> SingleNodeScenarios:
        _check_scenarios(self.fixed_seq_len, self.agentic_coding)
        return self


class MultiNodeScenarios(_Model):
    """The scenarios of a multi-node entry."""

    fixed_seq_len: list[FixedSeqLen] | None = None
    agentic_coding: list[AgenticCoding] | None = None

    @model_validator(mode="after")
    def _some(self) -> MultiNodeScenarios:
        _check_scenarios(self.fixed_seq_len, self.agentic_coding)
        return self


class _Entry(_Model):
    """What both kinds of entries share."""

    image: Text
    model: Text
    model_prefix: Text
    precision: Text
    framework: Text
    runner: Text
    disagg: bool = False
    router: Component | None = None
    kv_p2p_transfer: Text | None = None

    @property
    def agentic(self) -> list[AgenticCoding]:
        """The agentic scenarios, empty when there are none."""
        raise NotImplementedError

    @property
    def warnings(self) -> list[str]:
        """What current upstream would refuse and earlier revisions did not."""
        return []


class SingleNodeEntry(_Entry):
    """A master-file entry with ``multinode: false``."""

    multinode: Literal[False]
    scenarios: SingleNodeScenarios | None = None
    seq_len_configs: list[SingleNodeFixed] | None = None  # the first generation's scenarios.fixed-seq-len

    @property
    def fixed(self) -> list[SingleNodeFixed]:
        """The fixed-length scenarios of either generation."""
        return self.seq_len_configs or (self.scenarios.fixed_seq_len if self.scenarios else None) or []

    @property
    def agentic(self) -> list[AgenticCoding]:
        """The agentic scenarios, empty when there are none."""
        return (self.scenarios.agentic_coding if self.scenarios else None) or []

    @model_validator(mode="after")
    def _single(self) -> SingleNodeEntry:
        _check_generation(self.scenarios, self.seq_len_configs)
        if self.disagg:
            raise ValueError("disagg: true needs multinode: true")
        if self.kv_p2p_transfer is not None:
            raise ValueError("kv-p2p-transfer belongs to entries with multinode: true")
        for path, point in _points(self):
            if isinstance(point, AgenticPoint) and point.multi_node:
                raise ValueError(f"{path}: prefill and decode need multinode: true")
        _check_scopes(self)
        _check_cluster(self)
        return self

    @property
    def warnings(self) -> list[str]:
        """What current upstream would refuse and earlier revisions did not."""
        return _generation_warnings(self)


class MultiNodeEntry(_Entry):
    """A master-file entry with ``multinode: true``."""

    multinode: Literal[True]
    scenarios: MultiNodeScenarios | None = None
    seq_len_configs: list[FixedSeqLen] | None = None

    @property
    def fixed(self) -> list[FixedSeqLen]:
        """The fixed-length scenarios of either generation."""
        return self.seq_len_configs or (self.scenarios.fixed_seq_len if self.scenarios else None) or []

    @property
    def agentic(self) -> list[AgenticCoding]:
        """The agentic scenarios, empty when there are none."""
        return (self.scenarios.agentic_coding if self.scenarios else None) or []

    @model_validator(mode="after")
    def _multi(self) -> MultiNodeEntry:
        _check_generation(self.scenarios, self.seq_len_configs)
        for path, point in _points(self):
            if isinstance(point, AgenticPoint) and not point.multi_node:
                raise ValueError(f"{path}: multinode: true needs prefill and decode, not tp")
        _check_scopes(self)
        _check_cluster(self)
        return self

    @property
    def warnings(self) -> list[str]:
        """What current upstream would refuse and earlier revisions did not."""
        found = _generation_warnings(self)
        lacking = [path for path, point in _points(self) if point.kv_p2p_transfer is None]
        if self.disagg and self.kv_p2p_transfer is None and lacking:
            found.append("disagg: true without kv-p2p-transfer: current InferenceX requires it")
        return found


Entry = SingleNodeEntry | MultiNodeEntry


class RunnerHardware(_Model):
    """Facts about one runner label. DRAM in MiB."""

    available_cpu_dram_mib: Positive
    gpus_per_node: Positive


class RunnersFile(_Model):
    """``runners.yaml``: label -> node names, and label -> hardware facts."""

    labels: dict[str, list[Text]] = {}
    hardware: dict[str, RunnerHardware] = {}


def _points(entry: SingleNodeEntry | MultiNodeEntry) -> list[tuple[str, Loads]]:
    """Every search-space entry with the path it is written at, below the config key."""
    fixed = "seq-len-configs" if entry.seq_len_configs else "scenarios.fixed-seq-len"
    found: list[tuple[str, Loads]] = []
    spaces: list[Sequence[Loads]] = [lengths.search_space for lengths in entry.fixed]
    for index, space in enumerate(spaces):
        for number, point in enumerate(space):
            found.append((f"{fixed}.{index}.search-space.{number}", point))
    for index, scenario in enumerate(entry.agentic):
        for number, agentic in enumerate(scenario.search_space):
            found.append((f"scenarios.agentic-coding.{index}.search-space.{number}", agentic))
    return found


def _check_dcp(tp: int, dcp: int) -> None:
    if tp % dcp:
        raise ValueError(f"tp ({tp}) must be divisible by dcp-size ({dcp})")


def _check_roles(prefill: Worker | None, decode: Worker | None, worker: Worker | None) -> None:
    if worker is not None:
        if prefill is not None or decode is not None:
            raise ValueError("worker and prefill/decode exclude each other: write one topology")
        return
    if prefill is None or decode is None:
        raise ValueError("both prefill and decode are required (decode with num-worker: 0 if aggregated)")
    if (prefill.hardware is None) != (decode.hardware is None):
        raise ValueError("hardware must be written for both prefill and decode, or for neither")


def _check_scenarios(*scenarios: object) -> None:
    if not any(scenarios):
        raise ValueError("at least one of fixed-seq-len and agentic-coding is required")


def _check_generation(scenarios: object, seq_len_configs: object) -> None:
    if (scenarios is None) == (seq_len_configs is None):
        raise ValueError("scenarios is required (or, in files of the first generation, seq-len-configs)")


def _check_scopes(entry: SingleNodeEntry | MultiNodeEntry) -> None:
    for name in ("router", "kv_p2p_transfer"):
        if getattr(entry, name) is None:
            continue
        for path, point in _points(entry):
            if getattr(point, name) is not None:
                raise ValueError(f"{_kebab(name)} is written at the top and in {path}: write it in one place")


def _check_cluster(entry: SingleNodeEntry | MultiNodeEntry) -> None:
    current = [scenario for scenario in entry.agentic if not scenario.earlier_schema]
    if current and not entry.runner.startswith(CLUSTER_PREFIX):
        raise ValueError(
            f"agentic scenarios need a runner of one cluster, cluster:<name> (got {entry.runner!r})"
        )


def _generation_warnings(entry: SingleNodeEntry | MultiNodeEntry) -> list[str]:
    found = []
    if entry.seq_len_configs is not None:
        found.append("seq-len-configs: the first generation's name of scenarios.fixed-seq-len")
    if any(s.duration is not None or any(p.offloading for p in s.search_space) for s in entry.agentic):
        found.append("offloading/duration: the earlier agentic schema, which current InferenceX refuses")
    if any(s.earlier_schema for s in entry.agentic) and not entry.runner.startswith(CLUSTER_PREFIX):
        found.append(f"agentic on runner {entry.runner}: current InferenceX requires cluster:<name>")
    return found
