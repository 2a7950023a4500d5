"""The end of a run: ingest file, and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The rows that this run wrote, in the order of their points."""
    if not session.options.results.is_dir():
        return []
    return [row for row in session.store.read_rows() if row.get("run_id") == session.identity.run_id]


def write_summary(session: Session, reporter: pytest.TerminalReporter) -> None:
    """One line per point, then what was kept where and what needs attention."""
    rows = rows_of_run(session)
    if rows:
        title = "gpubench (simulated)" if session.options.mock else "gpubench"
        reporter.section(title)
        for line in table(rows):
            reporter.write_line(line)
        reporter.write_line(f"rows: {session.options.json}")
        for line in [*cost_lines(session), *session.notes]:
            reporter.write_line(line)
    for warning in session.warnings:
        reporter.write_line(f"gpubench warning: {warning}", yellow=True)


def cost_lines(session: Session) -> list[str]:
    """Node-seconds held, and the share of them spent measuring; of this process's own allocations."""
    from pytest_gpubench.reasons import Phase

    held = measured = 0.0
    for server in session.pool.released:
        nodes = len(server.nodes) or server.deployment.num_nodes
        held += server.held_seconds * nodes
        measured += server.timings.seconds.get(Phase.BENCH, 0.0) * nodes
    if held <= 0:
        return []
    return [f"cost: {held:.0f} node-seconds held, {measured / held:.0%} of them measuring"]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as aligned text lines, a header first."""
    cells = [[title for title, _, _ in COLUMNS]]
    for row in rows:
        shown: Row = {**row, "verdict": verdict_text(row)}
        cells.append([_cell(shown.get(key), form) for _, key, form in COLUMNS])
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def verdict_text(row: Row) -> str:
    """``passed``, or the status with its reason."""
    reason = row.get("reason")
    return f"{row.get('status')} ({reason})" if reason else str(row.get("status"))


def _cell(value: JSON, form: str) -> str:
    return "-" if value is None else form.format(value)
