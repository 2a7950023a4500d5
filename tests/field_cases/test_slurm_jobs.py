"""Jobs: their ids, their waits, their ends, and whose they are."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from plugin.project import Project
from slurm.fakes import FakeClock, FakeRunner, client, row, said

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.mock import ServerExits
from pytest_gpubench.slurm.answers import parse_sbatch, parse_squeue
from pytest_gpubench.slurm.pending import PendingJudge, never_clears
from pytest_gpubench.slurm.types import JobId, Submission

from .cases import CASES, environment, workload
from .trouble import NOT_AVAILABLE, Trouble

NAME = "gpubench-case-1-1-1"

# -- FC-25 -------------------------------------------------------------------------------------------


def test_fc_25_every_form_of_the_answer_gives_the_id() -> None:
    fake = CASES["FC-25"]["input"]["fake"]
    assert parse_sbatch(fake["sbatch 1"].removeprefix("stdout ")) == JobId(4711, "gbclu")
    assert parse_sbatch(fake["sbatch 2"].removeprefix("stdout ")) == JobId(4711, "gbclu")
    chatter = re.fullmatch(r"stdout '(.*)', newline, (\d+)", fake["sbatch 3"])
    assert chatter is not None
    assert parse_sbatch(f"{chatter[1]}\n{chatter[2]}\n") == JobId(4711)
    assert parse_sbatch("") is None


def test_fc_25_no_answer_is_an_error_that_cancels_nothing() -> None:
    clock = FakeClock()
    runner = FakeRunner(clock, sbatch=[said("")], squeue=[said("")], scancel=[said()])
    with pytest.raises(SlurmError, match="exit 0: no output"):
        client(runner, clock).submit(Submission("/r/job.sh", NAME, ("--job-name", NAME)))
    assert runner.called("scancel") == []


def test_fc_25_the_named_cluster_is_asked_and_told() -> None:
    runner = FakeRunner(
        sbatch=[said("4711;gbclu\n")],
        squeue=[said(f"CLUSTER: gbclu\n{row(4711, 'RUNNING', name=NAME, nodes='gb1')}")],
        scancel=[said()],
    )
    slurm = client(runner, FakeClock())
    job = slurm.submit(Submission("/r/job.sh", NAME))
    slurm.info([job])
    slurm.cancel(job)
    assert all("--clusters=gbclu" in argv for argv in (*runner.called("squeue"), *runner.called("scancel")))


def test_fc_25_rows_of_its_parts_belong_to_the_job() -> None:
    listed = CASES["FC-25"]["input"]["fake"]["squeue"].removeprefix("rows ").split(", ")
    assert listed[-1] == "47110"
    answers = parse_squeue("".join(row(number, "RUNNING", nodes="a1") for number in listed))
    assert set(answers) == {4711, 47110}


def test_fc_25_a_run_behind_a_chatty_sbatch(trouble: Trouble) -> None:
    found = trouble.row("fc25")
    (job,) = trouble.jobs_of("fc25")
    assert (found["status"], found["job_id"]) == ("passed", str(job.id))
    assert trouble.calls_of("scancel", str(job.id))


# -- FC-27 -------------------------------------------------------------------------------------------

WAITS = """
import pathlib, time
import pytest

@pytest.fixture
def gpubench_gates(gpubench_gates):
    go = pathlib.Path(__file__).with_name("go")
    deadline = time.monotonic() + 120
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return gpubench_gates
"""
TWO_SERVERS = """\
search_space:
  - {isl: 32, osl: 16, num_prompts: 8, points: [{tp: 1, conc: 4}, {tp: 2, conc: 4}]}
"""


@pytest.mark.slow
def test_fc_27_a_run_takes_back_its_own_jobs_only(tmp_path: Path) -> None:
    """Two sessions of one user and runner: the first ends, the second one's server lives on."""
    first, second = Project(tmp_path / "first"), Project(tmp_path / "second")
    recipe = first.recipe("shared")
    recipe.write_text(recipe.read_text().split("search_space")[0] + TWO_SERVERS)
    second.recipe("shared")
    second.write("conftest.py", WAITS)
    with first.cluster(completing=1.0) as cluster:
        env = first.env(cluster.env(), **environment("FC-27"))
        long = second.start("--workload=shared", env=env)
        try:
            long.wait_for("ready: after", 60)
            (theirs,) = cluster.jobs()
            short = first.run("--workload=shared", "--gpubench-prefetch=0", env=env)
            assert short.code == 0, short.out
            assert cluster.job(theirs.id).state == "RUNNING"
        finally:
            (second.folder / "go").touch()
            done = long.end()
        assert done.code == 0, done.out
        names = [job.name for job in cluster.jobs()]
        cancels = cluster.calls("scancel")
        submissions = [call.time for call in cluster.calls("sbatch")]
    assert {row["status"] for run in (short, done) for row in run.rows.values()} == {"passed"}
    # By id alone, one at a time, and nothing that would spare a pending job.
    assert cancels
    assert all(len(call.argv) == 2 and call.argv[1].isdigit() for call in cancels)
    # Names of their own: run, attempt and number.
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"gpubench-shared-\d{8}T\d{6}-[0-9a-f]+-1-\d+", name) for name in names)
    assert len({name.rsplit("-", 2)[0] for name in names}) == 2
    # The next allocation is asked for when the last one has left the queue, not when scancel returned.
    assert submissions[2] - cancels[0].time >= 1.0


