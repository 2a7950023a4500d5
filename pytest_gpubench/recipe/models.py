"""The recipe as it is written: perf-eval's keys and ours, checked key by key.

Relations between keys (sizes that must fit, lengths, names) are judged in ``checks.py``; these models
only say which keys exist and what kind of value each takes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pytest_gpubench.bench.command import command_problems
from pytest_gpubench.recipe.fields import (
    Count,
    Counts,
    EnvName,
    EnvValue,
    Finite,
    Flag,
    Free,
    Length,
    Rate,
    RequestRate,
    Seconds,
    Size,
    Text,
    Texts,
    Token,
    YamlModel,
)
from pytest_gpubench.recipe.pd_models import ServingModel
from pytest_gpubench.recipe.types import ClientSettings

__all__ = [
    "BenchConfig",
    "Bfcl",
    "BoundsModel",
    "Constraint",
    "DeadlinesModel",
    "DeploymentModel",
    "Entry",
    "GatesModel",
    "LmEval",
    "LmTask",
    "LoadKeys",
    "Metadata",
    "PointModel",
    "RecipeModel",
    "RoleModel",
    "SloModel",
    "SweepModel",
    "VllmModel",
]


def _listed(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _expert(value: object) -> object:
    """``ep: true``, or the expert-parallel size."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("on", "yes", "off", "no"):
        return value.lower() in ("on", "yes")
    if not isinstance(value, int) or value < 1:
        raise ValueError("expected true, false, or the expert-parallel size")
    return int(value)


def _spec_decoding(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str) or not value:
        raise ValueError("expected true, false, or the name of a method")
    return {"on": "true", "yes": "true", "off": "false", "no": "false", "none": "false"}.get(value, value)


def _serve(value: object) -> object:
    if not isinstance(value, (str, list, dict)):
        raise ValueError("expected text, a list of arguments, or a mapping of options")
    return value


Serve = Annotated[Any, BeforeValidator(_serve)]
Env = dict[EnvName, EnvValue]
Expert = Annotated[Any, BeforeValidator(_expert)]
SpecDecoding = Annotated[str, BeforeValidator(_spec_decoding)]


class ReferenceModel(YamlModel):
    """``{value: 900, lower: -0.05, upper: 0.20}``: relative bounds, at least one."""

    value: Finite
    lower: Finite | None = Field(None, le=0)
    upper: Finite | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _has_bound(self) -> ReferenceModel:
        if self.lower is None and self.upper is None:
            raise ValueError("expected lower, upper or both: a reference without bounds judges nothing")
        if self.value == 0:
            raise ValueError("expected a value other than 0: the bounds are relative to it")
        return self


def _accuracy(value: object) -> object:
    """A bare number is a floor for every score of the task."""
    return {"*": value} if isinstance(value, (int, float)) and not isinstance(value, bool) else value


class GatesModel(YamlModel):
    """What must hold, in the row's metric names and units."""

    max_failure_rate: Rate = 0.0
    floors: dict[str, Finite] = Field(default_factory=dict)
    ceilings: dict[str, Finite] = Field(default_factory=dict)
    references: dict[str, ReferenceModel] = Field(default_factory=dict)
    max_spread: dict[str, Rate] = Field(default_factory=dict)
    accuracy: dict[str, Annotated[dict[str, Finite], BeforeValidator(_accuracy)]] = Field(
        default_factory=dict
    )
    known_issue: Text | None = None


class Constraint(YamlModel):
    """Points that match ``when`` must match ``require``; without ``require`` they are refused."""

    when: dict[str, Any] = Field(default_factory=dict)
    require: dict[str, Any] = Field(default_factory=dict)
    reason: Text

    @model_validator(mode="after")
    def _says_something(self) -> Constraint:
        if not self.when and not self.require:
            raise ValueError("expected when, require or both")
        return self


class DeadlinesModel(YamlModel):
    """Seconds (or ``30m``, ``01:00:00``) per phase."""

    queue: Seconds | None = None
    image: Seconds | None = None
    load: Seconds | None = None
    ready: Seconds | None = None
    bench: Seconds | None = None
    teardown: Seconds | None = None


class LoadKeys(YamlModel):
    """What a load may say beside its lengths and concurrencies."""

    backend: Text = "openai"
    dataset: Text = "random"
    request_rate: RequestRate = "inf"
    repetitions: Count | None = None
    num_warmups: Length | None = None
    seed: Length | None = None
    ignore_eos: Flag = True
    random_range_ratio: Rate | None = None
    speed_bench_dataset_subset: Free | None = None
    speed_bench_category: Free | None = None
    args: dict[str, Any] | None = None
    cache_hits: Flag = False
    max_prefix_cache_hit_rate: Rate | None = None
    gates: GatesModel | None = None
    known_issue: Text | None = None


