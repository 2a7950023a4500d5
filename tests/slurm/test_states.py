from __future__ import annotations

import pytest

from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.pending import PendingJudge, never_clears
from pytest_gpubench.slurm.states import canceller, fold_state, reason_of
from pytest_gpubench.slurm.steps import step_argv
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState

from .fakes import FakeClock

JOB = JobId(4711)


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        ("PENDING PD", JobState.PENDING),
        (
            "RUNNING R CONFIGURING CF SUSPENDED S STOPPED ST SIGNALING SI RESIZING RS STAGE_OUT SO",
            JobState.RUNNING,
        ),
        ("COMPLETING CG", JobState.COMPLETING),
        ("COMPLETED CD", JobState.COMPLETED),
        ("FAILED F LAUNCH_FAILED LF", JobState.FAILED),
        ("CANCELLED CA CANCELLED+ cancelled REVOKED RV", JobState.CANCELLED),
        ("TIMEOUT TO", JobState.TIMEOUT),
        ("NODE_FAIL NF", JobState.NODE_FAIL),
        ("PREEMPTED PR", JobState.PREEMPTED),
        ("OUT_OF_MEMORY OOM OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("BOOT_FAIL BF", JobState.BOOT_FAIL),
        ("DEADLINE DL", JobState.DEADLINE),
        ("REQUEUED RQ REQUEUE_HOLD RH SPECIAL_EXIT SE REQUEUE_FED RF RESV_DEL_HOLD RD", JobState.REQUEUED),
        ("WOBBLING X (null) | -", JobState.UNKNOWN),
    ],
)
def test_every_long_and_short_state(texts: str, state: JobState) -> None:
    assert {text: fold_state(text) for text in texts.split()} == dict.fromkeys(texts.split(), state)


def test_empty_text_and_cancelled_by() -> None:
    assert fold_state(" ") is JobState.UNKNOWN
    assert fold_state("CANCELLED by 1234") is JobState.CANCELLED
    assert canceller("CANCELLED by 1234") == "1234"
    assert canceller("CANCELLED") is None


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_reason_or_may_go_on(state: JobState) -> None:
    reason = reason_of(JobInfo(JOB, state), ours_cancelled=False)
    goes_on = {JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.UNKNOWN}
    assert (reason is None) == (state in goes_on)
    assert reason_of(JobInfo(JOB, state, restarts=1), ours_cancelled=True) is None


def test_fc_30_a_restart_is_an_error_unless_the_state_says_more() -> None:
    def reason(state: JobState) -> Reason | None:
        return reason_of(JobInfo(JOB, state, restarts=1), ours_cancelled=False)

    assert reason(JobState.RUNNING) is Reason.REQUEUED
    assert reason(JobState.PENDING) is Reason.REQUEUED
    assert reason(JobState.COMPLETED) is Reason.REQUEUED
    assert reason(JobState.PREEMPTED) is Reason.PREEMPTED
    assert reason(JobState.NODE_FAIL) is Reason.NODE_FAILED
    assert reason(JobState.UNKNOWN) is None


def test_a_failed_job_says_why_in_its_reason() -> None:
    def reason(text: str) -> Reason | None:
        return reason_of(JobInfo(JOB, JobState.FAILED, reason=text), ours_cancelled=False)

    assert reason("NonZeroExitCode") is Reason.JOB_ENDED
    assert reason("OutOfMemory") is Reason.OUT_OF_MEMORY
    assert reason("NodeDown") is Reason.NODE_FAILED


NEVER = [
    "AssocMaxWallDurationPerJobLimit",
    "PartitionTimeLimit",
    "JobHeldUser",
    "JobHeldAdmin",
    "QOSMaxWallDurationPerJobLimit",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxGRESPerJob",
    "QOSMaxNodePerJobLimit",
    "QOSMaxMemoryPerJob",
    "BadConstraints",
    "PartitionNodeLimit",
    "AccountNotAllowed",
    "InvalidQOS",
    "InvalidAccount",
    "DependencyNeverSatisfied",
    "QOSMinGRES",
    "ReservationDeleted",
    "AssocMaxNodePerJobLimit",
    "AssocMaxGRESPerNode",
    "JobHoldMaxRequeue",
    "QOSNotAllowed",
]
PASSES = [
    "Priority",
    "Resources",
    "ReqNodeNotAvail",
    "BeginTime",
    "Licenses",
    "PartitionDown",
    "PartitionInactive",
    "Reservation",
    "QOSMaxJobsPerUserLimit",
    "QOSGrpCpuLimit",
    "AssocGrpGRES",
    "AssocMaxJobsLimit",
    "QOSMaxGRESPerUser",
    "Dependency",
    "None",
    "JobArrayTaskLimit",
    "NodeDown",
    "Cleaning",
]


