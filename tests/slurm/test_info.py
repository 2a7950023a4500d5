from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.answers import (
    Answer,
    classify,
    parse_sacct,
    parse_sbatch,
    parse_scontrol_job,
    parse_squeue,
)
from pytest_gpubench.slurm.states import reason_of
from pytest_gpubench.slurm.types import JobId, JobState, Submission
from pytest_gpubench.world import CommandResult

from .fakes import (
    INVALID,
    NO_ACCOUNTING,
    REFUSED_CONNECTION,
    FakeClock,
    FakeRunner,
    client,
    missing,
    row,
    said,
    timed_out,
)

JOB = JobId(4711)
SCONTROL = """\
JobId=4711 JobName=gpubench-x JobState=COMPLETED
   UserId=ci(1000) GroupId=ci(1000) MCS_label=N/A
   Priority=4294901735 Nice=0 Account=(null) QOS=(null)
   JobState=PENDING Reason=ReqNodeNotAvail, UnavailableNodes:gb-a[01-04] Dependency=(null)
   Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=3:9
   DerivedExitCode=1:0
   ReqNodeList=(null) ExcNodeList=gb-z9
   NodeList=gb-a[01-02]
   BatchHost=gb-a01
   Command=/home/team a/run.sh JobState=FAILED
   Comment=NodeList=none
"""


def test_fc_25_rows_of_arrays_steps_and_heterogeneous_parts_belong_to_the_job() -> None:
    rows = "".join(
        row(number, "RUNNING", nodes=node)
        for number, node in [
            ("4711", "a1"),
            ("4711+0", "a1"),
            ("4711+1", "a2"),
            ("4711_3", "a3"),
            ("4711_[4-9%2]", ""),
            ("4711.batch", "a1"),
            ("47110", "b1"),
        ]
    )
    answers = parse_squeue(rows)
    assert set(answers) == {4711, 47110}
    assert answers[4711].info.nodes == ("a1", "a2", "a3")
    assert answers[47110].info.nodes == ("b1",)


def test_parts_of_a_job_live_as_long_as_any_of_them() -> None:
    def folded(*states: str) -> JobState:
        return parse_squeue("".join(row(f"7_{i}", state) for i, state in enumerate(states)))[7].info.state

    assert folded("COMPLETED", "RUNNING", "FAILED") is JobState.RUNNING
    assert folded("COMPLETED", "PENDING") is JobState.PENDING
    assert folded("COMPLETED", "FAILED") is JobState.FAILED
    assert folded("RUNNING", "WOBBLING") is JobState.UNKNOWN


def test_one_squeue_for_all_ids() -> None:
    runner = FakeRunner(
        squeue=[said(row(1, "PENDING", reason="Priority") + row(2, "COMPLETING", nodes="a1"))]
    )
    answers = client(runner, FakeClock()).info([JobId(1), JobId(2)])
    assert [answers[JobId(n)].state for n in (1, 2)] == [JobState.PENDING, JobState.COMPLETING]
    assert runner.calls == [
        ("squeue", "--noheader", "--states=all", "--format=%i|%T|%S|%j|%N|%r", "--jobs=1,2"),
    ]


def test_one_squeue_per_cluster() -> None:
    runner = FakeRunner(squeue=[said(row(1, "RUNNING")), said(row(1, "PENDING"))])
    answers = client(runner, FakeClock()).info([JobId(1), JobId(1, "x")])
    assert answers[JobId(1)].state is JobState.RUNNING
    assert answers[JobId(1, "x")].state is JobState.PENDING
    assert answers[JobId(1, "x")].id == JobId(1, "x")
    assert "--clusters=x" in runner.calls[1]
    assert client(runner, FakeClock()).info([]) == {}


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:",
        "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]",
        "a|b | c",
        "AssocMax",
    ],
)
def test_fc_31_reasons_survive_whole(reason: str) -> None:
    answers = parse_squeue(row(4711, "PENDING", reason=reason))
    assert answers[4711].info.reason == reason
    assert answers[4711].info.nodes == ()


