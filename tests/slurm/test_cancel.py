from __future__ import annotations

import pytest

from pytest_gpubench.slurm.types import JobId, JobState
from pytest_gpubench.slurm.waiting import find_intended, wait_ended, wait_known
from pytest_gpubench.world import CommandResult

from .fakes import (
    NO_ACCOUNTING,
    REFUSED_CONNECTION,
    FakeClient,
    FakeClock,
    FakeRunner,
    client,
    missing,
    row,
    said,
    timed_out,
)

JOB = JobId(4711)
BAD_CLUSTER = said(
    err="scancel: error: 'gbclu' can't be reached now, or it is an invalid entry for --cluster.", code=1
)


def failed(words: str) -> CommandResult:
    return said(err=f"scancel: error: Kill job error on job id 4711: {words}", code=1)


@pytest.mark.parametrize(
    "answer",
    [said(), failed("Invalid job id specified"), failed("Job/step already completing or completed")],
)
def test_fc_28_an_id_that_is_over_counts_as_cancelled(answer: CommandResult) -> None:
    runner = FakeRunner(scancel=[answer])
    assert client(runner, FakeClock()).cancel(JOB).done
    assert runner.calls == [("scancel", "4711")]


def test_fc_27_only_ever_by_id() -> None:
    runner = FakeRunner(scancel=[said()])
    client(runner, FakeClock()).cancel(JOB)
    assert not any("name" in word or "user" in word or word in {"-n", "-u"} for word in runner.calls[0])
    for number in (0, -1):
        with pytest.raises(ValueError, match="no job id"):
            client(runner, FakeClock()).cancel(JobId(number))
    assert len(runner.calls) == 1


def test_a_controller_that_comes_back_is_asked_again() -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, scancel=[REFUSED_CONNECTION, timed_out(), said()])
    assert client(runner, clock).cancel(JOB).done
    assert clock.slept


def test_a_controller_that_stays_away_is_given_up_in_bounded_time() -> None:
    clock = FakeClock()
    result = client(FakeRunner(clock, scancel=[timed_out()]), clock).cancel(JOB)
    assert not result.done
    assert "no answer within 30 s" in result.text
    assert clock.now - 1000 <= 120


@pytest.mark.parametrize("answer", [failed("Access/permission denied"), missing()])
def test_a_refusal_is_reported_at_once(answer: CommandResult) -> None:
    clock = FakeClock()
    result = client(FakeRunner(clock, scancel=[answer]), clock).cancel(JOB)
    assert not result.done
    assert "job 4711 was not cancelled" in result.text
    assert clock.slept == []


def test_fc_28_our_own_cluster_is_reached_without_the_option_where_there_is_no_accounting() -> None:
    def scancel(argv: object) -> CommandResult:
        return BAD_CLUSTER if "--clusters=gbclu" in str(argv) else said()

    runner = FakeRunner(scancel=scancel, scontrol=[said("ClusterName             = gbclu\n")])
    slurm = client(runner, FakeClock())
    assert slurm.cancel(JobId(4711, "gbclu")).done
    assert slurm.cancel(JobId(4712, "gbclu")).done
    assert runner.called("scancel") == [
        ("scancel", "--clusters=gbclu", "4711"),
        ("scancel", "4711"),
        ("scancel", "4712"),
    ]


def test_an_id_of_another_cluster_is_never_cancelled_on_this_one() -> None:
    runner = FakeRunner(scancel=[BAD_CLUSTER], scontrol=[said("ClusterName = other\n")])
    assert not client(runner, FakeClock()).cancel(JobId(4711, "gbclu")).done
    assert runner.called("scancel") == [("scancel", "--clusters=gbclu", "4711")]


def test_fc_27_the_wait_goes_on_while_the_job_completes() -> None:
    clock = FakeClock()

    def squeue(argv: object) -> CommandResult:
        return said(row(4711, "COMPLETING" if clock.now < 1040 else "CANCELLED"))

    answers = wait_ended(client(FakeRunner(squeue=squeue), clock), clock, [JOB], timeout=180)
    assert answers[JOB].state is JobState.CANCELLED
    assert 40 <= clock.now - 1000 <= 46


def test_the_wait_is_bounded_and_says_what_is_left() -> None:
    clock = FakeClock()
    slurm = FakeClient()
    stuck, over = slurm.put(1, JobState.COMPLETING), slurm.put(2, JobState.COMPLETED)
    answers = wait_ended(slurm, clock, [stuck, over], timeout=30)  # type: ignore[arg-type]
    assert answers[stuck].state is JobState.COMPLETING
    assert clock.now == 1030
    assert slurm.queries[0] == [stuck, over]
    assert slurm.queries[1] == [stuck]
    assert wait_ended(slurm, clock, [], timeout=30) == {}  # type: ignore[arg-type]


def test_a_submission_cut_short_is_looked_for_as_long_as_sbatch_may_still_queue_it() -> None:
    clock = FakeClock()

    def squeue(argv: object) -> CommandResult:
        return said(row(9, "PENDING", name="j") if clock.now >= 1020 else "")

    slurm = client(FakeRunner(squeue=squeue), clock)
    found = find_intended(lambda: slurm.find("j"), clock, patience=60, timeout=180)
    assert found is not None
    assert found.id == JobId(9)
    clock = FakeClock(2000)
    assert find_intended(lambda: None, clock, patience=60, timeout=180) is None
    assert 60 <= clock.now - 2000 <= 65


def test_a_state_that_stays_unknown_is_returned_as_such() -> None:
    clock = FakeClock()
    slurm = client(FakeRunner(clock, squeue=[REFUSED_CONNECTION], sacct=[NO_ACCOUNTING]), clock)
    assert wait_known(slurm, clock, JOB, timeout=20).state is JobState.UNKNOWN
    assert clock.now == 1020
