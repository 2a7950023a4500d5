"""What our client makes of either cluster: jobs from their submission to their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.pending import PendingJudge, never_clears
from pytest_gpubench.slurm.states import reason_of
from pytest_gpubench.slurm.steps import step_argv
from pytest_gpubench.slurm.types import JobId, JobState
from pytest_gpubench.slurm.waiting import wait_ended
from pytest_gpubench.world import SystemRunner

from .backends import Backend
from .client_desk import ClientDesk

NODES = ("gb300-01", "gb300-02")
BOTH = ("--nodes=2", "--exclusive", "--gres=gpu:b300:4")
NOBODY = JobId(60000001)


def check_submit_and_follow(backend: Backend, folder: Path) -> None:
    """The id, then the nodes in rank order, then the outcome."""
    desk = ClientDesk(backend, folder)
    name = desk.name()
    job = desk.submit("until [ -e go ]; do sleep 0.1; done\n", f"--chdir={folder}", *BOTH, name=name)
    running = desk.wait(job, JobState.RUNNING)
    assert (running.nodes, running.name, running.restarts, running.source) == (NODES, name, 0, "squeue")
    assert reason_of(running, ours_cancelled=False) is None
    found = desk.slurm.find(name)
    assert found is not None
    assert (found.id, found.state, found.nodes) == (job, JobState.RUNNING, NODES)
    (folder / "go").touch()
    ended = desk.wait(job, JobState.COMPLETED)
    assert reason_of(ended, ours_cancelled=False) is Reason.JOB_ENDED
    assert desk.runner.count("sbatch") == 1


def check_outcomes(backend: Backend, folder: Path) -> None:
    """How scripts end, asked for together."""
    desk = ClientDesk(backend, folder)
    failed = desk.submit("exit 3\n")
    killed = desk.submit("kill -9 $$\n")
    unwritten = desk.submit("true\n", f"--output={folder}/nowhere/out")
    answers = wait_ended(desk.slurm, desk.clock, [failed, killed, unwritten], timeout=30.0)
    assert {str(info.state) for info in answers.values()} == {str(JobState.FAILED)}
    assert answers[failed].reason == "NonZeroExitCode"
    assert {answers[job].reason for job in (killed, unwritten)} == {"JobLaunchFailure"}
    assert {reason_of(info, ours_cancelled=False) for info in answers.values()} == {Reason.JOB_ENDED}


def check_refused(backend: Backend, folder: Path) -> None:
    """What Slurm refuses at once is not asked for again, and is in no queue."""
    desk = ClientDesk(backend, folder)
    cases = {
        "--partition=nope": "Invalid partition name specified",
        "--gres=gpu:h100:4": "Requested node configuration is not available",
        "--nodelist=gb300-09": "Invalid node name specified",
        "--bogus": "unrecognized option '--bogus'",
        "--time=soon": "Invalid --time specification",
    }
    for option, words in cases.items():
        name = desk.name()
        with pytest.raises(SlurmError, match=words) as caught:
            desk.submit("true\n", option, name=name)
        assert caught.value.reason is Reason.SUBMIT_REFUSED
        found = desk.slurm.find(name)  # the record of a refused job may stay behind
        assert found is None or found.state is JobState.FAILED
    assert desk.runner.count("sbatch") == len(cases)


def check_waits_for_ever(backend: Backend, folder: Path) -> None:
    """Pending reasons that never clear are known as such; those of a full cluster are not."""
    desk = ClientDesk(backend, folder)
    held = desk.submit("true\n", "--hold")
    wide = desk.submit("true\n", "--nodes=3")
    long = desk.submit("true\n", "--time=10:00:00")
    wanted = {held: "JobHeldUser", wide: "PartitionNodeLimit", long: "PartitionTimeLimit"}
    desk.until(
        lambda: all(desk.info(job).reason == reason for job, reason in wanted.items()),
        "the reasons",
        lambda: str(desk.slurm.info(list(wanted))),
    )
    assert all(never_clears(desk.info(job).reason) for job in wanted)
    for job in (wide, long):
        assert desk.slurm.cancel(job).done
    holder = desk.submit("sleep 300\n", *BOTH)
    desk.wait(holder, JobState.RUNNING)
    queued = desk.submit("true\n", *BOTH)
    desk.until(lambda: desk.info(queued).reason == "Resources", "the queue")
    judge = PendingJudge(desk.clock, sightings=2, seconds=0.0)
    assert [judge.feed(desk.info(queued)) for _ in range(3)] == [None] * 3
    judge = PendingJudge(desk.clock, sightings=2, seconds=0.0)
    assert [judge.feed(desk.info(held)) for _ in range(2)] == [None, "JobHeldUser"]
    for job in (held, holder, queued):
        assert desk.slurm.cancel(job).done


def check_cancel_pending(backend: Backend, folder: Path) -> None:
    """A waiting job is over at once, and may be cancelled again."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("true\n", "--hold")
    assert desk.info(job).state is JobState.PENDING
    assert desk.slurm.cancel(job).done
    info = desk.wait(job, JobState.CANCELLED)
    assert (info.nodes, reason_of(info, ours_cancelled=False)) == ((), Reason.CANCELLED)
    assert desk.slurm.cancel(job).done
    assert desk.runner.count("scancel") == 2


