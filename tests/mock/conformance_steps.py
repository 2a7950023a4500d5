"""Steps of a job."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from .slurm_desk import Desk, alive


def check_step_environment(env: Mapping[str, str], folder: Path) -> None:
    """Ids, ranks and nodes of tasks; one block of ranks per node; the job's node list stays whole."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        show = "echo $SLURM_JOB_ID $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_NODEID $SLURM_PROCID $SLURM_LOCALID"
        show += " $SLURM_STEP_NODELIST $SLURM_JOB_NODELIST $SLURM_STEP_NUM_TASKS $SLURM_STEP_TASKS_PER_NODE"
        done = desk.step(job, "-N2", "--ntasks-per-node=1", "-l", "bash", "-c", show)
        assert (done.returncode, done.stderr) == (0, "")
        both = "gb300-[01-02]"
        assert sorted(done.stdout.splitlines()) == [
            f"0: {job} 0 gb300-01 0 0 0 {both} {both} 2 1(x2)",
            f"1: {job} 0 gb300-02 1 1 0 {both} {both} 2 1(x2)",
        ]
        # From outside, SLURM_JOB_NODELIST and SLURM_JOB_NAME are the step's.
        done = desk.step(job, "-N1", "-n2", "-w", "gb300-02", "bash", "-c", show)
        assert sorted(done.stdout.splitlines()) == [
            f"{job} 1 gb300-02 0 0 0 gb300-02 gb300-02 2 2",
            f"{job} 1 gb300-02 0 1 1 gb300-02 gb300-02 2 2",
        ]
        names = "echo $SLURM_JOB_NAME $SLURM_NODELIST $SLURM_JOB_NUM_NODES $SLURM_SUBMIT_DIR"
        assert desk.step(job, "-N1", "-n1", "bash", "-c", names).stdout == f"bash {both}\n"
        done = desk.step(
            job, "-n2", "-N2", "-w", "gb300-02,gb300-01", "-l", "bash", "-c", "echo $SLURMD_NODENAME"
        )
        assert sorted(done.stdout.splitlines()) == ["0: gb300-01", "1: gb300-02"]


def check_step_exit_status(env: Mapping[str, str], folder: Path) -> None:
    """The highest status of the tasks, 128 + n for a signal, and srun's words about each."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        one = ("-N1", "-n1", "-w", "gb300-02")
        assert desk.step(job, *one, "true").returncode == 0
        done = desk.step(job, *one, "bash", "-c", "echo out; echo err >&2; exit 44")
        assert (done.returncode, done.stdout) == (44, "out\n")
        assert "err\n" in done.stderr
        assert "srun: error: gb300-02: task 0: Exited with exit code 44\n" in done.stderr
        done = desk.step(job, "-N1", "-n2", "-w", "gb300-02", "bash", "-c", "exit $((SLURM_PROCID+3))")
        assert done.returncode == 4
        done = desk.step(job, *one, "bash", "-c", "kill -9 $$")
        assert (done.returncode, "srun: error: gb300-02: task 0: Killed" in done.stderr) == (137, True)
        done = desk.step(job, *one, "bash", "-c", "kill -15 $$")
        assert (done.returncode, "task 0: Terminated" in done.stderr) == (143, True)
        done = desk.step(job, *one, "/not/there")
        assert done.returncode == 2
        assert "slurmstepd-gb300-02: error: execve(): /not/there: No such file or directory" in done.stderr


def check_step_refusals(env: Mapping[str, str], folder: Path) -> None:
    """Steps that do not fit their job."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        unable = f"srun: error: Unable to create step for job {job}: "
        cases = [
            (("-N1", "-n1", "-w", "gb300-07"), unable + "Requested node configuration is not available"),
            (("-N3",), "srun: error: Only allocated 2 nodes asked for 3"),
            (
                ("--gres", "gpu:b300:5", "-N1", "-n1"),
                unable + "Invalid generic resource (gres) specification",
            ),
            (
                ("--mpi=foo", "-N1", "-n1"),
                "srun: error: Invalid MPI type 'foo', --mpi=list for acceptable types",
            ),
            (("-o", "/nonexistent/x", "-N1", "-n1"), "srun: error: Could not open stdout file: No such file"),
        ]
        for options, text in cases:
            done = desk.step(job, *options, "true")
            assert (done.returncode, text in done.stderr) == (1, True), (options, done.stderr)
        assert desk.step(job, "--gres", "gpu:b300:4", "-N1", "-n1", "--mpi=none", "true").returncode == 0


