from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.poller import JobPoller
from pytest_gpubench.slurm.shared_answers import SharedAnswers
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState

from .fakes import FakeClient, FakeClock


def poller(slurm: FakeClient, clock: FakeClock, share: Path | None = None) -> JobPoller:
    return JobPoller(slurm, clock, share=share)  # type: ignore[arg-type]


def test_one_query_answers_for_all_jobs() -> None:
    slurm, clock = FakeClient(), FakeClock()
    jobs = [slurm.put(number, JobState.RUNNING) for number in range(1, 201)]
    polls = poller(slurm, clock)
    for job in jobs:
        polls.watch(job)
    for _ in range(30):
        for job in jobs:
            assert polls.latest(job, max_age=0).state is JobState.RUNNING
        clock.sleep(0.5)
    assert len(slurm.queries) <= 15 / 2 + 1
    assert slurm.queries[0] == jobs


def test_the_interval_grows_while_nothing_changes_and_falls_back_on_a_change() -> None:
    slurm, clock = FakeClient(), FakeClock()
    job = slurm.put(1, JobState.PENDING, reason="Priority")
    polls = poller(slurm, clock)
    asked: list[float] = []

    def watch_for(seconds: int) -> list[float]:
        asked.clear()
        for _ in range(seconds * 2):
            before = len(slurm.queries)
            polls.latest(job)
            if len(slurm.queries) > before:
                asked.append(clock.now)
            clock.sleep(0.5)
        return [round(b - a, 1) for a, b in itertools.pairwise(asked)]

    gaps = watch_for(400)
    assert gaps[0] <= 4
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30
    slurm.put(1, JobState.RUNNING, nodes=("a1",))
    gaps = watch_for(60)
    assert min(gaps) <= 3
    assert polls.latest(job).nodes == ("a1",)


def test_max_age_wins_over_a_grown_interval_but_not_over_the_minimum() -> None:
    slurm, clock = FakeClient(), FakeClock()
    job = slurm.put(1, JobState.RUNNING)
    polls = poller(slurm, clock)
    for _ in range(100):
        polls.latest(job)
        clock.sleep(10)
    before = len(slurm.queries)
    for _ in range(100):
        polls.latest(job, max_age=5)
        clock.sleep(1)
    assert len(slurm.queries) - before == pytest.approx(20, abs=1)
    before = len(slurm.queries)
    for _ in range(100):
        polls.latest(job, max_age=0)
        clock.sleep(0.1)
    assert len(slurm.queries) - before <= 6


def test_an_ended_job_is_asked_for_no_more() -> None:
    slurm, clock = FakeClient(), FakeClock()
    ended, runs = slurm.put(1, JobState.COMPLETED), slurm.put(2, JobState.RUNNING)
    polls = poller(slurm, clock)
    polls.watch(runs)
    assert polls.latest(ended).state is JobState.COMPLETED
    clock.sleep(100)
    polls.latest(ended, max_age=0)
    assert slurm.queries == [[runs, ended]]
    polls.latest(runs)
    assert slurm.queries[1:] == [[runs]]
    polls.unwatch(runs)
    polls.unwatch(ended)
    assert polls.unknown_since(runs) is None


def test_no_answer_yet_is_unknown_but_not_held_against_slurm() -> None:
    slurm, clock = FakeClient(), FakeClock()
    polls = poller(slurm, clock)
    polls.latest(slurm.put(1, JobState.RUNNING))
    new = slurm.put(2, JobState.RUNNING)
    assert polls.latest(new).state is JobState.UNKNOWN
    assert polls.unknown_since(new) is None
    clock.sleep(2)
    assert polls.latest(new).state is JobState.RUNNING


def test_unknown_answers_in_a_row_are_timed() -> None:
    slurm, clock = FakeClient(), FakeClock()
    job = slurm.put(1, JobState.RUNNING)
    polls = poller(slurm, clock)
    polls.latest(job)
    slurm.put(1, JobState.UNKNOWN)
    clock.sleep(5)
    since = clock.now
    for _ in range(4):
        assert polls.latest(job, max_age=1).state is JobState.UNKNOWN
        assert polls.unknown_since(job) == since
        clock.sleep(5)
    slurm.put(1, JobState.RUNNING)
    assert polls.latest(job, max_age=1).state is JobState.RUNNING
    assert polls.unknown_since(job) is None


