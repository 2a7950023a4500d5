"""What a point is expected to take: measured before, else estimated. Pure; for balancing, not for claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pytest_gpubench.recipe.types import Point

__all__ = ["START_SECONDS", "deployment_costs", "estimate_seconds", "measured_seconds"]

START_SECONDS = 300.0
"""A server's start when nothing is known: image and weights take minutes."""
_TPOT_SECONDS = 0.02
_PREFILL_SECONDS = 0.0001  # per token and wave
_TASK_SECONDS = 900.0


def estimate_seconds(point: Point) -> float:
    """Waves of requests x seconds per request, for every repetition and its warm-up."""
    load = point.load
    if point.task is not None:
        return _TASK_SECONDS
    if load is None:
        return 60.0
    concurrency = load.concurrency or load.num_prompts or 1
    waves = math.ceil(max(load.num_prompts, 1) / concurrency) + 1
    request = (load.osl or 512) * _TPOT_SECONDS + (load.isl or 512) * _PREFILL_SECONDS * concurrency
    probes = math.log2(max(2, point.slo.high)) if point.slo is not None else 1.0
    return waves * request * load.repetitions * probes


def measured_seconds(rows: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], float]:
    """(recipe, point) -> seconds of the benchmark in an earlier row."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        duration = row.get("duration")
        if isinstance(duration, (int, float)) and row.get("status") != "error":
            found[str(row.get("workload")), str(row.get("point"))] = float(duration)
    return found


def deployment_costs(points: Iterable[Point], known: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """``<recipe>/<deployment>`` -> seconds, the start included."""
    costs: dict[str, float] = {}
    for point in points:
        key = f"{point.deployment.recipe}/{point.deployment.id}"
        seconds = known.get((point.deployment.recipe, point.id), estimate_seconds(point))
        costs[key] = costs.get(key, START_SECONDS) + seconds
    return costs
