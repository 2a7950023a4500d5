from __future__ import annotations

import pytest

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.slurm.answers import parse_sbatch
from pytest_gpubench.slurm.submission import cluster_option
from pytest_gpubench.slurm.types import JobId, JobState, Submission
from pytest_gpubench.world import CommandResult

from .fakes import (
    REFUSED_CONNECTION,
    SOCKET_TIMEOUT,
    FakeClock,
    FakeRunner,
    client,
    missing,
    row,
    said,
    timed_out,
)

NAME = "gpubench-tiny-1-0-1"
JOB = Submission("/r/job.sh", NAME, ("--job-name", NAME, "--gres", "gpu:gb300:4"))
NOTHING = said()


@pytest.mark.parametrize(
    ("stdout", "job"),
    [
        ("4711;gbclu\n", JobId(4711, "gbclu")),
        ("Submitted batch job 4711 on cluster gbclu\n", JobId(4711, "gbclu")),
        ("site-filter 2 - using account perf\n4711\n", JobId(4711)),
        ("4711\n", JobId(4711)),
        ("Submitted batch job 4711\n", JobId(4711)),
        ("note: 12 GPUs free\n4711;gbclu\nhave a nice day 7\n", JobId(4711, "gbclu")),
        ("", None),
        ("0\n", None),
        ("gbclu\n", None),
        ("-4711\n", None),
        ("4711\n4712\n", None),
        ("quota 12\n", None),
    ],
)
def test_fc_25_forms_of_sbatch_answers(stdout: str, job: JobId | None) -> None:
    assert parse_sbatch(stdout) == job


@pytest.mark.parametrize("stdout", ["4711;gbclu\n", "Submitted batch job 4711 on cluster gbclu\n"])
def test_fc_25_the_cluster_is_used_for_later_commands(stdout: str) -> None:
    runner = FakeRunner(
        sbatch=[said(stdout)],
        squeue=[said("CLUSTER: gbclu\n" + row(4711, "RUNNING", name=NAME, nodes="gb[1-2]"))],
        scancel=[said()],
    )
    slurm = client(runner, FakeClock())
    job = slurm.submit(JOB)
    assert slurm.info([job])[job].nodes == ("gb1", "gb2")
    assert slurm.cancel(job).done
    assert "--clusters=gbclu" in runner.called("squeue")[0]
    assert runner.called("scancel") == [("scancel", "--clusters=gbclu", "4711")]


def test_fc_25_an_empty_answer_is_an_error_that_quotes_sbatch() -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, sbatch=[NOTHING], squeue=[NOTHING])
    with pytest.raises(SlurmError, match=f"no job id for {NAME}.*exit 0: no output") as caught:
        client(runner, clock).submit(JOB)
    assert caught.value.reason is Reason.SUBMIT_UNCLEAR
    assert caught.value.phase is Phase.QUEUE
    assert len(runner.called("sbatch")) == 1
    assert not runner.called("scancel")
    assert 30 <= clock.now - 1000 <= 90


def test_the_options_are_passed_as_they_are_and_the_script_last() -> None:
    runner = FakeRunner(sbatch=[said("7")])
    client(runner, FakeClock()).submit(JOB)
    assert runner.calls == [("sbatch", "--parsable", *JOB.options, "/r/job.sh")]


def test_an_unclear_answer_adopts_the_job_of_that_name() -> None:
    clock = FakeClock()
    others = row(4700, "RUNNING", name=NAME + "0") + row(4701, "RUNNING", name="x" + NAME)
    runner = FakeRunner(
        clock,
        sbatch=[said("Queued, thank you.")],
        squeue=[NOTHING, said(others + row(4711, "PENDING", name=NAME))],
    )
    assert client(runner, clock).submit(JOB) == JobId(4711)
    assert all(f"--name={NAME}" in argv for argv in runner.called("squeue"))


def test_sbatch_that_times_out_but_did_queue_is_adopted_not_submitted_twice() -> None:
    clock = FakeClock()
    runner = FakeRunner(
        clock, sbatch=[timed_out()], squeue=[NOTHING, NOTHING, said(row(4711, "PENDING", name=NAME))]
    )
    assert client(runner, clock).submit(JOB) == JobId(4711)
    assert len(runner.called("sbatch")) == 1


def test_sbatch_that_times_out_after_it_printed_the_id() -> None:
    runner = FakeRunner(sbatch=[timed_out(out="4711\n")])
    assert client(runner, FakeClock()).submit(JOB) == JobId(4711)


def test_sbatch_that_times_out_and_queued_nothing_says_how_long_it_was_waited_for() -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, sbatch=[timed_out()], squeue=[NOTHING])
    with pytest.raises(SlurmError, match=r"no answer within 30 s.*no job of that name appeared") as caught:
        client(runner, clock).submit(JOB)
    assert caught.value.reason is Reason.SUBMIT_UNCLEAR
    assert len(runner.called("sbatch")) == 1


