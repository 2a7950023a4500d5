"""The matrix as a table of measured times, for docs/reliability.md.

``GPUBENCH_LEAK_TABLE=write pytest -m leak`` writes it between the markers there.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pytest_gpubench import __version__

from .matrix import DEATHS, EVENTS, NOTICED, PHASES, Cell
from .play import Outcome

OUTCOMES = pytest.StashKey[list[Outcome]]()
DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


def table(outcomes: Iterable[Outcome], before: str = "") -> str:
    """Markdown: an event a row, a phase a column; seconds until the job was released, and until the end.

    Cells that were not played keep their text of the table ``before``.
    """
    known = {outcome.cell: outcome for outcome in outcomes}
    old = cells_of(before)
    lines = ["| event | " + " | ".join(PHASES.values()) + " |", "|---" * (1 + len(PHASES)) + "|"]
    for event, title in EVENTS.items():
        texts = [
            _text(known, Cell(event, phase)) or old.get((title, name), "not run")
            for phase, name in PHASES.items()
        ]
        lines.append(f"| {title} | {' | '.join(texts)} |")
    return "\n".join(lines)


def cells_of(text: str) -> dict[tuple[str, str], str]:
    """(row title, column title) -> cell, of the Markdown table in ``text``."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    if not rows:
        return {}
    head, *body = rows
    return {(row[0], name): cell for row in body for name, cell in zip(head[1:], row[1:], strict=True)}


def _text(known: dict[Cell, Outcome], cell: Cell) -> str:
    if cell.impossible is not None:
        return "–"
    outcome = known.get(cell)
    if outcome is None or outcome.clean is None or outcome.released is None:
        return ""
    verdict = outcome.verdict or "no row"
    noticed = ""
    if cell.event in DEATHS and cell.phase in NOTICED and outcome.noticed is not None:
        noticed = f", noticed after {outcome.noticed:.1f} s"
    return f"{outcome.released:.1f} / {outcome.clean:.1f} s{noticed}; {verdict}"


def impossible() -> str:
    """Why the cells without a time cannot exist."""
    why: dict[str, list[str]] = {}
    for event in EVENTS:
        for phase in PHASES:
            if reason := Cell(event, phase).impossible:
                why.setdefault(reason, []).append(f"{EVENTS[event]} while {PHASES[phase]}")
    return "\n".join(f"- {reason}: {', '.join(cells)}" for reason, cells in why.items())


def block(name: str, document: Path = DOCUMENT) -> str:
    """What stands between the markers of the block ``name``; ValueError when they are not there."""
    return _split(name, document)[1]


def replace_block(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Put ``text`` between the markers of the block ``name``; ValueError when they are not there."""
    head, _, tail = _split(name, document)
    document.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")


def _split(name: str, document: Path) -> tuple[str, str, str]:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    content = document.read_text(encoding="utf-8")
    if content.count(begin) != 1 or content.count(end) != 1:
        raise ValueError(f"{document}: no block {name}")
    head, rest = content.split(begin)
    inside, tail = rest.split(end)
    return f"{head}{begin}", inside.strip("\n"), f"{end}{tail}"


def write(outcomes: list[Outcome]) -> None:
    """Write the table of this run, with what it ran on."""
    stamp = datetime.now(timezone.utc).date().isoformat()
    where = (
        f"Measured on {stamp} with pytest-gpubench {__version__}, pytest {pytest.__version__}, Python "
        f"{platform.python_version()}, on {os.cpu_count()} CPUs, several cells at a time."
    )
    times = table(outcomes, block("matrix"))
    text = f"{where}\n\n{times}\n\nCells without a time cannot exist:\n\n{impossible()}"
    replace_block("matrix", text)
