"""The matrix: which event strikes in which phase, what must come of it, and which cells cannot exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpubench.reasons import Reason

PHASES = {
    "submit": "submitted, no id seen",
    "pending": "pending",
    "import": "image import",
    "loading": "loading",
    "ready": "ready, first answer awaited",
    "between": "ready, between points",
    "bench": "benching",
    "teardown": "tearing down",
}
EVENTS = {
    "sigint": "SIGINT",
    "ctrl-c-twice": "second Ctrl-C",
    "sigterm": "SIGTERM",
    "sighup": "SIGHUP",
    "sigkill": "SIGKILL, heartbeat",
    "sigkill-reap": "SIGKILL, `gpubench reap`",
    "worker-crash": "xdist worker killed",
    "sigint-xdist": "SIGINT to pytest -n and its worker",
    "sigterm-xdist": "SIGTERM to pytest -n",
    "sigkill-xdist": "SIGKILL of pytest -n",
    "head-dies": "head dies",
    "follower-dies": "follower dies",
    "exit-0": "a rank ends with code 0",
    "cancel": "cancelled from outside",
    "node-fails": "node of the head fails",
    "requeue": "requeued",
    "controller": "controller unreachable",
    "disk-full": "results folder full",
}
SIGNALS = ("sigint", "ctrl-c-twice", "sigterm", "sighup", "sigint-xdist", "sigterm-xdist")
KILLS = ("sigkill", "sigkill-reap", "sigkill-xdist")
XDIST = ("worker-crash", "sigint-xdist", "sigterm-xdist", "sigkill-xdist")
DEATHS = ("head-dies", "follower-dies", "exit-0")
NOTICED = ("loading", "ready", "bench")
"""Phases in which the death of a rank must be noticed within NOTICE_SECONDS."""
NOTICE_SECONDS = 5.0

INTERRUPTED, KILLED, ERRED, PASSED = 2, -9, 1, 0
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Cell:
    """One event in one phase."""

    event: str
    phase: str

    @property
    def id(self) -> str:
        return f"{self.event}-{self.phase}"

    @property
    def impossible(self) -> str | None:
        """Why this cannot happen; None when it can."""
        event, phase = self.event, self.phase
        if event in DEATHS and phase in ("submit", "pending"):
            return "no rank runs yet"
        if event == "exit-0" and phase == "import":
            return "no program of a rank runs before its image is there"
        if event in DEATHS and phase == "teardown":
            return "the ranks were asked to end"
        if event == "node-fails" and phase == "pending":
            return "no node is allocated"
        if event == "requeue" and phase == "pending":
            return "Slurm requeues what runs"
        if event == "requeue" and phase == "teardown":
            return "Slurm does not requeue a job that is being cancelled"
        return None

    @property
    def expected(self) -> frozenset[tuple[int, str | None]]:
        """What may come of it: pytest's exit code, and the struck point's reason, or ``passed``; None is no
        row."""
        event, phase = self.event, self.phase
        if phase == "teardown":
            code = {
                **dict.fromkeys(SIGNALS, INTERRUPTED),
                **dict.fromkeys(KILLS, KILLED),
                "worker-crash": ERRED,
                "disk-full": ERRED,
            }
            return frozenset({(code.get(event, PASSED), "passed")})
        if event == "sigkill-xdist":
            # The workers live on for a moment; they notice, and give their nodes back.
            return frozenset({(KILLED, None), (KILLED, Reason.INTERRUPTED.value)})
        if event in KILLS:
            return frozenset({(KILLED, None)})
        if event in SIGNALS:
            row, none = (INTERRUPTED, Reason.INTERRUPTED.value), (INTERRUPTED, None)
            # Between points no point runs that could have a row; a worker may have gone on to the next.
            return frozenset({row} if phase != "between" else {row, none} if event in XDIST else {none})
        reason = {
            **dict.fromkeys(DEATHS, Reason.SERVER_EXITED),
            "worker-crash": Reason.HARNESS_ERROR,
            "disk-full": Reason.RESULTS_UNWRITABLE,
            "cancel": Reason.CANCELLED,
            "node-fails": Reason.NODE_FAILED,
            "requeue": Reason.REQUEUED,
        }
        if event == "controller":
            return frozenset({(PASSED, "passed")})
        failed = (ERRED, reason[event].value)
        if phase == "between" and event not in ("worker-crash", "disk-full"):
            # A broken server is rebuilt once, unless its death shows only when the next client runs.
            return frozenset({(PASSED, "passed"), failed})
        return frozenset({failed})


def cells() -> Iterator[Cell]:
    """Every event in every phase."""
    for event in EVENTS:
        for phase in PHASES:
            yield Cell(event, phase)
