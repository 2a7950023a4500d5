"""Slurm's state texts folded to :class:`JobState`, and what an unexpected state means for a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.types import JobInfo, JobState

__all__ = ["canceller", "fold_rows", "fold_state", "reason_of"]

_LONG = {
    JobState.PENDING: ("PENDING", "REQUEUE_DELAY"),
    JobState.RUNNING: (
        "RUNNING",
        "CONFIGURING",
        "EXPEDITING",
        "POWER_UP_NODE",
        "RECONFIG_FAIL",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
        "UPDATE_DB",
    ),
    JobState.COMPLETING: ("COMPLETING",),
    JobState.COMPLETED: ("COMPLETED",),
    JobState.FAILED: ("FAILED", "LAUNCH_FAILED"),
    JobState.CANCELLED: ("CANCELLED", "REVOKED"),
    JobState.TIMEOUT: ("TIMEOUT",),
    JobState.NODE_FAIL: ("NODE_FAIL",),
    JobState.PREEMPTED: ("PREEMPTED",),
    JobState.OUT_OF_MEMORY: ("OUT_OF_MEMORY",),
    JobState.BOOT_FAIL: ("BOOT_FAIL",),
    JobState.DEADLINE: ("DEADLINE",),
    JobState.REQUEUED: (
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    ),
}
_SHORT = {
    JobState.PENDING: ("PD",),
    JobState.RUNNING: ("R", "CF", "EX", "RS", "SI", "SO", "ST", "S", "UD"),
    JobState.COMPLETING: ("CG",),
    JobState.COMPLETED: ("CD",),
    JobState.FAILED: ("F", "LF"),
    JobState.CANCELLED: ("CA", "RV"),
    JobState.TIMEOUT: ("TO",),
    JobState.NODE_FAIL: ("NF",),
    JobState.PREEMPTED: ("PR",),
    JobState.OUT_OF_MEMORY: ("OOM",),
    JobState.BOOT_FAIL: ("BF",),
    JobState.DEADLINE: ("DL",),
    JobState.REQUEUED: ("RQ", "RF", "RH", "RD", "SE"),
}
_BY_TEXT = {text: state for table in (_LONG, _SHORT) for state, texts in table.items() for text in texts}

# A job of several rows (array, heterogeneous) lives as long as any of them does.
_MOST_ALIVE = (
    JobState.UNKNOWN,
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.PENDING,
)
_CANCELLED_BY = re.compile(r"CANCELLED\+?\s+by\s+(\S+)", re.IGNORECASE)

_ENDINGS = {
    JobState.TIMEOUT: Reason.TIME_LIMIT,
    JobState.DEADLINE: Reason.TIME_LIMIT,
    JobState.NODE_FAIL: Reason.NODE_FAILED,
    JobState.BOOT_FAIL: Reason.NODE_FAILED,
    JobState.PREEMPTED: Reason.PREEMPTED,
    JobState.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    JobState.REQUEUED: Reason.REQUEUED,
    JobState.CANCELLED: Reason.CANCELLED,
    JobState.COMPLETED: Reason.JOB_ENDED,
    JobState.FAILED: Reason.JOB_ENDED,
    JobState.GONE: Reason.JOB_LOST,
}
_SAYS_LESS_THAN_RESTART = {None, Reason.JOB_ENDED, Reason.CANCELLED, Reason.JOB_LOST}


def fold_state(text: str) -> JobState:
    """Long or short state text, also ``CANCELLED by 1234`` and sacct's cut ``OUT_OF_ME+``; else UNKNOWN."""
    words = text.strip().upper().split()
    if not words:
        return JobState.UNKNOWN
    word = words[0]
    if word.endswith("+") and word[:-1] not in _BY_TEXT:
        cut = {state for text, state in _BY_TEXT.items() if len(word) > 4 and text.startswith(word[:-1])}
        return cut.pop() if len(cut) == 1 else JobState.UNKNOWN
    return _BY_TEXT.get(word.rstrip("+"), JobState.UNKNOWN)


def canceller(text: str) -> str | None:
    """The uid in ``CANCELLED by 1234``."""
    match = _CANCELLED_BY.search(text)
    return match[1] if match else None


def fold_rows(rows: Sequence[JobInfo]) -> JobInfo:
    """One answer from all rows of a job: the most alive state, the nodes of all rows in their order."""
    first = min(rows, key=_rank_of_row)
    nodes = tuple(dict.fromkeys(node for row in rows for node in row.nodes))
    return replace(
        first, nodes=nodes, restarts=max(row.restarts for row in rows), raw="\n".join(r.raw for r in rows)
    )


def _rank_of_row(row: JobInfo) -> int:
    if row.state in _MOST_ALIVE:
        return _MOST_ALIVE.index(row.state)
    return len(_MOST_ALIVE) + (row.state is JobState.COMPLETED)  # a failed part is the job's outcome


def reason_of(info: JobInfo, *, ours_cancelled: bool) -> Reason | None:
    """Why a job that should run does not, or None while it may go on.

    ``ours_cancelled``: this run itself asked Slurm to cancel it, so that whatever follows is meant.
    COMPLETING is no outcome yet, UNKNOWN is none at all: both give None.
    """
    if ours_cancelled:
        return None
    if info.state is JobState.FAILED and info.reason in {"OutOfMemory", "TimeLimit", "NodeDown"}:
        return {
            "OutOfMemory": Reason.OUT_OF_MEMORY,
            "TimeLimit": Reason.TIME_LIMIT,
            "NodeDown": Reason.NODE_FAILED,
        }[info.reason]
    ending = _ENDINGS.get(info.state)
    if info.restarts > 0 and info.state is not JobState.UNKNOWN and ending in _SAYS_LESS_THAN_RESTART:
        return Reason.REQUEUED
    return ending
