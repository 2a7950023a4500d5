"""Several repetitions of one load on one server: one figure and its spread per metric.

Figures (rates, latencies) are the **median** over the repetitions: one disturbed run does not move it,
and with an odd number of repetitions it is a value that was measured. Counts (prompts, completed,
failed, tokens) and the duration are **sums**: every request of every repetition must be accounted for,
and a median would hide a repetition in which requests failed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Spread", "medians", "spread", "spreads", "total"]


@dataclass(frozen=True)
class Spread:
    """How far repetitions lie apart, in the metric's own unit; ``relative_iqr`` is a share of the median."""

    low: float
    high: float
    relative_iqr: float | None


def medians(runs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The median of every metric; None for one that any repetition lacks."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _median([run.get(name) for run in runs]) for name in names}


def spreads(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Spread]:
    """The spread of every metric that all repetitions have; empty for fewer than two repetitions."""
    if len(runs) < 2:
        return {}
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [value for run in runs if (value := run.get(name)) is not None]
        if len(values) == len(runs):
            found[name] = spread(values)
    return found


def spread(values: Sequence[float]) -> Spread:
    """The spread of two or more values; quartiles as the inclusive method has them."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(min(values), max(values), (upper - lower) / abs(middle) if middle else None)


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None when there is nothing to add or any part is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None