def check_overlap(env: Mapping[str, str], folder: Path) -> None:
    """Without --overlap a step waits for the node of another, and says so; with it, it does not."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        words = ("srun", f"--jobid={job}", "-N1", "-n1", "-w", "gb300-01")
        first = desk.start(*words, "bash", "-c", "echo here > first.mark; sleep 3")
        desk.written("first.mark", "here")
        began = time.monotonic()
        assert desk.step(job, "-N1", "-n1", "-w", "gb300-01", "true").returncode == 0
        assert time.monotonic() - began < 2
        done = desk.run(*words, "bash", "-c", "echo second")
        assert (done.returncode, done.stdout) == (0, "second\n")
        busy = f"srun: Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)\n"
        assert done.stderr == busy + f"srun: Step created for job {job}\n"
        assert first.wait(timeout=10) == 0


def check_step_output(env: Mapping[str, str], folder: Path) -> None:
    """Files with patterns; standard error follows standard output; standard input is forwarded, or not."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        one = ("-N1", "-n1", "-w", "gb300-01")
        done = desk.step(job, *one, "-o", "o.%j.%J.%s.%n.%t", "bash", "-c", "echo out; echo err >&2; exit 2")
        assert (done.returncode, done.stdout) == (2, "")
        assert desk.read(f"o.{job}.{job}.0.0.0.0") == "out\nerr\n"
        done = desk.step(
            job, "-N2", "-n2", "-o", "p.%t", "-e", "q.%t", "bash", "-c", "echo out; echo err >&2"
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert [desk.read(name) for name in ("p.0", "p.1", "q.0", "q.1")] == [
            "out\n",
            "out\n",
            "err\n",
            "err\n",
        ]
        assert desk.step(job, "-n2", "-N2", "cat", text="hello\n").stdout == "hello\nhello\n"
        assert desk.step(job, *one, "--input=none", "cat", text="hello\n").stdout == ""


def check_srun_eats_input(env: Mapping[str, str], folder: Path) -> None:
    """A step takes the standard input of the loop around it, unless it is told not to."""
    with Desk(env, folder) as desk:
        loop = "printf 'a\\nb\\nc\\n' | while read -r name; do\n"
        loop += 'srun --overlap -N1 -n1 {0} true; echo "got $name"\ndone\n'
        eaten = desk.submit(loop.format(""), "-o", "eaten.out", name="eaten.sh")
        spared = desk.submit(loop.format("--input=none"), "-o", "spared.out", name="spared.sh")
        desk.wait(eaten)
        desk.wait(spared)
        assert desk.read("eaten.out") == "got a\n"
        assert desk.read("spared.out") == "got a\ngot b\ngot c\n"


def check_step_export(env: Mapping[str, str], folder: Path) -> None:
    """--export of srun: ALL keeps the caller's value, a list alone passes only itself, values end at a
    comma."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        words = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1")
        show = ("bash", "-c", "echo $FOO,$BAR")

        def told(export: str) -> str:
            return desk.run(*words, f"--export={export}", *show, env={"FOO": "a,b", "BAR": "2"}).stdout

        assert told("ALL") == "a,b,2\n"
        assert told("ALL,FOO=x") == "a,b,2\n"
        assert told("FOO=x,y,PATH") == "x,\n"
        done = desk.run(*words, "--export=ALL,NEW=x,y", "bash", "-c", "echo $NEW")
        assert done.stdout == "x\n"


def check_srun_term(env: Mapping[str, str], folder: Path) -> None:
    """TERM and HUP to srun kill the tasks at once; INT alone asks for a second one."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        for number in (signal.SIGTERM, signal.SIGHUP):
            mark = f"mark{number}"
            body = f"trap '' TERM; echo $$ > {mark}; while true; do sleep 0.1; done"
            step = desk.start("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "bash", "-c", body)
            desk.until(lambda mark=mark: desk.read(mark).strip() != "", "the task")  # type: ignore[misc]
            step.send_signal(number)
            assert step.wait(timeout=15) == 137
            assert step.stderr is not None
            text = step.stderr.read()
            assert "srun: forcing job termination" in text
            assert re.search(r"\*\*\* STEP \d+\.\d+ ON gb300-0. CANCELLED AT ", text)
            assert not alive(int(desk.read(mark)))
        body = "echo $$ > int.mark; sleep 2; echo survived"
        step = desk.start("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "bash", "-c", body)
        desk.until(lambda: desk.read("int.mark").strip() != "", "the task")
        step.send_signal(signal.SIGINT)
        out, err = step.communicate(timeout=15)
        assert (step.returncode, out) == (0, "survived\n")
        assert "srun: interrupt (one more within 1 sec to abort)" in err


def check_srun_killed(env: Mapping[str, str], folder: Path) -> None:
    """KILL of srun alone ends its step (a child of srun sees to it); KILL of its whole group proves
    nothing."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        words = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "bash", "-c")
        alone = desk.start(*words, "echo $$ > alone; while true; do sleep 0.1; done")
        desk.until(lambda: desk.read("alone").strip() != "", "the task")
        alone.kill()
        desk.until(lambda: not alive(int(desk.read("alone"))), "the task's end")
        group = desk.start(*words, "echo $$ > group; while true; do sleep 0.1; done")
        desk.until(lambda: desk.read("group").strip() != "", "the task")
        os.killpg(group.pid, signal.SIGKILL)
        group.wait()
        time.sleep(1)
        pid = int(desk.read("group"))
        assert alive(pid)
        assert f"{job}.1" in desk.say("squeue", "-s", "-h", "-o", "%i").split()
        desk.say("scancel", f"{job}.1")
        desk.until(lambda: not alive(pid), "the task's end")
        assert desk.state(job) == "RUNNING"


def check_cancel_step(env: Mapping[str, str], folder: Path) -> None:
    """scancel of a step ends it and not its job."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        body = "echo $$ > pid; trap 'exit 4' TERM; sleep 300 & wait"
        step = desk.start("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "bash", "-c", body)
        desk.until(lambda: desk.read("pid").strip() != "", "the task")
        desk.say("scancel", f"{job}.0")
        _, err = step.communicate(timeout=20)
        assert step.returncode == 137
        assert f"*** STEP {job}.0 ON " in err
        assert desk.state(job) == "RUNNING"
        assert "Invalid job id specified" in desk.run("scancel", f"{job}.77").stderr


def check_kill_on_bad_exit(env: Mapping[str, str], folder: Path) -> None:
    """One task's failure ends the others with --kill-on-bad-exit; a task that exits 0 never does."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        body = "if [ $SLURM_PROCID = 1 ]; then exit 5; fi; sleep 60"
        done = desk.step(job, "-N2", "-n2", "--kill-on-bad-exit=1", "bash", "-c", body)
        assert done.returncode == 143
        assert "task 1: Exited with exit code 5" in done.stderr
        assert f"srun: launch/slurm: _step_signal: Terminating StepId={job}.0" in done.stderr
        body = "if [ $SLURM_PROCID = 1 ]; then exit 0; fi; sleep 2; echo lived"
        done = desk.step(job, "-N2", "-n2", "--kill-on-bad-exit=1", "bash", "-c", body)
        assert (done.returncode, done.stdout) == (0, "lived\n")


def check_step_ends_with_job(env: Mapping[str, str], folder: Path) -> None:
    """A step started from outside ends when its job is cancelled; no step starts in a job that ends."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()
        step = desk.start(
            "srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "bash", "-c", "echo $$ > pid; sleep 300"
        )
        desk.until(lambda: desk.read("pid").strip() != "", "the task")
        desk.say("scancel", job)
        step.wait(timeout=20)
        assert step.returncode != 0
        assert not alive(int(desk.read("pid")))
        desk.wait(job)
        done = desk.step(job, "-N1", "-n1", "true")
        assert done.returncode == 1
        assert f"srun: error: Slurm job {job} has expired" in done.stderr


def check_script_end_ends_steps(env: Mapping[str, str], folder: Path) -> None:
    """When the batch script ends, its job ends, whatever still runs in steps."""
    with Desk(env, folder) as desk:
        body = "srun --overlap -N1 -n1 bash -c 'echo $$ > pid; sleep 300' &\n"
        body += "while [ ! -s pid ]; do sleep 0.1; done\n"
        job = desk.submit(body, "-o", "ends.out")
        assert desk.wait(job) == "COMPLETED"
        desk.until(lambda: not alive(int(desk.read("pid"))), "the task's end")
