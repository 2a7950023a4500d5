"""Comparisons as tables, in plain text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpubench.results.compare import Comparison, Delta
from pytest_gpubench.results.metrics import Metric

__all__ = ["DEFAULT_METRICS", "comparison_table"]

DEFAULT_METRICS = (
    "tput_per_gpu", "output_tput_per_gpu", "median_ttft", "p99_ttft", "median_tpot", "p99_tpot",
    "median_intvty", "failure_rate", "slo_best",
)  # fmt: skip
"""What a table shows unless it is asked for more; scores of accuracy rows are always shown."""

_HEADER = ("workload", "point", "metric", "before", "after", "change", "")


def comparison_table(
    comparisons: Sequence[Comparison], *, markdown: bool = False, metrics: Sequence[str] | None = None
) -> str:
    """One line per point and metric, then the warnings. ``metrics`` None: the default ones."""
    wanted = DEFAULT_METRICS if metrics is None else tuple(metrics)
    lines: list[tuple[str, ...]] = []
    for comparison in comparisons:
        regressed = {violation.metric for violation in comparison.regressions}
        shown = [
            d for d in comparison.deltas if d.metric in wanted or d.metric in regressed or " " in d.metric
        ]
        for delta in shown:
            lines.append(_line(comparison, delta, delta.metric in regressed))
        if not comparison.deltas:
            lines.append((comparison.workload, comparison.point, comparison.status, "", "", "", ""))
    table = _markdown(lines) if markdown else _plain(lines)
    notes = [
        f"{comparison.workload} {comparison.point}: {warning}"
        for comparison in comparisons
        for warning in (*comparison.warnings, *(v.message for v in comparison.regressions))
    ]
    bullet = "- " if markdown else ""
    return "\n".join([table, *([""] if notes else []), *(f"{bullet}{note}" for note in notes)])


def _line(comparison: Comparison, delta: Delta, regressed: bool) -> tuple[str, ...]:
    info = Metric(delta.metric, delta.unit, None)
    change = "" if delta.change is None else f"{delta.change:+.1%}"
    mark = "REGRESSED" if regressed else {True: "better", False: "worse", None: ""}[delta.better]
    return (
        comparison.workload, comparison.point, delta.metric,
        info.show(delta.before), info.show(delta.after), change, mark,
    )  # fmt: skip


def _plain(lines: Sequence[tuple[str, ...]]) -> str:
    rows = [_HEADER, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    # Figures (before, after, change) are right-aligned, words left.
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 3 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _markdown(lines: Sequence[tuple[str, ...]]) -> str:
    rule = ["---", "---", "---", "---:", "---:", "---:", "---"]
    rows = [_HEADER, tuple(rule), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