def test_fc_37_a_refusal_quotes_stderr_and_the_option_and_is_not_repeated() -> None:
    runner = FakeRunner(
        sbatch=[said(err="sbatch: error: Invalid generic resource (gres) specification", code=1)]
    )
    with pytest.raises(SlurmError, match=r"--gres gpu:gb300:4 .*Invalid generic resource \(gres\)") as caught:
        client(runner, FakeClock()).submit(JOB)
    assert caught.value.reason is Reason.SUBMIT_REFUSED
    assert len(runner.calls) == 1


def test_a_lost_request_that_did_queue_is_adopted() -> None:
    clock = FakeClock()
    runner = FakeRunner(
        clock, sbatch=[SOCKET_TIMEOUT], squeue=[REFUSED_CONNECTION, said(row(9, "RUNNING", name=NAME))]
    )
    assert client(runner, clock).submit(JOB) == JobId(9)
    assert len(runner.called("sbatch")) == 1


def test_a_lost_request_is_sent_again_only_when_the_queue_lacks_the_job_for_a_while() -> None:
    clock = FakeClock()
    sent: list[float] = []

    def sbatch(argv: object) -> CommandResult:
        sent.append(clock.now)
        return SOCKET_TIMEOUT if len(sent) == 1 else said("4712\n")

    runner = FakeRunner(clock, sbatch=sbatch, squeue=[NOTHING])
    assert client(runner, clock).submit(JOB) == JobId(4712)
    assert sent[1] - sent[0] >= 10
    assert not runner.called("scancel")


def test_a_lost_request_that_queues_late_is_cancelled_by_id_when_the_second_one_succeeded() -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, sbatch=[SOCKET_TIMEOUT, said("4712\n")], scancel=[said()])

    def squeue(argv: object) -> CommandResult:
        late = len(runner.called("sbatch")) == 2
        return said(row(4711, "PENDING", name=NAME) + row(4712, "PENDING", name=NAME)) if late else NOTHING

    runner.programs["squeue"] = squeue
    assert client(runner, clock).submit(JOB) == JobId(4712)
    assert runner.called("scancel") == [("scancel", "4711")]


def test_an_unreachable_controller_is_asked_until_it_is_back() -> None:
    clock = FakeClock()
    down = 1060.0

    def command(answer: CommandResult) -> object:
        return lambda argv: REFUSED_CONNECTION if clock.now < down else answer

    runner = FakeRunner(clock)
    runner.programs = {"sbatch": command(said("5\n")), "squeue": command(NOTHING)}  # type: ignore[dict-item]
    assert client(runner, clock).submit(JOB) == JobId(5)
    assert len(runner.called("sbatch")) == 2
    assert down <= clock.now <= down + 10


@pytest.mark.parametrize("queue", [REFUSED_CONNECTION, NOTHING, timed_out()])
def test_a_controller_that_stays_away_is_an_error_in_bounded_time(queue: CommandResult) -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, sbatch=[REFUSED_CONNECTION], squeue=[queue])
    with pytest.raises(SlurmError, match="180 s") as caught:
        client(runner, clock).submit(JOB)
    assert caught.value.reason is Reason.SLURM_UNREACHABLE
    assert clock.now - 1000 <= 240


def test_no_sbatch_at_all() -> None:
    with pytest.raises(SlurmError, match=r"sbatch cannot be started.*not found") as caught:
        client(FakeRunner(sbatch=[missing()]), FakeClock()).submit(JOB)
    assert caught.value.reason is Reason.SLURM_UNREACHABLE


@pytest.mark.parametrize("name", ["", "a b", "a,b", "x;y", "ü", "a\n"])
def test_a_name_that_could_not_be_found_again_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="job name"):
        client(FakeRunner(), FakeClock()).submit(Submission("s", name))


@pytest.mark.parametrize(
    ("options", "cluster"),
    [
        (["-M", "a"], "a"),
        (["-Ma"], "a"),
        (["--clusters", "a"], "a"),
        (["--clusters=a"], "a"),
        (["--clusters=a,b"], None),
        (["--nodes", "2"], None),
        (["-M"], None),
    ],
)
def test_cluster_of_the_options(options: list[str], cluster: str | None) -> None:
    assert cluster_option(options) == cluster


def test_a_bare_id_of_a_job_sent_to_a_named_cluster_keeps_the_cluster() -> None:
    runner = FakeRunner(sbatch=[said("7\n")], squeue=[said(row(7, "RUNNING", name=NAME))])
    slurm = client(runner, FakeClock())
    job = slurm.submit(Submission("s", NAME, ("-M", "gbclu")))
    assert job == JobId(7, "gbclu")
    found = slurm.find(NAME)
    assert found is not None
    assert found.state is JobState.RUNNING
    assert "--clusters=gbclu" in runner.called("squeue")[0]
