"""Plays one cell: into the phase, the event, and what came of it, with times."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from .matrix import XDIST, Cell
from .stage import HEARTBEAT, Stage
from .strike import DOWN_SECONDS, STRIKES, after, prepare, reached, settle, small_disk

REACH_SECONDS = 60.0
BOUND_SECONDS = 60.0
"""From the event to the end of the run, which may go on with other points."""


@dataclass
class Outcome:
    """What came of a cell. Times are seconds from the event."""

    cell: Cell
    code: int | None = None
    released: float | None = None  # the struck job has left the queue
    clean: float | None = None  # no job of ours is in the queue, no process of ours alive: the run is over
    noticed: float | None = None  # the struck point's row was written
    verdict: str | None = None
    first_before: bool = False
    first_after: bool = False
    ingest: list[str] = field(default_factory=list)
    bystander: bool = False
    cancels: list[tuple[str, ...]] = field(default_factory=list)
    ours: list[int] = field(default_factory=list)
    submissions: int = 0
    open_entries: list[str] = field(default_factory=list)
    reap: str = ""
    reap_code: int | None = None
    output: str = ""


def play(cell: Cell, folder: Path) -> Outcome:
    """Raises AssertionError when a wait ran out; nothing outlives this call."""
    folder.mkdir(parents=True)
    stage = Stage(folder)
    disk = small_disk(stage.results) if cell.event == "disk-full" else contextlib.nullcontext()
    with disk:
        try:
            return _play(stage, cell)
        finally:
            stage.close()


def _play(stage: Stage, cell: Cell) -> Outcome:
    found = Outcome(cell)
    prepare(stage, cell)
    stage.start(*(("-n", "1") if cell.event in XDIST else ()))
    stage.until(f"the phase {cell.phase}", lambda: reached(stage, cell.phase), REACH_SECONDS)
    settle(stage, cell.phase)
    found.first_before = stage.row("first", "done") is not None
    job = stage.job()
    assert job is not None
    struck = time.time()
    STRIKES[cell.event](stage)
    if cell.event == "sigkill-reap":
        done = stage.reap()
        found.reap, found.reap_code = done.stdout + done.stderr, done.returncode
    after(stage, cell)
    _wait(stage, found, struck, job.id)
    _look(stage, cell, found, struck)
    return found


def _wait(stage: Stage, found: Outcome, struck: float, job: int) -> None:
    assert stage.process is not None
    while time.time() < struck + BOUND_SECONDS:
        if found.released is None and stage.cluster.job(job).ended:
            found.released = time.time() - struck
        over = stage.process.poll() is not None and found.released is not None
        if over and all(job.ended for job in stage.ours()) and not stage.processes():
            found.clean = time.time() - struck
            break
        time.sleep(0.1)
    found.code = stage.process.poll()


def _look(stage: Stage, cell: Cell, found: Outcome, struck: float) -> None:
    found.output = stage.output
    found.bystander = stage.bystander_runs()
    found.cancels = [call.argv for call in stage.cluster.calls("scancel")]
    found.ours = [job.id for job in stage.ours()]
    found.submissions = sum(job.name.startswith("gpubench-victim-") for job in stage.ours())
    row = stage.row("victim", "struck")
    if row is not None:
        found.verdict = row["reason"] or row["status"]
        written = stage.row_time("victim", "struck")
        found.noticed = None if written is None else written - struck
    elif (match := re.search(r"infrastructure error \[(\w+)\]", found.output)) is not None:
        found.verdict = match[1]
    found.first_after = stage.row("first", "done") is not None
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((stage.results / "ingest.json").read_text())
        found.ingest = sorted(f"{r['workload']}: {r['reason'] or r['status']}" for r in content["rows"])
    if cell.event in ("sigkill", "sigkill-xdist", "disk-full"):
        (stage.results / "filler").unlink(missing_ok=True)
        done = stage.reap()  # closes in the journal what is over
        found.reap, found.reap_code = done.stdout + done.stderr, done.returncode
    found.open_entries = [entry.job_name for entry in stage.journal()]


def bound(cell: Cell) -> float:
    """Within how many seconds of the event the struck job has to be gone."""
    if cell.event in ("sigkill", "sigkill-xdist"):
        # The pending one starts first; an import does not heed TERM, so the script's grace of 10 s passes.
        return HEARTBEAT + {"submit": 12.0, "pending": 12.0, "import": 20.0}.get(cell.phase, 9.0)
    if cell.event == "controller":
        return DOWN_SECONDS + 30.0  # it is measured to its end
    return 20.0