def test_fc_28_forgotten_by_all_and_no_accounting_is_gone_not_success() -> None:
    runner = FakeRunner(squeue=[INVALID], scontrol=[INVALID], sacct=[NO_ACCOUNTING])
    slurm = client(runner, FakeClock())
    info = slurm.info([JOB])[JOB]
    assert info.state is JobState.GONE
    assert info.state.ended
    assert "no record" in info.reason
    assert reason_of(info, ours_cancelled=False) is Reason.JOB_LOST
    slurm.info([JOB])
    assert len(runner.called("sacct")) == 1  # tried once


def test_fc_28_without_a_sacct_command() -> None:
    runner = FakeRunner(squeue=[said()], scontrol=[INVALID], sacct=[missing()])
    assert client(runner, FakeClock()).info([JOB])[JOB].state is JobState.GONE


@pytest.mark.parametrize(
    "squeue",
    [
        timed_out(),
        timed_out(out=row(4711, "COMPLETED")),
        REFUSED_CONNECTION,
        said(err="slurm_load_jobs error: Socket timed out on send/recv operation"),
        said(err="squeue: error: Invalid user", code=1),
        missing(),
    ],
)
def test_no_usable_squeue_answer_is_unknown_never_finished(squeue: CommandResult) -> None:
    info = client(FakeRunner(squeue=[squeue]), FakeClock()).info([JOB])[JOB]
    assert info.state is JobState.UNKNOWN
    assert not info.state.ended
    assert "squeue" in info.reason
    assert reason_of(info, ours_cancelled=False) is None


def test_squeue_that_exits_0_with_nothing_is_checked_with_the_controller() -> None:
    hidden = FakeRunner(squeue=[said()], scontrol=[said(SCONTROL)])
    assert client(hidden, FakeClock()).info([JOB])[JOB].state is JobState.PENDING
    away = FakeRunner(squeue=[said()], scontrol=[REFUSED_CONNECTION])
    assert client(away, FakeClock()).info([JOB])[JOB].state is JobState.UNKNOWN
    nonsense = FakeRunner(squeue=[said()], scontrol=[said("hello")])
    assert client(nonsense, FakeClock()).info([JOB])[JOB].state is JobState.UNKNOWN


def test_scontrol_fields_with_blanks() -> None:
    info = parse_scontrol_job(SCONTROL, JOB)
    assert info is not None
    assert info.state is JobState.PENDING
    assert info.reason == "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]"
    assert info.nodes == ("gb-a01", "gb-a02")
    assert info.name == "gpubench-x JobState=COMPLETED"
    assert (info.restarts, info.exit_code, info.exit_signal) == (2, 3, 9)
    assert parse_scontrol_job(SCONTROL, JobId(471)) is None
    assert parse_scontrol_job("", JOB) is None


def test_scontrol_records_of_a_heterogeneous_job_are_one_answer() -> None:
    record = "JobId={} HetJobId=4711 HetJobOffset=0 JobName=j\n   JobState={} Reason=None\n   NodeList={}\n"
    text = record.format(4711, "COMPLETED", "a1") + "\n" + record.format(4712, "RUNNING", "a2")
    info = parse_scontrol_job(text, JOB)
    assert info is not None
    assert (info.state, info.nodes) == (JobState.RUNNING, ("a1", "a2"))


def sacct_answers(text: str, *, err: str = "", code: int = 0) -> FakeRunner:
    return FakeRunner(squeue=[INVALID], scontrol=[INVALID], sacct=[said(text, err, code)])