class BoundsModel(YamlModel):
    """``{min: 100, max: 250}``: at least one."""

    min: Finite | None = None
    max: Finite | None = None

    @model_validator(mode="after")
    def _sense(self) -> BoundsModel:
        if self.min is None and self.max is None:
            raise ValueError("expected min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self


class BenchConfig(LoadKeys):
    """One entry of ``vllm_bench.configs``; ``assertions`` bound figures of the raw result."""

    name: Text
    input_len: Count
    output_len: Count
    num_prompts: Counts
    max_concurrency: Counts
    assertions: dict[str, BoundsModel] = Field(default_factory=dict)


class ShapeModel(YamlModel):
    """A pair of lengths."""

    isl: Count
    osl: Count
    name: Token | None = None


class LadderModel(YamlModel):
    """Concurrencies: a list, or ``{start, end}`` by factors of ``step``, the end included."""

    listed: Counts | None = None
    start: Count | None = None
    end: Count | None = None
    step: Annotated[int, Field(ge=2)] = 2

    @model_validator(mode="after")
    def _sense(self) -> LadderModel:
        if self.listed is None and (self.start is None or self.end is None):
            raise ValueError("expected a list, or start and end")
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"start {self.start} is above end {self.end}")
        return self


def _ladder(value: object) -> object:
    return value if isinstance(value, dict) else {"listed": value}


class SweepModel(LoadKeys):
    """perf-eval's ``vllm_bench.sweep``: every shape under every concurrency."""

    shapes: Annotated[tuple[ShapeModel, ...], Field(strict=False, min_length=1)]
    concurrency: Annotated[LadderModel, BeforeValidator(_ladder)]
    prompts_per_concurrency: Count
    min_prompts: Count = 1


class Metadata(YamlModel):
    """``vllm_bench.metadata``: the dashboard's labels, and the divisor."""

    device: Text | None = None
    precision: Text | None = None
    is_multinode: Flag | None = None
    num_nodes: Size | None = None
    gpus_per_node: Size | None = None
    gpu_count: Size | None = None
    per_gpu_denominator: Size | None = None
    total_gpus: Size | None = None
    tp: Size | None = None
    dp: Size | None = None
    ep: Size | None = None
    dp_attention: Flag | None = None
    disagg: Flag | None = None
    spec_decoding: SpecDecoding | None = None


class VllmBench(YamlModel):
    """perf-eval's performance block."""

    metadata: Metadata = Metadata()
    configs: tuple[BenchConfig, ...] = Field((), strict=False)
    sweep: SweepModel | None = None


class VllmModel(YamlModel):
    """How the server runs. One of ``serve_args`` (text or list) and ``serve`` (mapping)."""

    model: Text
    image: Text | None = None
    env: Env | None = None
    env_from_host: tuple[EnvName, ...] = Field((), strict=False)
    serve_args: Serve | None = None
    serve: Serve | None = None
    startup_timeout: Seconds | None = None
    startup_timeout_s: Seconds | None = None
    attention_backends: tuple[Token, ...] = Field((), strict=False)
    moe_backends: tuple[Token, ...] = Field((), strict=False)


class LmTask(YamlModel):
    """One lm_eval task."""

    name: Text
    num_fewshot: Length | None = None
    model_args: dict[str, Any] | None = None


LM_EVAL_MANAGED = frozenset({"model", "model_args", "tasks", "num_fewshot", "output_path", "log_samples"})


class LmEval(YamlModel):
    """perf-eval's accuracy block; ``args`` are further options of lm_eval, such as ``include_path``."""

    @model_validator(mode="after")
    def _not_ours(self) -> LmEval:
        for name in self.args or {}:
            if name.lstrip("-").replace("-", "_") in LM_EVAL_MANAGED:
                raise ValueError(f"args: --{name} is set from the recipe's own keys or by the launcher")
        return self

    model_args: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    tasks: tuple[LmTask, ...] = Field((), strict=False)


class Bfcl(YamlModel):
    """perf-eval's function-calling block."""

    test_categories: Texts
    num_threads: Count = 8
    temperature: Finite = 0.001
    maximum_step_limit: Count | None = None
    max_test_cases: Any = None

    @model_validator(mode="after")
    def _limits(self) -> Bfcl:
        cases = self.max_test_cases
        values = list(cases.values()) if isinstance(cases, dict) else [] if cases is None else [cases]
        if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in values):
            raise ValueError("max_test_cases: expected a number from 1, or one per category")
        if not self.test_categories:
            raise ValueError("test_categories: expected at least one category")
        return self


class RoleModel(YamlModel):
    """Prefill or decode: ``workers`` servers of these sizes."""

    workers: Size = 1
    tp: Size = 1
    pp: Size = 1
    dp: Size = 1
    ep: Expert = False
    pcp: Size = 1
    dcp: Size = 1
    dp_attention: Flag = False
    nodes: Size | None = None
    serve_args: Serve | None = None
    serve: Serve | None = None
    env: Env | None = None


