"""What the page's script is given: columns of figures, series, limits, allocations, as one JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.results.report.limits import find_limits
from pytest_gpubench.results.report.series import X_METRICS, Y_METRICS, load_name, make_series, number
from pytest_gpubench.results.report.source import Source
from pytest_gpubench.results.report.timeline import allocations

__all__ = ["MAX_ALLOCATIONS", "embedded_json", "make_payload", "result_text"]

MAX_ALLOCATIONS = 60
"""Bars in the phase timeline; more would not be readable."""

_NUMBERS = (
    "conc", "failure_rate", "median_tpot", "p99_tpot", *X_METRICS, *Y_METRICS,
)  # fmt: skip
_TEXTS = ("workload", "deployment", "point", "status", "reason", "kind", "date", "job_id")


def make_payload(sources: Sequence[Source]) -> dict[str, JSON]:
    """The page's data. Rows are columns: 50,000 objects would be five times as large."""
    runs = [source.rows for source in sources]
    rows = [row for run in runs for row in run]
    series = make_series(runs)
    workloads = {row.get("workload") for row in rows}
    loads = {entry.load for entry in series}
    labels = [source.label for source in sources]
    deployments = list(dict.fromkeys((entry.workload, entry.deployment) for entry in series))
    bars = allocations(runs)
    numbers: dict[str, JSON] = {name: [_short(number(row.get(name))) for row in rows] for name in _NUMBERS}
    texts: dict[str, JSON] = {name: _folded([_text(row.get(name)) for row in rows]) for name in _TEXTS}
    texts["load"] = _folded([load_name(row) for row in rows])
    texts["result"] = _folded([result_text(row) for row in rows])
    texts["run"] = _folded([source.label for source in sources for _ in source.rows])
    return {
        "count": len(rows),
        "runs": list(labels),
        "numbers": numbers,
        "texts": texts,
        "series": [
            {
                "name": entry.name(
                    runs=labels if len(labels) > 1 else (), workload=len(workloads) > 1, load=len(loads) > 1
                ),
                "run": entry.run,
                "hue": deployments.index((entry.workload, entry.deployment)),
                "load": entry.load,
                "rows": list(entry.indices),
                "fronts": {axes: list(front) for axes, front in entry.fronts.items()},
            }
            for entry in series
        ],
        "loads": [*sorted(loads)],
        "limits": [
            {"metric": limit.metric, "kind": limit.kind, "value": limit.value, "label": limit.label}
            for limit in find_limits(rows, _plans(sources))
        ],
        "allocations": [
            {
                "name": bar.name if len(labels) == 1 else f"{bar.name} · {labels[bar.run]}",
                "nodes": list(bar.nodes),
                "share": bar.measured_share,
                "seconds": {name: _short(value) for name, value in bar.seconds.items()},
            }
            for bar in bars[:MAX_ALLOCATIONS]
        ],
        "allocation_count": len(bars),
    }


def result_text(row: Mapping[str, JSON]) -> str:
    """The result of a point that has no curve: scores of an accuracy task, the best of an SLO search."""
    scores = row.get("scores")
    if isinstance(scores, list):
        parts = [
            f"{entry.get('task')} {entry.get('metric')} {value:.4g}"
            for entry in scores
            if isinstance(entry, dict) and (value := number(entry.get("value"))) is not None
        ]
        return ", ".join(parts)
    best, search = number(row.get("slo_best")), row.get("slo")
    if best is not None and isinstance(search, dict):
        return f"best {search.get('over')} {best:g}"
    return ""


def embedded_json(content: JSON) -> str:
    """JSON that may stand inside a ``<script>`` element: no text of a row can end it."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plans(sources: Sequence[Source]) -> dict[tuple[str, str], JSON]:
    return {key: gates for source in sources for key, gates in source.gates.items()}


def _text(value: JSON) -> str:
    return "" if value is None else str(value)


def _short(value: float | None) -> float | int | None:
    """Six significant digits: more than is ever shown, and half the file."""
    if value is None:
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _folded(values: Sequence[str]) -> JSON:
    """A column of texts as the distinct ones and an index per row."""
    distinct = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return {"values": list(distinct), "index": [distinct[value] for value in values]}