def test_accounting_tells_how_a_forgotten_job_ended() -> None:
    runner = sacct_answers("4711|CANCELLED by 1234|0:15|gb-a[01-02]|gpubench|x\n47110|FAILED|1:0|x1|y\n")
    info = client(runner, FakeClock()).info([JOB])[JOB]
    assert (info.state, info.cancelled_by, info.source) == (JobState.CANCELLED, "1234", "sacct")
    assert (info.exit_code, info.exit_signal) == (0, 15)
    assert info.nodes == ("gb-a01", "gb-a02")
    assert info.name == "gpubench|x"
    assert runner.called("sacct") == [
        ("sacct", "-P", "-n", "-X", "--jobs=4711", "--format=JobIDRaw,State,ExitCode,NodeList,JobName")
    ]


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        ("4711|PREEMPTED|0:0|a1|j", JobState.PREEMPTED, Reason.PREEMPTED),
        ("4711|NODE_FAIL|1:0|a1|j", JobState.NODE_FAIL, Reason.NODE_FAILED),
        ("4711|REQUEUED|0:0|a1|j", JobState.REQUEUED, Reason.REQUEUED),
        ("4711|CANCELLED by 1234|0:0|a1|j", JobState.CANCELLED, Reason.CANCELLED),
        ("4711|TIMEOUT|0:0|a1|j", JobState.TIMEOUT, Reason.TIME_LIMIT),
        ("4711|OUT_OF_MEMORY|0:125|a1|j", JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    ],
)
def test_fc_30_endings_keep_their_cause(text: str, state: JobState, reason: Reason) -> None:
    info = parse_sacct(text, {4711})[4711]
    assert info.state is state
    assert reason_of(info, ours_cancelled=False) is reason
    assert reason_of(info, ours_cancelled=True) is None


@pytest.mark.parametrize(
    "runner",
    [
        sacct_answers("", err="sacct: error: Problem talking to the database: Connection refused", code=1),
        sacct_answers("4711|RUNNING|0:0|a1|j\n"),
    ],
)
def test_accounting_that_fails_or_lags_is_unknown_for_a_bounded_time(runner: FakeRunner) -> None:
    clock = FakeClock()
    slurm = client(runner, clock)
    assert slurm.info([JOB])[JOB].state is JobState.UNKNOWN
    clock.sleep(59)
    assert slurm.info([JOB])[JOB].state is JobState.UNKNOWN
    clock.sleep(2)
    assert slurm.info([JOB])[JOB].state is JobState.GONE


def test_fc_30_a_job_started_again_under_its_id_is_noticed() -> None:
    nodes_before, nodes_after = "gb-a[01-02]", "gb-b[05-06]"
    runner = FakeRunner(
        squeue=[
            said(row(4711, "RUNNING", nodes=nodes_before, start="2026-01-01T10:00:00")),
            said(row(4711, "COMPLETING", nodes="gb-a01")),
            said(row(4711, "PENDING", reason="BeginTime")),
            said(row(4711, "RUNNING", nodes=nodes_after, start="2026-01-01T10:05:00")),
        ]
    )
    slurm = client(runner, FakeClock())
    seen = [slurm.info([JOB])[JOB] for _ in range(4)]
    assert [info.restarts for info in seen] == [0, 0, 1, 1]
    assert [reason_of(info, ours_cancelled=False) for info in seen] == [
        None,
        None,
        Reason.REQUEUED,
        Reason.REQUEUED,
    ]


def test_fc_30_a_restart_between_two_looks_shows_in_the_nodes_or_the_start_time() -> None:
    def restarts(*rows: str) -> int:
        slurm = client(FakeRunner(squeue=[said(text) for text in rows]), FakeClock())
        return [slurm.info([JOB])[JOB].restarts for _ in rows][-1]

    ten, eleven = "2026-01-01T10:00:00", "2026-01-01T11:00:00"
    same = row(4711, "RUNNING", nodes="a[1-2]", start=ten)
    assert restarts(same, same) == 0
    assert restarts(same, row(4711, "RUNNING", nodes="b[1-2]", start=ten)) == 1
    assert restarts(same, row(4711, "RUNNING", nodes="a[1-2]", start=eleven)) == 1
    # A node that is powered up moves the start time of a job that is still being configured.
    assert (
        restarts(
            row(4711, "CONFIGURING", nodes="a[1-2]", start=ten),
            row(4711, "RUNNING", nodes="a[1-2]", start=eleven),
        )
        == 0
    )


