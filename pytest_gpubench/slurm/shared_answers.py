"""Slurm answers shared by the processes of one session (xdist workers) through a folder.

Whoever holds the lock asks Slurm for the jobs of all; the others read what it wrote. Nothing here is
needed for correctness: when the folder cannot be used, every process asks for itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpubench.slurm.types import JobId, JobInfo, JobState

__all__ = ["SharedAnswers", "Snapshot", "merge"]

_FORGET = 300.0  # seconds after which a process that refreshed nothing is taken for dead


@dataclass(frozen=True)
class Snapshot:
    """The last query: when (seconds since the epoch) and every job's latest answer with its time."""

    queried: float = 0.0
    answers: dict[JobId, tuple[JobInfo, float]] = field(default_factory=dict)


class SharedAnswers:
    """``folder`` is on a local or shared disk; every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: tuple[frozenset[JobId], float] | None = None

    def register(self, jobs: Iterable[JobId], now: float) -> None:
        """Say which jobs this process watches, when that changed or was said long ago."""
        wanted = frozenset(jobs)
        if self._written is not None and self._written[0] == wanted and now - self._written[1] < _FORGET / 5:
            return
        keys = sorted([job.number, job.cluster] for job in wanted) if wanted else []
        self._replace(f"watch-{socket.gethostname()}-{os.getpid()}.json", {"at": now, "jobs": keys})
        self._written = (wanted, now)

    def watched(self, now: float) -> set[JobId]:
        """The jobs that any living process of the session watches."""
        jobs: set[JobId] = set()
        for path in self.folder.glob("watch-*.json"):
            data = _load(path)
            at = data.get("at")
            if isinstance(at, int | float) and abs(now - at) < _FORGET:
                jobs.update(_keys(data.get("jobs")))
        return jobs

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """True for the one process that may ask Slurm now; never waits. The kernel frees a dead one's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "query.lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def read(self) -> Snapshot:
        """What the last query answered; empty when there was none or the file is unreadable."""
        data = _load(self.folder / "answers.json")
        queried = data.get("queried")
        if not isinstance(queried, int | float):
            return Snapshot()
        answers: dict[JobId, tuple[JobInfo, float]] = {}
        for item in data.get("jobs") or ():
            try:
                info = _info(item)
                answers[info.id] = (info, float(item["at"]))
            except (KeyError, TypeError, ValueError):
                continue
        return Snapshot(float(queried), answers)

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file as a whole; answers that nobody refreshed for long are left out."""
        jobs = [
            {**_plain(info), "at": at}
            for info, at in snapshot.answers.values()
            if snapshot.queried - at < _FORGET
        ]
        self._replace("answers.json", {"queried": snapshot.queried, "jobs": jobs})

    def _replace(self, name: str, data: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".{name}.{os.getpid()}"
        aside.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
        os.replace(aside, self.folder / name)


def merge(old: Snapshot, new: dict[JobId, JobInfo], *, asked: float, answered: float) -> Snapshot:
    """The ``new`` answers of a query over the ``old`` ones; restarts once seen are not forgotten."""
    answers = dict(old.answers)
    for job, info in new.items():
        if job in answers:
            info = replace(info, restarts=max(info.restarts, answers[job][0].restarts))
        answers[job] = (info, asked)
    return Snapshot(answered, answers)


def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _keys(value: object) -> Iterator[JobId]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) == 2 and type(item[0]) is int:
            yield JobId(item[0], item[1] if isinstance(item[1], str) else None)


def _plain(info: JobInfo) -> dict[str, Any]:
    return {
        "id": [info.id.number, info.id.cluster],
        "state": info.state.value,
        "reason": info.reason,
        "nodes": list(info.nodes),
        "name": info.name,
        "exit_code": info.exit_code,
        "exit_signal": info.exit_signal,
        "restarts": info.restarts,
        "cancelled_by": info.cancelled_by,
        "source": info.source,
        "raw": info.raw,
    }


def _info(item: dict[str, Any]) -> JobInfo:
    number, cluster = item["id"]
    return JobInfo(
        id=JobId(int(number), cluster),
        state=JobState(item["state"]),
        reason=item["reason"],
        nodes=tuple(item["nodes"]),
        name=item["name"],
        exit_code=item["exit_code"],
        exit_signal=item["exit_signal"],
        restarts=int(item["restarts"]),
        cancelled_by=item["cancelled_by"],
        source=item["source"],
        raw=item["raw"],
    )
