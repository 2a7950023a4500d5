"""The end of a run: ingest file, and the table on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.recipe.types import Point

if TYPE_CHECKING:
    from pytest_gpubench.session import Session

__all__ = ["close_run", "write_summary"]

Row = dict[str, JSON]

COLUMNS = (
    ("point", "point", "{}"),
    ("conc", "conc", "{}"),
    ("tok/s/GPU", "tput_per_gpu", "{:.1f}"),
    ("out tok/s/GPU", "output_tput_per_gpu", "{:.1f}"),
    ("TTFT p50 s", "median_ttft", "{:.4f}"),
    ("p99 s", "p99_ttft", "{:.4f}"),
    ("TPOT p50 s", "median_tpot", "{:.5f}"),
    ("p99 s", "p99_tpot", "{:.5f}"),
    ("failed", "failure_rate", "{:.2%}"),
    ("verdict", "verdict", "{}"),
)


def close_run(session: Session, points: Sequence[Point]) -> bool:
    """Assemble the ingest file from the rows of this run (and of the resumed points).

    False when there are rows and the file could not be written.
    """
    if session.options.dry_run or not points:
        return True
    resumed = [(point.deployment.recipe, point.id) for point in points] if session.options.resume else []
    rows = rows_of_run(session)
    if not rows and not resumed:
        return True
    try:
        session.store.assemble(
            session.run_block(), run_id=session.identity.run_id, resumed=resumed, path=session.options.json
        )
    except GpubenchError as err:
        session.warnings.append(
            f"{err}. The rows lie with their points; --gpubench-resume puts them together"
        )
        return False
    try:
        _ingest(session, rows)
    except GpubenchError as err:
        session.warnings.append(str(err))
    return True


def _ingest(session: Session, rows: Sequence[Row]) -> None:
    """Post the real rows when the dashboard is named; what could not be sent stays in the spool."""
    from pytest_gpubench.results.ingest import IngestSettings, send_rows
    from pytest_gpubench.results.spool import Spool

    settings = IngestSettings.from_env(session.env)
    if settings is None or session.simulated:
        return
    report = send_rows(rows, Spool.of(session.options.results), settings)
    session.notes.extend(report.lines())


def rows_of_run(session: Session) -> list[Row]:
    """The rows that this run wrote, by recipe and point."""
    if not session.options.results.is_dir():
        return []
    return in_order(row for row in session.store.read_rows() if row.get("run_id") == session.identity.run_id)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows sorted as people read them: ``conc4`` before ``conc16``."""

    def numbers_apart(row: Row) -> list[str | int]:
        parts = re.split(r"(\d+)", f"{row.get('workload')}/{row.get('point')}")
        return [int(part) if index % 2 else part for index, part in enumerate(parts)]

    return sorted(rows, key=numbers_apart)


def write_summary(session: Session, reporter: pytest.TerminalReporter) -> None:
    """One line per point, then what was kept where and what needs attention."""
    rows = rows_of_run(session)
    if rows:
        title = "gpubench (simulated)" if session.options.mock else "gpubench"
        reporter.section(title)
        for line in table(rows):
            reporter.write_line(line)
        reporter.write_line(f"rows: {session.options.json}")
        for line in [*cost_lines(allocations(session)), *html_lines(session), *session.notes]:
            reporter.write_line(line)
    for warning in session.warnings:
        reporter.write_line(f"gpubench warning: {warning}", yellow=True)


def allocations(session: Session) -> list[Row]:
    """What this run held, from the files that each release left; of all xdist workers."""
    found = []
    for path in sorted(session.options.results.glob("*/*/allocation*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("run_id") == session.identity.run_id:
            found.append(record)
    return found


def cost_lines(held: Sequence[Row]) -> list[str]:
    """Node-seconds held, the share of them spent measuring, and what is not confirmed as given back."""
    total = sum(_number(record.get("node_seconds")) for record in held)
    if total <= 0:
        return []
    measured = sum(_number(record.get("measuring_node_seconds")) for record in held)
    jobs = list(dict.fromkeys(str(record.get("job_id")) for record in held))
    open_jobs = [str(record.get("job_id")) for record in held if record.get("released") is not True]
    back = f"not confirmed as given back: {', '.join(open_jobs)}" if open_jobs else "all given back"
    return [
        f"cost: {total:.0f} node-seconds held by {len(jobs)} allocation{'s' if len(jobs) != 1 else ''} "
        f"({back}), {measured / total:.0%} of them measuring"
    ]


def html_lines(session: Session) -> list[str]:
    """Write the HTML report when it was asked for; a report that fails is said, and costs no verdict."""
    if session.options.html is None:
        return []
    try:
        from pytest_gpubench.results.report import load_source, write_report

        source = load_source(session.options.results, secrets=session.secrets)
        write_report(session.options.html, [source])
    except GpubenchError as err:
        session.warnings.append(f"--gpubench-html: {err}")
        return []
    return [f"report: {session.options.html}"]


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as aligned text lines, a header first; with a baseline, the change of the throughput too."""
    compared = any(isinstance(row.get("comparison"), dict) for row in rows)
    columns = (*COLUMNS, ("against baseline", "change", "{}")) if compared else COLUMNS
    cells = [[title for title, _, _ in columns]]
    several = len({row.get("workload") for row in rows}) > 1
    for row in rows:
        point = f"{row.get('workload')}/{row.get('point')}" if several else row.get("point")
        shown: Row = {**row, "point": point, "verdict": verdict_text(row), "change": _change(row)}
        cells.append([_cell(shown.get(key), form) for _, key, form in columns])
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _change(row: Row) -> str | None:
    comparison = row.get("comparison")
    if not isinstance(comparison, dict):
        return None
    deltas = comparison.get("deltas")
    for delta in deltas if isinstance(deltas, list) else []:
        if isinstance(delta, dict) and delta.get("metric") == "tput_per_gpu":
            return f"{_number(delta.get('change')):+.1%}"
    return str(comparison.get("status"))


def verdict_text(row: Row) -> str:
    """``passed``, or the status with its reason."""
    reason = row.get("reason")
    return f"{row.get('status')} ({reason})" if reason else str(row.get("status"))


def _cell(value: JSON, form: str) -> str:
    return "-" if value is None else form.format(value)