def test_a_job_of_another_name_under_our_id_is_not_ours() -> None:
    runner = FakeRunner(
        sbatch=[said("4711\n")], squeue=[said(row(4711, "RUNNING", name="theirs"))], sacct=[NO_ACCOUNTING]
    )
    slurm = client(runner, FakeClock())
    job = slurm.submit(Submission("s", "ours"))
    assert slurm.info([job])[job].state is JobState.GONE


def test_a_running_job_whose_nodes_cannot_be_read_is_unknown() -> None:
    assert parse_squeue(row(1, "RUNNING", nodes="gb[01-"))[1].info.state is JobState.UNKNOWN
    assert parse_squeue(row(1, "COMPLETED", nodes="gb[01-"))[1].info.state is JobState.COMPLETED


@pytest.mark.parametrize("words", ["sorry", "None assigned", "(null)", "N/A", ""])
def test_nodes_that_are_not_assigned(words: str) -> None:
    nodes = parse_squeue(row(1, "PENDING", nodes=words))[1].info.nodes
    assert nodes == (("sorry",) if words == "sorry" else ())


def test_find_tells_an_absent_job_from_a_silent_queue() -> None:
    assert client(FakeRunner(squeue=[said()]), FakeClock()).find("j") is None
    ended = client(FakeRunner(squeue=[said(row(5, "COMPLETED", name="j"))]), FakeClock()).find("j")
    assert ended is not None
    assert ended.state is JobState.COMPLETED
    for answer in (
        timed_out(),
        REFUSED_CONNECTION,
        said(err="error: Socket timed out on send/recv operation"),
    ):
        with pytest.raises(SlurmError, match="cannot be searched for job j") as caught:
            client(FakeRunner(squeue=[answer]), FakeClock()).find("j")
        assert caught.value.reason is Reason.SLURM_UNREACHABLE


def test_node_address_and_version() -> None:
    runner = FakeRunner(
        scontrol=[
            said("NodeName=gb01 Arch=x86_64\n   NodeAddr=10.0.0.4 NodeHostName=gb01 Version=22.05\n"),
            said(code=1),
        ],
        srun=[timed_out(), said("slurm-wlm 23.11.4\n")],
    )
    slurm = client(runner, FakeClock())
    assert slurm.node_address("gb01") == "10.0.0.4"
    assert slurm.node_address("gb01") == "10.0.0.4"
    assert slurm.node_address("gb02") == "gb02"
    assert len(runner.called("scontrol")) == 2
    assert slurm.version() is None
    assert client(runner, FakeClock()).version() == "23.11.4"


garbage = st.text(alphabet=st.sampled_from("4711|+_.;=[]-,\n ABCRUNIGPEDstate\tü\x00"), max_size=120)


@given(garbage)
def test_parsers_take_any_text(text: str) -> None:
    for number, found in parse_squeue(text).items():
        assert number > 0
        assert isinstance(found.info.state, JobState)
    assert set(parse_sacct(text, {4711})) <= {4711}
    info = parse_scontrol_job(text, JOB)
    assert info is None or info.id == JOB
    job = parse_sbatch(text)
    assert job is None or job.number > 0


@given(out=garbage, err=garbage, code=st.sampled_from([0, 1, None]), late=st.booleans())
def test_any_answer_gives_states_or_slurm_errors(out: str, err: str, code: int | None, late: bool) -> None:
    answer = CommandResult((), code, out, err, timed_out=late)
    runner = FakeRunner(squeue=[answer], scontrol=[answer], sacct=[answer], scancel=[answer])
    slurm = client(runner, FakeClock())
    assert set(slurm.info([JOB, JobId(5)])) == {JOB, JobId(5)}
    slurm.cancel(JOB)
    try:
        slurm.find("j")
    except SlurmError:
        assert classify(answer) is not Answer.OK
