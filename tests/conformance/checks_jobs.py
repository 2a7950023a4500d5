"""How jobs wait, start again, and end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mock.slurm_desk import Desk


def check_defaults(env: Mapping[str, str], folder: Path) -> None:
    """What a job is when nothing was asked for; how time limits are read."""
    with Desk(env, folder) as desk:
        plain = desk.submit("true\n", "--hold")
        firm = desk.submit("true\n", "--hold", "--no-requeue")
        assert [desk.detail(job, "Requeue") for job in (plain, firm)] == ["1", "0"]
        assert desk.detail(plain, "Restarts") == "0"
        assert desk.detail(plain, "EligibleTime") == "Unknown"
        assert desk.detail(plain, "WorkDir") == str(folder)
        assert desk.detail(plain, "StdOut") == f"{folder}/slurm-{plain}.out"
        limits = {"5": "5:00", "90": "1:30:00", "0:30": "1:00", "1:00:01": "1:01:00", "1-0": "1-00:00:00"}
        limits |= {"2-1:30": "2-01:30:00", "0": "UNLIMITED", "UNLIMITED": "UNLIMITED"}
        jobs = {desk.submit("true\n", "--hold", "-t", given): told for given, told in limits.items()}
        rows = desk.say("squeue", "-h", "-j", ",".join(jobs), "-o", "%i %l").splitlines()
        assert dict(row.split() for row in rows) == jobs


def check_sharing(env: Mapping[str, str], folder: Path) -> None:
    """An exclusive job takes its node from all others; others share; nobody overtakes in the queue."""
    with Desk(env, folder) as desk:
        alone = desk.submit("sleep 300\n", "-N1", "--exclusive", "-o", "/dev/null")
        desk.wait(alone, "RUNNING")
        first, second = (desk.submit("sleep 300\n", "-N1", "-o", "/dev/null") for _ in range(2))
        for job in (first, second):
            desk.wait(job, "RUNNING")
        nodes = [desk.say("squeue", "-h", "-j", job, "-o", "%N") for job in (alone, first, second)]
        assert nodes == ["gb300-01", "gb300-02", "gb300-02"]
        third = desk.submit("sleep 300\n", "-N1", "--exclusive", "-o", "/dev/null")
        wide = desk.submit("sleep 300\n", "-N2", "-o", "/dev/null")

        def reason(job: str) -> str:
            return desk.say("squeue", "-h", "-j", job, "-o", "%T %r")

        desk.until(lambda: reason(third) == "PENDING Resources", "Resources")
        desk.until(lambda: reason(wide) == "PENDING Priority", "Priority")
        states = dict(line.split() for line in desk.say("sinfo", "-h", "-N", "-o", "%N %t").splitlines())
        assert states == {"gb300-01": "alloc", "gb300-02": "mix"}


def check_gpus_decide_the_nodes(env: Mapping[str, str], folder: Path) -> None:
    """A number of GPUs that one node does not have is spread, unless the nodes are counted."""
    with Desk(env, folder) as desk:
        job = desk.submit("sleep 300\n", "--gpus=8", "-o", "/dev/null")
        desk.wait(job, "RUNNING")
        assert desk.say("squeue", "-h", "-j", job, "-o", "%D %N") == "2 gb300-[01-02]"
        for options in (("-N1", "--gpus=8"), ("--gpus-per-node=5",)):
            done = desk.run("sbatch", *options, "--wrap=true")
            assert (done.returncode, "Requested node configuration is not available" in done.stderr) == (
                1,
                True,
            )


def check_job_status(env: Mapping[str, str], folder: Path) -> None:
    """ExitCode is the script's own, also when it was cancelled; a bad interpreter is the script's fault."""
    with Desk(env, folder) as desk:
        trapped = desk.submit("trap 'exit 5' TERM\necho on\nsleep 300 & wait\n", "-o", "trapped.out")
        stubborn = desk.submit(
            "trap '' TERM\necho on\nwhile true; do sleep 0.1; done\n", "-o", "stubborn.out"
        )
        mild = desk.submit("echo on\nsleep 300\n", "-o", "mild.out")
        for name in ("trapped.out", "stubborn.out", "mild.out"):
            desk.written(name, "on")
        desk.say("scancel", trapped, stubborn, mild)
        states = [desk.wait(job) for job in (trapped, stubborn, mild)]
        assert states == ["CANCELLED"] * 3
        codes = [desk.detail(job, "ExitCode") for job in (trapped, stubborn, mild)]
        assert codes == ["5:0", "0:9", "0:15"]
        script = desk.script("true\n", name="bad.sh", head="#!/nonexistent/program -x\n")
        bad = desk.say("sbatch", "--parsable", "-o", "bad.out", script)
        assert desk.wait(bad) == "FAILED"
        assert (desk.detail(bad, "Reason"), desk.detail(bad, "ExitCode")) == ("NonZeroExitCode", "2:0")
        words = "execve(): bad interpreter(/nonexistent/program -x): No such file or directory"
        assert words in desk.read("bad.out")


def check_starts_again(env: Mapping[str, str], folder: Path) -> None:
    """A requeued job starts again under its id, with a fresh output file and steps counted from zero."""
    with Desk(env, folder, patience=60) as desk:
        body = (
            "echo restarts=$SLURM_RESTART_COUNT\nsrun -N1 -n1 bash -c 'echo step=$SLURM_STEP_ID'\nsleep 300\n"
        )
        job = desk.submit(body, "-N2", "-o", "again.out")
        desk.written("again.out", "step=0\n")
        assert desk.read("again.out").startswith("restarts=\n")
        desk.say("scontrol", "requeue", job)
        assert desk.state(job) in ("COMPLETING", "PENDING")
        desk.wait(job, "PENDING")
        desk.until(lambda: desk.say("squeue", "-h", "-j", job, "-o", "%r|%N") == "BeginTime|", "BeginTime")
        done = desk.run("scontrol", "requeue", job)
        assert (done.returncode, done.stderr) == (1, f"Job is pending execution for job {job}\n")
        desk.wait(job, "RUNNING")
        desk.written("again.out", "restarts=1\nstep=0\n")
        assert "restarts=\n" not in desk.read("again.out")
        assert desk.detail(job, "Restarts") == "1"
        desk.say("scontrol", "requeue", job)
        desk.wait(job, "PENDING")
        assert f"*** JOB {job} ON gb300-01 CANCELLED AT " in desk.read("again.out")
        assert "DUE TO JOB REQUEUE ***" in desk.read("again.out")
        desk.say("scancel", job)
        assert desk.wait(job) == "CANCELLED"


def check_node_failure_requeues(env: Mapping[str, str], folder: Path) -> None:
    """A job that may be requeued goes back into the queue when its node goes down."""
    with Desk(env, folder) as desk:
        job = desk.submit("sleep 300\n", "-w", "gb300-02", "-o", "requeued.out")
        desk.wait(job, "RUNNING")
        desk.say("scontrol", "update", "nodename=gb300-02", "state=down", "reason=test")
        try:
            desk.wait(job, "PENDING")
            assert desk.detail(job, "Restarts") == "1"
        finally:
            desk.say("scontrol", "update", "nodename=gb300-02", "state=resume")
        done = desk.run("scontrol", "update", "nodename=gb300-02", "state=resume")
        assert (done.returncode, "Invalid node state specified" in done.stderr) == (1, True)


def check_completing_holds_nodes(env: Mapping[str, str], folder: Path) -> None:
    """Until the last process is gone the job shows COMPLETING and the nodes it still has."""
    with Desk(env, folder) as desk:
        body = "srun --overlap -N1 -n1 -w gb300-02 bash -c 'trap \"\" TERM; echo on; sleep 300' &\n"
        job = desk.submit(body + "wait\n", "-N2", "--exclusive", "-o", "slow.out")
        desk.written("slow.out", "on")
        desk.say("scancel", job)
        desk.until(
            lambda: desk.say("squeue", "-h", "-j", job, "-o", "%T %t %N") == "COMPLETING CG gb300-02",
            "the node that is left",
        )
        done = desk.run("srun", f"--jobid={job}", "true")
        assert (done.returncode, f"Slurm job {job} has expired" in done.stderr) == (1, True)
        assert desk.run("scancel", job).returncode == 0
        assert desk.wait(job) == "CANCELLED"
        assert desk.say("squeue", "-h", "-t", "all", "-j", job, "-o", "%N") == "gb300-[01-02]"


def check_who_gets_signals(env: Mapping[str, str], folder: Path) -> None:
    """TERM reaches the script and the tasks of steps, not what they started; --full all of the script's."""
    loop = 'trap "echo {0}-term; {1}" TERM; echo {0}-on; while true; do sleep 0.1; done'
    with Desk(env, folder) as desk:
        for name in ("grandchild", "stepchild"):
            desk.script(loop.format(name, "exit 0") + "\n", name)
        body = "trap 'echo script-term' TERM\nbash grandchild &\n"
        body += f"srun --overlap -N1 -n1 bash -c 'bash stepchild & {loop.format('task', ':')}' &\n"
        body += "while true; do sleep 0.1; done\n"

        def begun(output: str) -> str:
            job = desk.submit(body, "-N2", "-o", output)
            for name in ("grandchild", "stepchild", "task"):
                desk.written(output, f"{name}-on")
            return job

        def heard(output: str) -> list[str]:
            return sorted(word[:-5] for word in desk.read(output).split() if word.endswith("-term"))

        cancelled, signalled = begun("cancelled.out"), begun("signalled.out")
        desk.say("scancel", cancelled)
        total: list[str] = []
        for options, reached in (
            ("--signal=TERM", ["task"]),
            ("--batch --signal=TERM", ["script"]),
            ("--full --signal=TERM", ["script", "grandchild"]),
        ):
            desk.say("scancel", *options.split(), signalled)
            total = sorted([*total, *reached])
            desk.until(
                lambda total=total: len(heard("signalled.out")) >= len(total),  # type: ignore[misc]
                f"{options} at {reached}",
            )
            assert desk.state(signalled) == "RUNNING"
        time.sleep(0.5)
        # With --full the srun of the script may still pass its TERM on before it kills the step.
        assert [word for word in heard("signalled.out") if word != "task"] == [
            "grandchild",
            "script",
            "script",
        ]
        desk.wait(cancelled)
        assert heard("cancelled.out") == ["script", "task"]


