"""Gates as lines: from the rows' gates, from ``plan.json``, and from what violations tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.results.metrics import Metric, metric
from pytest_gpubench.results.report.series import X_METRICS, Y_METRICS, load_name, number

__all__ = ["Limit", "find_limits"]

_KINDS = {
    "floor": "floor",
    "ceiling": "ceiling",
    "reference_lower": "floor",
    "reference_upper": "ceiling",
}


@dataclass(frozen=True)
class Limit:
    """``metric`` must not be below (floor) or above (ceiling) ``value`` for ``scopes``: deployment and load.

    ``everywhere``: that is every deployment under every load.
    """

    metric: str
    kind: str
    value: float
    scopes: tuple[str, ...]
    everywhere: bool = False

    @property
    def label(self) -> str:
        """What stands beside the line."""
        info = metric(self.metric) or Metric(self.metric, "", None)
        text = f"{self.kind} {info.show(self.value)}"
        if self.everywhere:
            return text
        more = f" and {len(self.scopes) - 2} more" if len(self.scopes) > 2 else ""
        return f"{text} ({', '.join(self.scopes[:2])}{more})"


def find_limits(
    rows: Iterable[Mapping[str, JSON]], plans: Mapping[tuple[str, str], JSON] | None = None
) -> list[Limit]:
    """Every limit on a metric that the charts can show; equal limits are one line."""
    found: dict[tuple[str, str, float], dict[str, None]] = {}
    every: set[str] = set()
    for row in rows:
        scope = f"{row.get('deployment')} {load_name(row)}"
        every.add(scope)
        gates = row.get("gates")
        if gates is None and plans:
            gates = plans.get((str(row.get("workload")), str(row.get("point"))))
        for name, kind, value in [*_of_gates(gates), *_of_violations(row.get("violations"))]:
            if name in X_METRICS or name in Y_METRICS:
                found.setdefault((name, kind, value), {}).setdefault(scope)
    return [
        Limit(*key, scopes=tuple(scopes), everywhere=len(scopes) == len(every))
        for key, scopes in found.items()
    ]


def _of_gates(gates: JSON) -> list[tuple[str, str, float]]:
    """A gates block in the recipe's own form: floors, ceilings, references."""
    limits: list[tuple[str, str, float]] = []
    if not isinstance(gates, dict):
        return limits
    for block, kind in (("floors", "floor"), ("ceilings", "ceiling")):
        entries = gates.get(block)
        for name, value in (entries if isinstance(entries, dict) else {}).items():
            limit = number(value)
            if limit is not None:
                limits.append((name, kind, limit))
    references = gates.get("references")
    for name, entry in (references if isinstance(references, dict) else {}).items():
        value = number(entry.get("value")) if isinstance(entry, dict) else None
        for side, kind in (("lower", "floor"), ("upper", "ceiling")):
            share = number(entry.get(side)) if isinstance(entry, dict) else None
            if value is not None and share is not None:
                limits.append((name, kind, value + abs(value) * share))
    return limits


def _of_violations(violations: JSON) -> list[tuple[str, str, float]]:
    limits = []
    for entry in violations if isinstance(violations, list) else []:
        if not isinstance(entry, dict):
            continue
        kind, limit = _KINDS.get(str(entry.get("kind"))), number(entry.get("limit"))
        if kind is not None and limit is not None:
            limits.append((str(entry.get("metric")), kind, limit))
    return limits
