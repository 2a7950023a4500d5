"""One query per interval for all jobs of a session: many deployments must not burden the controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock, RLock

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.slurm.shared_answers import SharedAnswers, Snapshot, merge
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, SlurmClient
from pytest_gpubench.world import Clock

__all__ = ["JobPoller"]

_GROWTH = 1.5


@dataclass
class _Watched:
    info: JobInfo | None = None
    at: float = float("-inf")  # of the answer, on the monotonic clock
    unknown_since: float | None = None


class JobPoller:
    """Answers about watched jobs from a cache that one ``info`` call per interval fills.

    The interval grows from ``min_interval`` to ``max_interval`` while nothing changes and falls back
    on any change; jobs that ended are asked for no more. ``share`` is a folder through which several
    processes keep to one query per ``min_interval`` together. May be used by several threads: one
    asks, the others get what is known.
    """

    def __init__(
        self,
        client: SlurmClient,
        clock: Clock,
        *,
        min_interval: float = 2.0,
        max_interval: float = 30.0,
        share: Path | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._min = min_interval
        self._max = max_interval
        self._interval = min_interval
        self._queried = float("-inf")
        self._watched: dict[JobId, _Watched] = {}
        self._lock = RLock()  # of the fields
        self._asking = Lock()  # of the one thread that asks
        self._share = SharedAnswers(share) if share is not None else None

    def watch(self, job: JobId) -> None:
        """Ask for this job from now on, soon."""
        with self._lock:
            if job not in self._watched:
                self._watched[job] = _Watched()
                self._interval = self._min

    def unwatch(self, job: JobId) -> None:
        """Ask for it no more."""
        with self._lock:
            self._watched.pop(job, None)

    def latest(self, job: JobId, max_age: float | None = None) -> JobInfo:
        """The newest answer, never waiting longer than one query takes.

        Asks Slurm when the answer is older than ``max_age`` seconds (None: than the grown interval)
        and the last query is ``min_interval`` ago. UNKNOWN when there is no answer yet.
        """
        self.watch(job)
        if self._due(job, max_age) and self._asking.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._asking.release()
        with self._lock:
            entry = self._watched.get(job)
            if entry is None or entry.info is None:
                return JobInfo(job, JobState.UNKNOWN, reason="Slurm was not asked yet", source="poller")
            return entry.info

    def unknown_since(self, job: JobId) -> float | None:
        """Monotonic time of the first of the UNKNOWN answers in a row, None when the last was usable."""
        with self._lock:
            entry = self._watched.get(job)
            return entry.unknown_since if entry is not None else None

    def _due(self, job: JobId, max_age: float | None) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            if now - self._queried < self._min:
                return False
            entry = self._watched.get(job)
            if entry is None or _final(entry.info):
                return False
            if max_age is not None:
                return now - entry.at >= max_age
            return entry.info is None or now - self._queried >= self._interval

    def _refresh(self) -> None:
        with self._lock:
            wanted = [job for job, entry in self._watched.items() if not _final(entry.info)]
        if self._share is not None:
            try:
                return self._refresh_shared(self._share, wanted)
            except OSError:
                self._share = None  # a full or foreign disk: ask alone from now on
        asked = self._clock.monotonic()
        answers = self._ask(wanted)
        self._take({job: (info, asked) for job, info in answers.items()}, self._clock.monotonic())
        return None

    def _refresh_shared(self, share: SharedAnswers, wanted: list[JobId]) -> None:
        wall = self._clock.time()
        share.register(wanted, wall)
        with share.turn() as mine:
            snapshot = share.read()
            age = wall - snapshot.queried
            if mine and not 0 <= age < self._min:  # a clock that was set back makes it negative
                others = share.watched(wall) - set(wanted)
                done = {job for job, (info, _) in snapshot.answers.items() if _final(info)}
                answers = self._ask([*wanted, *sorted(others - done, key=str)])
                snapshot = merge(snapshot, answers, asked=wall, answered=self._clock.time())
                try:
                    share.write(snapshot)
                except OSError:
                    self._share = None  # these answers are good all the same
        self._take_snapshot(snapshot, self._clock.time(), self._clock.monotonic())

    def _take_snapshot(self, snapshot: Snapshot, wall: float, now: float) -> None:
        """Answers on the wall clock, which processes share, to this process's monotonic clock."""
        with self._lock:
            known = {
                job: (info, now - max(0.0, wall - at))
                for job, (info, at) in snapshot.answers.items()
                if job in self._watched
            }
            newer = {job: pair for job, pair in known.items() if pair[1] > self._watched[job].at}
        # Another one's query counts as ours, but look for its answers again before the interval is over.
        self._take(newer, now - min(max(0.0, wall - snapshot.queried), self._min / 2))

    def _ask(self, jobs: list[JobId]) -> dict[JobId, JobInfo]:
        if not jobs:
            return {}
        try:
            return self._client.info(jobs)
        except SlurmError as err:
            return {job: JobInfo(job, JobState.UNKNOWN, reason=err.message, source="poller") for job in jobs}

    def _take(self, answers: dict[JobId, tuple[JobInfo, float]], queried: float) -> None:
        with self._lock:
            self._queried = queried
            changed = False
            for job, (info, at) in answers.items():
                entry = self._watched.get(job)
                if entry is None:
                    continue
                old = entry.info
                changed |= old is None or (old.state, old.nodes) != (info.state, info.nodes)
                if info.state is not JobState.UNKNOWN:
                    entry.unknown_since = None
                elif entry.unknown_since is None:
                    entry.unknown_since = at
                entry.info, entry.at = info, at
            if changed:
                self._interval = self._min
            elif answers:
                self._interval = min(self._interval * _GROWTH, self._max)


def _final(info: JobInfo | None) -> bool:
    return info is not None and info.state.ended