class RouterModel(YamlModel):
    """The router in front of the workers."""

    name: Text = "vllm-router"
    version: Text | None = None
    command: Text | None = None
    args: Texts = ()


class DeploymentModel(YamlModel):
    """Prefill and decode on workers of their own."""

    prefill: RoleModel
    decode: RoleModel
    router: RouterModel | None = None
    kv_transfer: dict[str, Any] = Field(default_factory=lambda: {"connector": "NixlConnector"})


class PointModel(LoadKeys):
    """One deployment of a search space, under one or several concurrencies."""

    name: Token | None = None
    tp: Size | None = None
    pp: Size | None = None
    dp: Size | None = None
    ep: Expert | None = None
    pcp: Size | None = None
    dcp: Size | None = None
    dp_attention: Flag | None = None
    spec_decoding: SpecDecoding | None = None
    num_nodes: Size | None = None
    serve_args: Serve | None = None
    serve: Serve | None = None
    env: Env | None = None
    prefill: RoleModel | None = None
    decode: RoleModel | None = None
    conc: Counts | None = None
    conc_list: Counts | None = None
    conc_start: Count | None = None
    conc_end: Count | None = None
    conc_step: Annotated[int, Field(ge=2)] | None = None
    num_prompts: Counts | None = None

    @model_validator(mode="after")
    def _one_way(self) -> PointModel:
        ranged = self.conc_start is not None or self.conc_end is not None or self.conc_step is not None
        ways = [self.conc is not None, self.conc_list is not None, ranged]
        if sum(ways) != 1:
            raise ValueError("expected exactly one of conc, conc_list, and conc_start with conc_end")
        if ranged and (self.conc_start is None or self.conc_end is None):
            raise ValueError("expected conc_start and conc_end together")
        if self.conc_start is not None and self.conc_end is not None and self.conc_start > self.conc_end:
            raise ValueError(f"conc_start {self.conc_start} is above conc_end {self.conc_end}")
        if (self.prefill is None) != (self.decode is None):
            raise ValueError("expected prefill and decode together")
        return self


class Entry(LoadKeys):
    """One entry of ``search_space``: a pair of lengths and the points measured under it."""

    isl: Count | None = None
    osl: Count | None = None
    name: Token | None = None
    num_prompts: Counts | None = None
    points: tuple[PointModel, ...] = Field((), strict=False)


class SloModel(YamlModel):
    """Find the highest concurrency that meets the ceilings."""

    ceilings: dict[str, Finite]
    over: Literal["concurrency", "request_rate"] = "concurrency"
    range: tuple[Count, Count] = Field((1, 1024), strict=False)
    floors: dict[str, Finite] = Field(default_factory=dict)
    isl: Count | None = None
    osl: Count | None = None
    num_prompts: Count | None = None

    @model_validator(mode="after")
    def _sense(self) -> SloModel:
        if not self.ceilings:
            raise ValueError("ceilings: expected at least one; without one there is nothing to search for")
        if self.range[0] > self.range[1]:
            raise ValueError(f"range: {self.range[0]} is above {self.range[1]}")
        if (self.isl is None) != (self.osl is None):
            raise ValueError("expected isl and osl together")
        return self


class ClientModel(YamlModel):
    """Which client measures."""

    kind: Text = "vllm-bench"
    command: Text | None = None
    parser: Text | None = None

    @model_validator(mode="after")
    def _template(self) -> ClientModel:
        problems = command_problems(ClientSettings(self.kind, self.command, self.parser))
        if problems:
            raise ValueError("; ".join(problems))
        return self


class RecipeModel(YamlModel):
    """The whole file."""

    name: Text | None = None
    gpu: Text
    num_nodes: Size | None = None
    gpus_per_node: Size | None = None
    num_gpus: Size | None = None
    nightly: Flag = False
    bench_only: Flag = False
    timeout_in_minutes: Annotated[Finite, Field(gt=0)] | None = None
    vllm: VllmModel
    serve: Serve | None = None
    vllm_bench: VllmBench | None = None
    lm_eval: LmEval | None = None
    bfcl: Bfcl | None = None
    scenario: Literal["fixed-seq-len", "agentic-coding"] = "fixed-seq-len"
    gates: GatesModel = GatesModel()
    known_issue: Text | None = None
    constraints: tuple[Constraint, ...] = Field((), strict=False)
    search_space: tuple[Entry, ...] | None = Field(None, strict=False)
    deployment: DeploymentModel | None = None
    serving: ServingModel | None = None
    slo: Annotated[tuple[SloModel, ...], BeforeValidator(_listed), Field(strict=False)] = ()
    deadlines: DeadlinesModel = DeadlinesModel()
    client: ClientModel = ClientModel()
    env_from_host: tuple[EnvName, ...] = Field((), strict=False)
    repetitions: Count = 1
    max_prefix_cache_hit_rate: Rate = 0.02