def check_cancel_running(backend: Backend, folder: Path) -> None:
    """RUNNING, COMPLETING while it holds nodes, CANCELLED; never back."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("trap '' TERM\necho on\nwhile true; do sleep 0.1; done\n", *BOTH)
    desk.until(lambda: "on" in desk.output(job), "the script")
    assert desk.slurm.cancel(job).done
    seen = [desk.info(job)]

    def over() -> bool:
        seen.append(desk.info(job))
        return seen[-1].state.ended

    desk.until(over, "the end", lambda: str(seen))
    states = [info.state for info in seen]
    assert list(dict.fromkeys(states)) == [JobState.COMPLETING, JobState.CANCELLED]
    assert not JobState.COMPLETING.ended
    # While it completes, the nodes are those that it still holds.
    holding = {info.nodes for info in seen if info.state is JobState.COMPLETING}
    assert NODES[:1] in holding
    assert holding <= {NODES, NODES[:1]}
    assert seen[-1].nodes == NODES
    assert desk.slurm.cancel(job).done


def check_unknown_id(backend: Backend, folder: Path) -> None:
    """GONE, not "finished": nobody knows the id, and there is no accounting to ask twice."""
    desk = ClientDesk(backend, folder)
    held = desk.submit("true\n", "--hold")
    alone = desk.info(NOBODY)
    assert (alone.state, alone.source) == (JobState.GONE, "none")
    together = desk.slurm.info([held, NOBODY])
    assert [together[job].state for job in (held, NOBODY)] == [JobState.PENDING, JobState.GONE]
    assert desk.runner.count("sacct") == 1
    assert desk.slurm.cancel(NOBODY).done
    assert desk.slurm.cancel(held).done


def check_requeue(backend: Backend, folder: Path) -> None:
    """A second start under the same id is seen, while it waits and when it runs."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("echo restarts=$SLURM_RESTART_COUNT\nsleep 300\n", "--requeue", *BOTH)
    desk.wait(job, JobState.RUNNING)
    desk.until(lambda: "restarts=\n" in desk.output(job), "the first start")
    assert desk.shell("scontrol", "requeue", str(job)).ok
    waiting = desk.wait(job, JobState.PENDING)
    assert (waiting.restarts, waiting.nodes) == (1, ())
    again = desk.wait(job, JobState.RUNNING, seconds=60.0)
    assert (again.restarts, again.nodes) == (1, NODES)
    assert reason_of(again, ours_cancelled=False) is Reason.REQUEUED
    desk.until(lambda: "restarts=1\n" in desk.output(job), "the second start")
    assert "restarts=\n" not in desk.output(job)  # it began the file anew
    assert desk.slurm.cancel(job).done
    assert reason_of(desk.wait(job, JobState.CANCELLED), ours_cancelled=False) is Reason.REQUEUED


