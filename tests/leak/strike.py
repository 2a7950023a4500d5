"""How a run is brought into a phase and held there, and how each event is brought about."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_gpubench.mock import (
    ControllerDown,
    EngineDeadButHealthy,
    ImportSlow,
    SbatchHangsButQueues,
    ServerExits,
    SlowQueue,
    StuckCompleting,
)
from pytest_gpubench.mock import phases as marks

from .matrix import Cell
from .stage import VICTIM, Stage

HANG_SECONDS = 4.0
DOWN_SECONDS = 5.0
LONG = 60.0
OSL = 4000  # two prompts at once, 5 ms a token: 20 s


def prepare(stage: Stage, cell: Cell) -> None:
    """Recipes, faults and timings that hold the run in the phase for long enough."""
    phase = cell.phase
    lasts = cell.event == "controller"  # the run goes on afterwards, so the phase has to end
    slow = phase == "bench"
    stage.recipes(*(("before", "struck") if phase == "between" else ("struck",)), osl=OSL if slow else 16)
    sim: dict[str, object] = {}
    if phase == "submit":
        stage.cluster.inject(SbatchHangsButQueues(HANG_SECONDS, match=VICTIM))
        if lasts:
            stage.cluster.inject(SlowQueue(DOWN_SECONDS + 2.0, match=VICTIM))  # nothing starts meanwhile
    elif phase == "pending":
        short = lasts or cell.event in ("sigkill", "sigkill-xdist", "disk-full")
        stage.cluster.inject(SlowQueue(DOWN_SECONDS + 2.0 if short else LONG, match=VICTIM))
    elif phase == "import":
        stage.cluster.inject(ImportSlow(4.0 if lasts or cell.event == "disk-full" else LONG, match=VICTIM))
    elif phase == "loading":
        sim["load_seconds"] = 4.0 if lasts or cell.event == "disk-full" else LONG
    elif phase == "ready":
        goes_on = lasts or cell.event == "disk-full"
        stage.cluster.inject(EngineDeadButHealthy(hang=not goes_on, match=VICTIM))
    elif phase == "between":
        (stage.project / "hold").touch()
    elif phase == "bench":
        sim["token"] = 0.0015 if lasts or cell.event == "disk-full" else 0.005
    else:
        stage.cluster.inject(StuckCompleting(3.0, match=VICTIM))
    stage.cluster.simulate(models={"org/victim": sim})


def reached(stage: Stage, phase: str) -> bool:
    """Whether the run is in the phase now."""
    job, entry = stage.job(), stage.entry()
    if job is None or entry is None:
        return False
    if phase == "submit":
        return entry.id is None
    if entry.id is None:
        return False
    since = {
        name: marks.since(stage.cluster.folder, job.id, name) for name in ("import", "loading", "benching")
    }
    if phase == "pending":
        return job.state == "PENDING"
    if phase == "import":
        return since["import"] is not None and len(stage.cluster.store.steps(job.id)) == 2
    if phase == "loading":
        started = list(stage.results.glob("victim/*/state/*/rank-*.started"))
        return since["loading"] is not None and len(started) == 2
    if phase == "ready":
        return since["benching"] is not None
    if phase == "between":
        return (stage.project / "held").exists()
    if phase == "bench":
        log = next(stage.results.glob("victim/*/client.log"), None)
        return log is not None and len(stage.cluster.store.steps(job.id)) == 3
    return job.state == "COMPLETING"


def settle(stage: Stage, phase: str) -> None:
    """A moment, so that the event does not strike at the very border of the phase."""
    time.sleep(0.1 if phase in ("submit", "teardown") else 0.5)


def release_hold(stage: Stage) -> None:
    """Let a run that waits between points go on."""
    (stage.project / "hold").unlink(missing_ok=True)


# -- events --------------------------------------------------------------------------------------------------


def _rank(stage: Stage, node: int) -> int:
    """The process of a rank on the job's n-th node; the keeper of its step before there is one."""
    job = stage.job()
    assert job is not None
    steps = [step for step in stage.cluster.store.steps(job.id) if step.nodes == [job.nodes[node]]]
    step = min(steps, key=lambda step: step.id)
    return step.tasks[0][0] if step.tasks else step.keeper


def _kill_rank(node: int) -> Callable[[Stage], None]:
    return lambda stage: os.kill(_rank(stage, node), signal.SIGKILL)


def _worker(stage: Stage) -> int:
    entry = stage.entry()
    assert entry is not None
    assert stage.process is not None
    assert entry.owner.pid != stage.process.pid
    return entry.owner.pid


def _job_id(stage: Stage) -> int:
    job = stage.job()
    assert job is not None
    return job.id


def _twice(stage: Stage) -> None:
    stage.signal(signal.SIGINT)
    for _ in range(2):
        time.sleep(0.3)
        with contextlib.suppress(ProcessLookupError):
            stage.signal(signal.SIGINT)


def _fail_node(stage: Stage) -> None:
    job = stage.job()
    assert job is not None
    stage.cluster.fail_node(job.nodes[0])


def _fill(stage: Stage) -> None:
    """Write until nothing more fits, not one byte."""
    with open(stage.results / "filler", "ab", buffering=0) as sink:
        for size in (65536, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    sink.write(bytes(size))


STRIKES: dict[str, Callable[[Stage], None]] = {
    "sigint": lambda stage: stage.signal(signal.SIGINT),
    "ctrl-c-twice": _twice,
    "sigterm": lambda stage: stage.signal(signal.SIGTERM),
    "sighup": lambda stage: stage.signal(signal.SIGHUP),
    "sigkill": lambda stage: stage.signal(signal.SIGKILL),
    "sigkill-reap": lambda stage: stage.signal(signal.SIGKILL),
    "worker-crash": lambda stage: os.kill(_worker(stage), signal.SIGKILL),
    "sigint-xdist": lambda stage: stage.signal_group(signal.SIGINT),
    "sigterm-xdist": lambda stage: stage.signal(signal.SIGTERM),
    "sigkill-xdist": lambda stage: stage.signal(signal.SIGKILL),
    "head-dies": _kill_rank(0),
    "follower-dies": _kill_rank(1),
    "exit-0": lambda stage: stage.cluster.inject(ServerExits(rank=1, code=0, text="bye", match=VICTIM)),
    "cancel": lambda stage: stage.cluster.cancel_externally(_job_id(stage)),
    "node-fails": _fail_node,
    "requeue": lambda stage: stage.cluster.requeue(_job_id(stage)),
    "controller": lambda stage: stage.cluster.inject(ControllerDown(DOWN_SECONDS)),
    "disk-full": _fill,
}


def after(stage: Stage, cell: Cell) -> None:
    """What holds the run only until the event, so that it can go on."""
    if cell.phase == "between":
        if cell.event in ("sigkill", "sigkill-reap", "sigkill-xdist"):
            return
        time.sleep(1.5)
        stage.cluster.clear(ServerExits)  # not the next server, too
        release_hold(stage)
    if cell.phase == "ready" and cell.event in ("controller", "disk-full"):
        stage.cluster.clear(EngineDeadButHealthy)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own, of two megabytes, at ``folder``; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", "size=2m", "gpubench-leak", str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


def _run(*argv: str) -> None:
    import subprocess

    subprocess.run(argv, check=True, timeout=20, capture_output=True, stdin=subprocess.DEVNULL)
