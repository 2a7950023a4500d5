"""perf-eval's later ways to write loads: ``vllm_bench.sweep``, and ``assertions`` of a config. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpubench.recipe.limits import check_names
from pytest_gpubench.recipe.models import (
    BenchConfig,
    BoundsModel,
    GatesModel,
    LadderModel,
    LoadKeys,
    SweepModel,
)
from pytest_gpubench.recipe.problems import Problems
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["assertion_gates", "sweep_configs"]


def sweep_configs(sweep: SweepModel) -> list[BenchConfig]:
    """One config per shape: every shape under every concurrency, named as perf-eval's own are by hand.

    A point sends ``prompts_per_concurrency`` prompts per slot, and at least ``min_prompts``.
    """
    levels = _levels(sweep.concurrency)
    shared = {name: getattr(sweep, name) for name in sweep.model_fields_set if name in LoadKeys.model_fields}
    prompts = [max(sweep.min_prompts, sweep.prompts_per_concurrency * level) for level in levels]
    return [
        BenchConfig(
            name=shape.name or f"{_tokens(shape.isl)}-in-{_tokens(shape.osl)}-out",
            input_len=shape.isl,
            output_len=shape.osl,
            num_prompts=tuple(prompts),
            max_concurrency=tuple(levels),
        ).model_copy(update=shared)
        for shape in sweep.shapes
    ]


def _levels(ladder: LadderModel) -> list[int]:
    if ladder.listed is not None:
        return list(ladder.listed)
    assert ladder.start is not None
    assert ladder.end is not None
    levels = [ladder.start]
    while levels[-1] < ladder.end:
        levels.append(min(levels[-1] * ladder.step, ladder.end))
    return levels


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


def assertion_gates(
    problems: Problems, assertions: Mapping[str, BoundsModel], where: KeyPath
) -> GatesModel | None:
    """Bounds on the raw result's figures as gates: milliseconds become the row's seconds."""
    if not assertions:
        return None
    floors: dict[str, float] = {}
    ceilings: dict[str, float] = {}
    for raw, bounds in assertions.items():
        name, scale = (raw[: -len("_ms")], 1e-3) if raw.endswith("_ms") else (raw, 1.0)
        check_names(problems, [name], where, spelled=raw)
        if bounds.min is not None:
            floors[name] = bounds.min * scale
        if bounds.max is not None:
            ceilings[name] = bounds.max * scale
    return GatesModel(floors=floors, ceilings=ceilings)
