"""Nothing leaks on a real Slurm: signals, kills, cancels, deaths, a node crash, a controller out of reach."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from leak.ahead import Ahead
from leak.table import block, cells_of, replace_block

from .leak_site import HEARTBEAT, SIGKILLED, LeakSite
from .real_slurm import RealSlurm

PHASES = {"pending": "pending", "loading": "loading", "bench": "benching"}
EVENTS = {
    "sigint": "SIGINT",
    "sigterm": "SIGTERM",
    "sighup": "SIGHUP",
    "sigkill": "SIGKILL, heartbeat",
    "sigkill-reap": "SIGKILL, `gpubench reap`",
    "scancel": "scancel from outside",
    "head-dies": "head dies",
    "follower-dies": "follower dies",
    "node-fails": "node of the head crashes",
    "controller": "controller hangs for 5 s",
    "restart": "controller gone for 2 s, restarted",
}
SIGNALS = {"sigint": signal.SIGINT, "sigterm": signal.SIGTERM, "sighup": signal.SIGHUP}
RECOVERS = ("controller", "restart")
ALONE = ("node-fails", *RECOVERS)
"""What strikes the cluster strikes every cell: these are played one by one."""
CONTROLLER_SECONDS = 5.0
BOUND_SECONDS = 45.0
NOTICE_SECONDS = 5.0
MEASURED = pytest.StashKey[dict[tuple[str, str], "Outcome"]]()


def possible(event: str, phase: str) -> bool:
    """Whether the cell exists: without nodes no rank runs and no node can fail."""
    return phase != "pending" or event not in ("head-dies", "follower-dies", "node-fails")


CELLS = [(event, phase) for event in EVENTS for phase in PHASES if possible(event, phase)]


@dataclass
class Outcome:
    """Seconds from the event, pytest's exit code, the struck point's reason or status."""

    code: int | None
    clean: float
    verdict: str | None
    noticed: float | None
    output: str
    site: LeakSite
    reap: tuple[int, str] | None = None


def expected(event: str, phase: str) -> tuple[int, str | None]:
    """Exit code and verdict of the point that is under way: the second one while benching, else the first."""
    if event in SIGNALS:
        return 2, "interrupted"
    if event in ("sigkill", "sigkill-reap"):
        return SIGKILLED, None
    if event in RECOVERS:
        return 0, "passed"
    return 1, {"scancel": "cancelled", "node-fails": "node_failed"}.get(event, "server_exited")


def play(event: str, phase: str, folder: Path, slurm: RealSlurm) -> Outcome:
    """Into the phase, the event, and what came of it."""
    recovers = event in RECOVERS
    last = recovers or event == "sigkill"  # what is pending has to start at some time
    site = LeakSite(
        folder,
        slurm,
        begin=(10 if last else 300) if phase == "pending" else 0,
        osl=4000 if phase == "bench" else 16,
        load_seconds=(4.0 if recovers else 60.0) if phase == "loading" else 0.2,
        token=(0.0015 if recovers else 0.005) if phase == "bench" else 0.0005,
    )
    try:
        site.start()
        site.until(f"the phase {phase}", lambda: site.reached(phase), 60)
        time.sleep(0.5)
        job = site.job()
        struck = time.time()
        reap = strike(event, site, job)
        return watch(site, phase, job, struck, reap)
    finally:
        site.close()


def strike(event: str, site: LeakSite, job: str) -> tuple[int, str] | None:
    """Bring the event about; the answer of `gpubench reap` where it is a part of it."""
    if event in SIGNALS:
        site.signal(SIGNALS[event])
    elif event in ("sigkill", "sigkill-reap"):
        site.signal(signal.SIGKILL)
        if event == "sigkill-reap":
            done = site.reap()
            return done.returncode, done.stdout + done.stderr
    elif event == "scancel":
        site.slurm.run("scancel", job)
    elif event == "node-fails":
        site.slurm.crash_node("gb300-01")
    elif event == "controller":
        with site.slurm.controller_hung():
            time.sleep(CONTROLLER_SECONDS)
    elif event == "restart":
        with site.slurm.controller_down():
            time.sleep(2.0)
    else:
        os.kill(site.rank(head=event == "head-dies"), signal.SIGKILL)
    return None


def watch(site: LeakSite, phase: str, job: str, struck: float, reap: tuple[int, str] | None) -> Outcome:
    """Wait until nothing of ours is left."""
    clean: float | None = None
    while clean is None and time.time() - struck < BOUND_SECONDS + 15.0:
        time.sleep(0.2)
        assert site.process is not None
        if site.process.poll() is None or site.processes():
            continue
        if site.slurm.job_state(job) in ENDED:
            clean = time.time() - struck
    point = "struck" if phase == "bench" else "before"
    row, written = site.row(point), site.row_time(point)
    assert clean is not None, (
        f"still there: {site.processes()}, job {site.slurm.job_state(job)}\n{site.output}"
    )
    return Outcome(
        code=site.process.poll() if site.process is not None else None,
        clean=clean,
        verdict=None if row is None else row["reason"] or row["status"],
        noticed=None if written is None else written - struck,
        output=site.output,
        site=site,
        reap=reap,
    )


ENDED = {None, "CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"}


@pytest.fixture(scope="module")
def bystander(real_slurm: RealSlurm) -> Iterator[str]:
    """A job of the same user with a similar name, on the second node; nothing may touch it."""
    job = real_slurm.run(
        "sbatch", "--parsable", "--job-name", "gpubench-victim-of-somebody", "--nodelist", "gb300-02",
        "--output", "/dev/null", "--wrap", "sleep 900",
    ).stdout.strip()  # fmt: skip
    real_slurm.wait_state(job, {"RUNNING"})
    yield job
    real_slurm.reset()


@pytest.fixture(scope="module")
def measured(pytestconfig: pytest.Config, real_slurm: RealSlurm) -> Iterator[dict[tuple[str, str], Outcome]]:
    found: dict[tuple[str, str], Outcome] = {}
    yield found
    if os.environ.get("GPUBENCH_LEAK_TABLE") == "write":
        replace_block("real", f"Slurm {real_slurm.version}.\n\n{table(found, cells_of(block('real')))}")


@pytest.fixture(scope="module")
def ahead(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, real_slurm: RealSlurm
) -> Iterator[Ahead[Outcome]]:
    folder = tmp_path_factory.mktemp("leak-real")
    asked = [item.callspec.params.get("cell") for item in request.session.items if hasattr(item, "callspec")]
    todo = [cell for cell in CELLS if cell in asked and cell[0] not in ALONE]
    made = Ahead({"-".join(c): partial(play, *c, folder / "-".join(c), real_slurm) for c in todo}, at_once=4)
    yield made
    made.close()


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell[0] not in ALONE], ids="-".join)
def test_nothing_is_left(
    cell: tuple[str, str],
    ahead: Ahead[Outcome],
    bystander: str,
    real_slurm: RealSlurm,
    measured: dict[tuple[str, str], Outcome],
) -> None:
    found = ahead.result("-".join(cell))
    check(cell, found)
    assert real_slurm.job_state(bystander) == "RUNNING"
    measured[cell] = found


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell[0] in ALONE], ids="-".join)
def test_nothing_is_left_when_the_cluster_is_struck(
    cell: tuple[str, str],
    tmp_path: Path,
    bystander: str,
    real_slurm: RealSlurm,
    measured: dict[tuple[str, str], Outcome],
) -> None:
    found = play(*cell, tmp_path / "cell", real_slurm)
    check(cell, found)
    assert real_slurm.job_state(bystander) == "RUNNING"
    measured[cell] = found
    if cell[0] == "node-fails":
        real_slurm.resume_node("gb300-01")


def check(cell: tuple[str, str], found: Outcome) -> None:
    """All that must hold, whatever the cell."""
    event, phase = cell
    code, verdict = expected(event, phase)
    # Seen with Slurm 22.05: after a restart of slurmctld it refuses further steps of jobs that run already.
    if event == "restart" and "Memory required by task is not available" in found.output:
        code, verdict = 1, "client_failed"
    assert found.code == code, found.output
    assert found.verdict == verdict, found.output
    assert found.clean < BOUND_SECONDS
    if phase == "bench":
        row = found.site.row("before")
        assert row is not None
        assert row["status"] == "passed"
    if event == "sigkill":
        done = found.site.reap()
        assert done.returncode == 0, done.stdout + done.stderr
    if found.reap is not None:
        assert found.reap[0] == 0, found.reap[1]
    assert found.site.journal() == []
    if event in ("head-dies", "follower-dies"):
        assert found.noticed is not None
        assert found.noticed < NOTICE_SECONDS, found.output


def table(found: dict[tuple[str, str], Outcome], before: dict[tuple[str, str], str]) -> str:
    """Markdown: an event a row, a phase a column; what was not played keeps its text of ``before``."""
    lines = [f"| event | {' | '.join(PHASES.values())} |", "|---" * (1 + len(PHASES)) + "|"]
    for event, title in EVENTS.items():
        cells = []
        for phase in PHASES:
            outcome = found.get((event, phase))
            if not possible(event, phase):
                cells.append("–")
            elif outcome is None:
                cells.append(before.get((title, PHASES[phase]), "not run"))
            else:
                told = ", noticed after {:.1f} s" if event.endswith("-dies") else ""
                cells.append(
                    f"{outcome.clean:.1f} s{told.format(outcome.noticed)}; {outcome.verdict or 'no row'}"
                )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"The heartbeat's limit is {HEARTBEAT} s, `KillWait` 5 s."])