def test_a_client_that_raises_gives_unknown() -> None:
    class Broken(FakeClient):
        def info(self, ids: Sequence[JobId]) -> dict[JobId, JobInfo]:
            raise SlurmError(Reason.SLURM_UNREACHABLE, "no controller")

    info = poller(Broken(), FakeClock()).latest(JobId(1))
    assert (info.state, info.reason) == (JobState.UNKNOWN, "no controller")


def test_threads_get_the_known_answer_while_one_asks() -> None:
    clock = FakeClock()
    asking, go_on = threading.Event(), threading.Event()

    class Slow(FakeClient):
        def info(self, ids: Sequence[JobId]) -> dict[JobId, JobInfo]:
            asking.set()
            assert go_on.wait(5)
            return super().info(ids)

    slurm = Slow()
    job = slurm.put(1, JobState.RUNNING)
    polls = poller(slurm, clock)
    thread = threading.Thread(target=polls.latest, args=(job,))
    thread.start()
    try:
        assert asking.wait(5)
        assert polls.latest(job).state is JobState.UNKNOWN
    finally:
        go_on.set()
        thread.join(5)
    assert polls.latest(job).state is JobState.RUNNING
    assert len(slurm.queries) == 1


def test_processes_that_share_a_folder_keep_to_one_query_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, clock = FakeClient(), FakeClock()
    workers = []
    for number in range(8):
        worker = poller(slurm, clock, tmp_path)
        workers.append(
            (worker, slurm.put(number + 1, JobState.RUNNING, nodes=(f"a{number}",), restarts=0), 100 + number)
        )
    seen = {job: 0 for _, job, _ in workers}
    for _ in range(200):
        for worker, job, pid in workers:
            monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
            seen[job] += worker.latest(job, max_age=2).state is JobState.RUNNING
        clock.sleep(0.25)
    assert len(slurm.queries) <= 50 / 2 + 1
    assert set(slurm.queries[-1]) == set(seen)
    assert all(count > 150 for count in seen.values())


def test_shared_answers_are_whole_and_survive_rubbish(tmp_path: Path) -> None:
    slurm, clock = FakeClient(), FakeClock()
    job = JobId(7, "gbclu")
    slurm.jobs[job] = JobInfo(
        job, JobState.RUNNING, "a, b|c", ("x1", "x2"), "n", 0, 9, 1, "12", "squeue", "raw line"
    )
    first, second = poller(slurm, clock, tmp_path), poller(slurm, clock, tmp_path)
    assert first.latest(job) == slurm.jobs[job]
    assert second.latest(job) == slurm.jobs[job]
    assert len(slurm.queries) == 1
    for path in tmp_path.glob("*.json"):
        path.write_text('{"queried": 1, "jobs": [{"id": 3}, 5], "at"')
    clock.sleep(60)
    assert second.latest(job) == slurm.jobs[job]


def test_the_turn_is_given_to_one_only(tmp_path: Path) -> None:
    with SharedAnswers(tmp_path).turn() as first, SharedAnswers(tmp_path).turn() as second:
        assert (first, second) == (True, False)
    with SharedAnswers(tmp_path).turn() as again:
        assert again


def test_a_folder_that_cannot_be_used_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    slurm, clock = FakeClient(), FakeClock()
    polls = poller(slurm, clock, file / "share")
    assert polls.latest(slurm.put(1, JobState.RUNNING)).state is JobState.RUNNING


def test_a_clock_set_back_does_not_stop_the_queries(tmp_path: Path) -> None:
    slurm = FakeClient()
    job = slurm.put(1, JobState.RUNNING)
    poller(slurm, FakeClock(90_000), tmp_path).latest(job)
    slurm.put(1, JobState.FAILED)
    clock = FakeClock(1000)
    polls = poller(slurm, clock, tmp_path)
    polls.latest(job)
    clock.sleep(5)
    assert polls.latest(job, max_age=2).state is JobState.FAILED
