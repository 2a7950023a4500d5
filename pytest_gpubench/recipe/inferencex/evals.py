"""Which matrix entries InferenceX runs its accuracy evaluations on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry

__all__ = ["mark_evals"]

EVAL_LENGTHS = (8192, 1024)
MIN_EVAL_CONC = 16


def mark_evals(entries: Sequence[GeneratedEntry]) -> list[GeneratedEntry]:
    """The entries evaluated, in order, from concurrency 16 up.

    Single-node 8192/1024: the highest and the middle concurrency of a group, at every TP. Agentic
    single-node: the highest of the group. Multi-node: the highest of each topology, as ``eval_conc``.
    """
    chosen: dict[int, GeneratedEntry] = {}
    fixed: dict[object, list[int]] = defaultdict(list)
    agentic: dict[object, list[int]] = defaultdict(list)
    topologies: dict[object, list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        trace_replay = entry.scenario_type == "agentic-coding"
        if not trace_replay and (entry.isl, entry.osl) != EVAL_LENGTHS:
            continue
        group = (entry.model, entry.runner, entry.framework, entry.precision)
        if entry.prefill is not None:
            if max(entry.concurrencies) >= MIN_EVAL_CONC:
                topologies[repr(replace(entry, conc=0, exp_name="", source=("", 0, 0)))].append(index)
        elif trace_replay:
            agentic[group].append(index)
        elif max(entry.concurrencies) >= MIN_EVAL_CONC:
            fixed[group, entry.spec_decoding, entry.dp_attn].append(index)
    for indexes in fixed.values():
        values = sorted({max(entries[index].concurrencies) for index in indexes})
        wanted = {values[-1], values[len(values) // 2]}
        chosen |= {index: entries[index] for index in indexes if entries[index].concurrencies[0] in wanted}
    for indexes in agentic.values():
        best = max(indexes, key=lambda index: max(entries[index].concurrencies))
        chosen[best] = entries[best]
    for indexes in topologies.values():
        best = max(indexes, key=lambda index: max(entries[index].concurrencies))
        chosen[best] = replace(entries[best], eval_conc=max(entries[best].concurrencies))
    return [chosen[index] for index in sorted(chosen)]