def check_srun_alone(env: Mapping[str, str], folder: Path) -> None:
    """srun outside of a job makes one, waits for its nodes, and gives them back."""
    with Desk(env, folder) as desk:
        script = "echo $SLURM_JOB_NAME $SLURM_NNODES $SLURM_NTASKS $SLURMD_NODENAME; exit 3"
        done = desk.run("srun", "-N1", "bash", "-c", script)
        assert (done.returncode, done.stdout) == (3, "bash 1 1 gb300-01\n")
        assert sorted(desk.say("srun", "-N2", "-l", "echo", "hi").splitlines()) == ["0: hi", "1: hi"]
        assert desk.run("srun", "-N1", "no-such-program").returncode == 2
        script_file = folder / "text"
        script_file.write_text("no program\n")
        script_file.chmod(0o755)
        assert desk.run("srun", "-N1", str(script_file)).returncode == 8
        done = desk.run("srun", "-N1", "--gres=gpu:h100:1", "true")
        refused = "srun: error: Unable to allocate resources: Requested node configuration is not available\n"
        assert (done.returncode, done.stderr) == (1, refused)
        job = desk.hold_nodes(body="sleep 2\n")
        done = desk.run("srun", "-N1", "--exclusive", "echo", "mine")
        assert (done.returncode, done.stdout) == (0, "mine\n")
        own = int(job) + 1
        assert f"srun: job {own} queued and waiting for resources\n" in done.stderr
        assert f"srun: job {own} has been allocated resources\n" in done.stderr
        began = time.monotonic()
        assert desk.run("srun", "-N1", "--exclusive", "true").returncode == 0
        assert time.monotonic() - began < 10