# -- FC-28 -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fc_28_jobs_that_slurm_forgets_at_once(project: Project) -> None:
    """No record, no accounting: the exit notes and the result file tell what came of it."""
    project.recipe("good")
    project.recipe("dies")
    project.recipe("killed", prompts=200_000)
    faults = [ServerExits(match="*-dies-*", code=3, text="RuntimeError: no")]
    began = time.monotonic()
    with project.cluster(*faults, min_job_age=0.0) as cluster:
        env = project.env(cluster.env())
        running = project.start("--workload=good,dies,killed", env=env)
        running.wait_for("killed/tp1: ready: after", 90)
        time.sleep(0.5)
        (victim,) = (job for job in cluster.jobs() if "-killed-" in job.name)
        cluster.cancel_externally(victim.id)
        run = running.end(120)
        sacct = cluster.calls("sacct")
        jobs = cluster.jobs()
    assert run.code == 1
    reasons = {found["workload"]: found["reason"] for found in run.rows.values()}
    assert reasons == {"good": None, "dies": "server_exited", "killed": "cancelled"}
    assert re.search(r"rank-0 on gb300-0\d ended with exit code 3", run.out)
    assert "Traceback" not in run.out
    assert "not confirmed as released" not in run.out
    assert all(job.ended for job in jobs)
    assert len(sacct) <= 1  # tried once
    assert time.monotonic() - began < 150


# -- FC-30 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "reason", "words"),
    [
        ("fc30_preempted", "preempted", "was preempted"),
        ("fc30_node", "node_failed", "a node of job"),
        ("fc30_requeued", "requeued", "was requeued: its server is another one"),
        ("fc30_cancelled", "cancelled", "was cancelled from outside"),
    ],
)
def test_fc_30_what_slurm_did_is_no_missed_threshold(
    trouble: Trouble, recipe: str, reason: str, words: str
) -> None:
    found = trouble.row(recipe)
    assert (found["status"], found["reason"]) == ("error", reason)
    first = trouble.text(recipe).splitlines()[0]
    assert first.startswith(f"infrastructure error [{reason}] while benchmarking: ")
    assert words in first
    # Nothing of the part that was measured is told.
    assert found["completed"] is found["tput_per_gpu"] is found["median_ttft"] is None
    assert found["violations"] == []


def test_fc_30_a_job_that_starts_again_serves_nobody(trouble: Trouble) -> None:
    (job,) = trouble.jobs_of("fc30_requeued")
    assert job.restarts == 1
    assert job.ended
    assert trouble.log("fc30_requeued", "rank-0.log").count("vLLM API server version") == 1
    assert all("--no-requeue" in argv for argv in trouble.calls_of("sbatch"))


# -- FC-31 -------------------------------------------------------------------------------------------


def test_fc_31_reasons_survive_whole_and_only_some_never_clear() -> None:
    text = CASES["FC-31"]["input"]["fake"]["squeue"]
    lines = [line.split("|") for line in text.splitlines()]
    answers = parse_squeue("".join(row(number, state, reason=reason) for number, state, reason in lines))
    assert {number: answers[int(number)].info.reason for number, _, _ in lines} == {
        number: reason for number, _, reason in lines
    }
    assert [number for number, _, reason in lines if never_clears(reason)] == ["4712", "4713", "4715"]
    for number, _, reason in lines:
        clock = FakeClock()
        judge = PendingJudge(clock)
        verdicts = []
        for _ in range(6):
            info = parse_squeue(row(number, "PENDING", reason=reason))[int(number)].info
            verdicts.append(judge.feed(info))
            clock.sleep(5.0)
        assert verdicts[0] is None  # not on one sighting
        assert verdicts[-1] == (reason if never_clears(reason) else None)


def test_fc_31_a_held_job_is_given_up_soon(trouble: Trouble) -> None:
    found = trouble.row("fc31_held")
    assert (found["status"], found["reason"]) == ("error", "pending_forever")
    assert "is pending with reason JobHeldUser, which does not clear by itself" in trouble.text("fc31_held")
    assert found["phase_seconds"]["queue"] < 60 < workload("FC-31")["slurm"]["queue_timeout"]
    (job,) = trouble.jobs_of("fc31_held")
    assert job.state == "CANCELLED"


def test_fc_31_others_wait_for_the_deadline_and_are_cancelled(trouble: Trouble) -> None:
    found = trouble.row("fc31_wait")
    assert (found["status"], found["reason"]) == ("error", "queue_timeout")
    first = trouble.text("fc31_wait").splitlines()[0]
    assert re.search(rf"not scheduled in \d s, last reason: {re.escape(NOT_AVAILABLE)}\. Raise", first)
    (job,) = trouble.jobs_of("fc31_wait")
    assert job.state == "CANCELLED"
    assert job.nodes == []