@pytest.mark.parametrize(
    "reason", [*NEVER, "job requeued in held state", "launch failed requeued held", "(JobHeldUser)"]
)
def test_fc_31_reasons_that_never_clear(reason: str) -> None:
    assert never_clears(reason)


@pytest.mark.parametrize(
    "reason",
    [
        *PASSES,
        "",
        "ReqNodeNotAvail, UnavailableNodes:",
        "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "Priority, not JobHeldUser",
    ],
)
def test_fc_31_reasons_that_pass(reason: str) -> None:
    assert not never_clears(reason)


def pending(reason: str) -> JobInfo:
    return JobInfo(JOB, JobState.PENDING, reason=reason)


def test_fc_31_a_reason_is_not_trusted_on_one_sighting() -> None:
    clock = FakeClock()
    judge = PendingJudge(clock, sightings=3, seconds=10)
    reason = "AssocMaxWallDurationPerJobLimit"
    assert judge.feed(pending(reason)) is None
    clock.sleep(60)
    assert judge.feed(pending(reason)) is None
    assert judge.feed(JobInfo(JOB, JobState.UNKNOWN)) is None
    assert judge.feed(pending(reason)) == reason


def test_fc_31_a_cached_answer_is_no_further_sighting() -> None:
    clock = FakeClock()
    judge = PendingJudge(clock, sightings=2, seconds=5)
    cached = pending("PartitionTimeLimit")
    for _ in range(10):
        assert judge.feed(cached) is None
        clock.sleep(5)
    assert judge.feed(pending("PartitionTimeLimit")) == "PartitionTimeLimit"


def test_fc_31_many_sightings_in_no_time_are_not_enough() -> None:
    clock = FakeClock()
    judge = PendingJudge(clock, sightings=3, seconds=10)
    assert [judge.feed(pending("JobHeldUser")) for _ in range(5)] == [None] * 5
    clock.sleep(10)
    assert judge.feed(pending("JobHeldUser")) == "JobHeldUser"


@pytest.mark.parametrize("between", [pending("Priority"), JobInfo(JOB, JobState.RUNNING)])
def test_fc_31_another_answer_in_between_starts_again(between: JobInfo) -> None:
    clock = FakeClock()
    judge = PendingJudge(clock, sightings=2, seconds=1)
    judge.feed(pending("PartitionTimeLimit"))
    clock.sleep(5)
    judge.feed(between)
    assert judge.feed(pending("PartitionTimeLimit")) is None


def test_fc_31_the_last_reason_is_kept_for_the_message() -> None:
    clock = FakeClock()
    judge = PendingJudge(clock)
    for _ in range(100):
        assert judge.feed(pending("ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]")) is None
        clock.sleep(6)
    assert judge.last_reason == "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]"


def test_fc_35_a_step_names_its_job_and_writes_options_with_an_equals_sign() -> None:
    argv = step_argv(
        JOB, nodes=["gb01"], extra=["--mpi=none"], command=["vllm", "bench", "a b"], output="/r/log"
    )
    assert argv == [
        *(
            "srun",
            "--jobid=4711",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--nodelist=gb01",
            "--output=/r/log",
        ),
        *("--mpi=none", "vllm", "bench", "a b"),
    ]


def test_a_step_over_several_nodes_of_another_cluster() -> None:
    argv = step_argv(JobId(7, "gbclu"), nodes=["a1", "a2"], command=["hostname"], overlap=False)
    assert argv[:-1] == [
        *("srun", "--jobid=7", "--clusters=gbclu", "--nodes=2", "--ntasks=2", "--nodelist=a1,a2"),
        *("--ntasks-per-node=1", "--kill-on-bad-exit=1"),
    ]


@pytest.mark.parametrize(("nodes", "command"), [([], ["x"]), (["a"], [])])
def test_a_step_without_nodes_or_command_is_refused(nodes: list[str], command: list[str]) -> None:
    with pytest.raises(ValueError, match="needs nodes and a command"):
        step_argv(JOB, nodes=nodes, command=command)
