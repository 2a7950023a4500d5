"""The SLO search: the highest load that meets the ceilings, by bisection over measured probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_gpubench.recipe.types import Slo
from pytest_gpubench.results.outcome import SloProbe

__all__ = ["meets", "search"]

Figures = Mapping[str, float | None]


def meets(slo: Slo, figures: Figures) -> bool:
    """Every ceiling is met; a figure that is missing meets nothing."""
    for name, limit in slo.ceilings:
        value = figures.get(name)
        if value is None or value > limit:
            return False
    return True


def search(slo: Slo, probe: Callable[[int], Figures], known: Mapping[int, Figures]) -> tuple[SloProbe, ...]:
    """All probes in the order they were needed; ``known`` are loads measured before, which cost nothing.

    Assumes that more load never makes a latency better. Costs at most about log2(high - low) + 2 probes.
    """
    probes: list[SloProbe] = []
    seen: dict[int, bool] = {}

    def met(value: int) -> bool:
        if value not in seen:
            figures = known[value] if value in known else probe(value)
            seen[value] = meets(slo, figures)
            probes.append(SloProbe(float(value), seen[value], dict(figures)))
        return seen[value]

    low, high = _narrowed(slo, known)
    if low == slo.low and not met(low):
        return tuple(probes)
    if high == slo.high and met(high):
        return tuple(probes)
    met(low)
    met(high)
    while high - low > 1:
        middle = (low + high) // 2
        if met(middle):
            low = middle
        else:
            high = middle
    return tuple(probes)


def _narrowed(slo: Slo, known: Mapping[int, Figures]) -> tuple[int, int]:
    """The part of the range that what is known leaves open."""
    inside = {value: meets(slo, figures) for value, figures in known.items() if slo.low <= value <= slo.high}
    failing = [value for value, ok in inside.items() if not ok]
    high = min(failing, default=slo.high)
    low = max((value for value, ok in inside.items() if ok and value < high), default=slo.low)
    return low, high
