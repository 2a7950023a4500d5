"""What an InferenceX master file and ``runners.yaml`` may hold: the rules that upstream itself enforces.

Shapes and cross-field rules only. What upstream accepts although it cannot work (``tp: 0``, a worker
larger than its nodes) is judged in :mod:`~pytest_gpubench.recipe.inferencex.sense`, so that expansion
stays comparable with the upstream generator.

Three generations are read: ``scenarios`` with ``kv-offloading``/``dram-utilization`` (current), the same
with ``offloading``/``duration`` (before), and ``seq-len-configs`` (the first).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from pytest_gpubench.recipe.fields import Flag, Text
from pytest_gpubench.recipe.inferencex.parts import (
    AgenticPoint,
    Component,
    Loads,
    Model,
    MultiNodePoint,
    Positive,
    RolesHardware,
    SingleNodePoint,
    kebab,
)

__all__ = [
    "CLUSTER_PREFIX",
    "AgenticCoding",
    "Entry",
    "MultiNodeEntry",
    "MultiNodeFixed",
    "RunnerHardware",
    "RunnersFile",
    "SingleNodeEntry",
    "SingleNodeFixed",
    "search_spaces",
]

CLUSTER_PREFIX = "cluster:"


def _grouped(value: object) -> object:
    """``2_964_436`` as a number: upstream groups digits here, as YAML 1.1 allows."""
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d*(_\d+)+", value):
        return int(value.replace("_", ""))
    return value


class SingleNodeFixed(Model):
    """Load points of one pair of lengths, on one node."""

    isl: int
    osl: int
    search_space: list[SingleNodePoint]


class MultiNodeFixed(Model):
    """Load points of one pair of lengths, over several nodes."""

    isl: int
    osl: int
    search_space: list[MultiNodePoint]


class AgenticCoding(Model):
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


class SingleNodeScenarios(Model):
    """The scenarios of a single-node entry."""

    fixed_seq_len: list[SingleNodeFixed] | None = None
    agentic_coding: list[AgenticCoding] | None = None

    @model_validator(mode="after")
    def _some(self) -> SingleNodeScenarios:
        _check_scenarios(self.fixed_seq_len, self.agentic_coding)
        return self


class MultiNodeScenarios(Model):
    """The scenarios of a multi-node entry."""

    fixed_seq_len: list[MultiNodeFixed] | None = None
    agentic_coding: list[AgenticCoding] | None = None

    @model_validator(mode="after")
    def _some(self) -> MultiNodeScenarios:
        _check_scenarios(self.fixed_seq_len, self.agentic_coding)
        return self


class _Entry(Model):
    """What both kinds of entries share."""

    image: Text
    model: Text
    model_prefix: Text
    precision: Text
    framework: Text
    runner: Text
    disagg: Flag = False
    router: Component | None = None
    kv_p2p_transfer: Text | None = None
    hardware: RolesHardware | None = None

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
        if self.hardware is not None:
            raise ValueError("hardware belongs to entries with multinode: true")
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
    seq_len_configs: list[MultiNodeFixed] | None = None

    @property
    def fixed(self) -> list[MultiNodeFixed]:
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


class RunnerHardware(Model):
    """Facts about one runner label. DRAM in MiB."""

    available_cpu_dram_mib: Annotated[Positive, BeforeValidator(_grouped)]
    gpus_per_node: Positive


class RunnersFile(Model):
    """``runners.yaml``: label -> node names, and label -> hardware facts."""

    labels: dict[str, list[Text]] = Field(default_factory=dict)
    hardware: dict[str, RunnerHardware] = Field(default_factory=dict)


def search_spaces(
    entry: SingleNodeEntry | MultiNodeEntry,
) -> list[tuple[tuple[str | int, ...], Model, Sequence[Loads]]]:
    """Every scenario: the keys that lead to it, the scenario, and its search space."""
    fixed: tuple[str, ...] = ("scenarios", "fixed-seq-len")
    if entry.seq_len_configs is not None:
        fixed = ("seq-len-configs",)
    found: list[tuple[tuple[str | int, ...], Model, Sequence[Loads]]] = []
    lengths: list[tuple[Model, Sequence[Loads]]] = [(item, item.search_space) for item in entry.fixed]
    found += [((*fixed, index), item, space) for index, (item, space) in enumerate(lengths)]
    for index, scenario in enumerate(entry.agentic):
        found.append((("scenarios", "agentic-coding", index), scenario, scenario.search_space))
    return found


def _points(entry: SingleNodeEntry | MultiNodeEntry) -> list[tuple[str, Loads]]:
    """Every search-space entry with its dotted path below the config key."""
    return [
        (".".join(map(str, (*where, "search-space", number))), point)
        for where, _, space in search_spaces(entry)
        for number, point in enumerate(space)
    ]


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
                raise ValueError(f"{kebab(name)} is written at the top and in {path}: write it in one place")


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