def check_node_fails(backend: Backend, folder: Path) -> None:
    """A job of --no-requeue ends with its node."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("sleep 300\n", "--no-requeue", *BOTH)
    desk.wait(job, JobState.RUNNING)
    assert desk.shell("scontrol", "update", "nodename=gb300-02", "state=down", "reason=test").ok
    try:
        info = desk.wait(job, JobState.NODE_FAIL)
        assert reason_of(info, ours_cancelled=False) is Reason.NODE_FAILED
    finally:
        assert desk.shell("scontrol", "update", "nodename=gb300-02", "state=resume").ok


def check_find_by_name(backend: Backend, folder: Path) -> None:
    """Exactly this name, also after its end; a name that others begin with is not theirs."""
    desk = ClientDesk(backend, folder)
    name = desk.name()
    other = desk.submit("true\n", "--hold", name=f"{name}-1")
    assert desk.slurm.find(name) is None
    job = desk.submit("true\n", name=name)
    desk.wait(job, JobState.COMPLETED)
    found = desk.slurm.find(name)
    assert found is not None
    assert (found.id, found.state, found.name) == (job, JobState.COMPLETED, name)
    assert desk.slurm.cancel(other).done


def check_site(backend: Backend, folder: Path) -> None:
    """Version and addresses."""
    desk = ClientDesk(backend, folder)
    version = desk.slurm.version()
    assert version is not None
    assert version[0].isdigit()
    assert desk.slurm.node_address("gb300-02") == "127.0.0.1"
    assert desk.slurm.node_address("nonode") == "nonode"


def check_steps(backend: Backend, folder: Path) -> None:
    """Our step lines: beside a step that holds the nodes, on the nodes asked for, one task a node."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("srun --ntasks-per-node=1 sleep 300\n", *BOTH)
    desk.until(
        lambda: f"{job}.0" in desk.shell("squeue", "-h", "-s", "-o", "%i").stdout.split(), "the first step"
    )
    runner = SystemRunner(desk.env)

    def run(nodes: tuple[str, ...], script: str, *extra: str) -> tuple[int | None, list[str]]:
        command = ["bash", "-c", script]
        done = runner.run(step_argv(job, nodes=nodes, command=command, extra=extra), timeout=60.0)
        return done.returncode, sorted(done.stdout.split())

    show = "echo $SLURM_PROCID:$SLURMD_NODENAME"
    assert run(NODES, show) == (0, ["0:gb300-01", "1:gb300-02"])
    assert run(NODES[1:], show) == (0, ["0:gb300-02"])
    assert run(NODES, "exit $SLURM_PROCID") == (1, [])
    log = folder / "step.log"
    argv = step_argv(job, nodes=NODES[:1], command=["bash", "-c", "echo out; echo err >&2"], output=str(log))
    assert runner.run(argv, timeout=60.0).ok
    assert sorted(log.read_text().split()) == ["err", "out"]
    assert desk.slurm.cancel(job).done


def check_environment_reaches_the_job(backend: Backend, folder: Path) -> None:
    """Values with commas and blanks arrive whole; what is left of an outer job does not."""
    desk = ClientDesk(backend, folder)
    submission = desk.submission(
        'echo "$TOKEN|$SLURM_MEM_PER_CPU|$VLLM_PORT"\nsrun bash -c \'echo "$TOKEN"\'\n'
    )
    env = {**os.environ, **desk.env, "SLURM_MEM_PER_CPU": "7", "VLLM_PORT": "tcp://1"}
    value = "a,b c=d;$e"
    desk = ClientDesk(backend, folder, env=env)
    job = desk.slurm.submit(
        type(submission)(
            script=submission.script,
            job_name=submission.job_name,
            options=submission.options,
            env={"TOKEN": value},
        )
    )
    desk.wait(job, JobState.COMPLETED)
    assert desk.output(job).splitlines() == [f"{value}||", value]


def check_time_limit(backend: Backend, folder: Path) -> None:
    """TIMEOUT, with its reason."""
    desk = ClientDesk(backend, folder)
    job = desk.submit("while true; do sleep 0.1; done\n", "--time=1")
    info = desk.wait(job, JobState.TIMEOUT, seconds=180.0)
    assert reason_of(info, ours_cancelled=False) is Reason.TIME_LIMIT


def check_purge(backend: Backend, folder: Path) -> None:
    """What ended long ago is GONE, and no job of its name is there; it can still be cancelled."""
    desk = ClientDesk(backend, folder)
    name = desk.name()
    job = desk.submit("true\n", name=name)
    desk.wait(job, JobState.COMPLETED)
    info = desk.wait(job, JobState.GONE, seconds=180.0)
    assert reason_of(info, ours_cancelled=False) is Reason.JOB_LOST
    assert desk.slurm.find(name) is None
    assert desk.slurm.cancel(job).done


CHECKS = {
    name.removeprefix("check_"): value
    for name, value in list(globals().items())
    if name.startswith("check_") and name not in ("check_time_limit", "check_purge")
}
"""The quick ones, by name."""
