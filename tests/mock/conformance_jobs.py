"""Submission, the queue, and cancelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .slurm_desk import Desk, alive

_TRY = 'Try "{0} --help" for more information\n'


def check_submission_answers(env: Mapping[str, str], folder: Path) -> None:
    """The id, alone or in a sentence; a job from standard input and from --wrap."""
    with Desk(env, folder) as desk:
        done = desk.run("sbatch", "--hold", desk.script("true\n"))
        found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        assert found and done.returncode == 0 and done.stderr == ""
        desk.jobs.append(found[1])
        second = desk.submit("true\n", "--hold")
        assert int(second) > int(found[1])
        piped = desk.run("sbatch", "--parsable", "--hold", text="#!/bin/sh\ntrue\n").stdout.strip()
        wrapped = desk.say("sbatch", "--parsable", "--hold", "--wrap", "true")
        desk.jobs += [piped, wrapped]
        names = desk.say("squeue", "-h", "-j", f"{second},{piped},{wrapped}", "-o", "%i %j").splitlines()
        assert sorted(names) == sorted([f"{second} job.sh", f"{piped} sbatch", f"{wrapped} wrap"])


def check_wrong_options(env: Mapping[str, str], folder: Path) -> None:
    """Command lines that no command accepts, in glibc's words and with each command's exit status."""
    with Desk(env, folder) as desk:
        script = desk.script("true\n")
        cases: list[tuple[tuple[str, ...], int, str]] = [
            (
                ("sbatch", "--foo", script),
                255,
                "sbatch: unrecognized option '--foo'\n" + _TRY.format("sbatch"),
            ),
            (("sbatch", "-Z", script), 255, "sbatch: invalid option -- 'Z'\n" + _TRY.format("sbatch")),
            (
                ("sbatch", "--nodes"),
                255,
                "sbatch: option '--nodes' requires an argument\n" + _TRY.format("sbatch"),
            ),
            (("sbatch", "--segment=2", script), 255, "unrecognized option '--segment=2'"),
            (
                ("sbatch", "--nod=1", script),
                255,
                "'--nod=1' is ambiguous; possibilities: '--nodefile' '--nodelist'",
            ),
            (("sbatch", "-N", "abc", script), 255, 'sbatch: error: "abc" is not a valid node count'),
            (("sbatch", "-t", "abc", script), 255, "sbatch: error: Invalid --time specification"),
            (("sbatch", "--exclusive=foo", script), 255, "sbatch: error: Invalid --exclusive specification"),
            (("sbatch", "--mem=abc", script), 255, "sbatch: error: Invalid --mem specification"),
            (("sbatch", "missing.sh"), 1, "sbatch: error: Unable to open file missing.sh"),
            (("srun", "--jobid=1", "--foo", "true"), 255, "srun: unrecognized option '--foo'"),
            (("srun", "--jobid=1"), 1, "srun: fatal: No command given to execute."),
            (("srun", "--jobid=abc", "true"), 1, 'srun: error: Invalid numeric value "abc" for --jobid.'),
            (("squeue", "--foo"), 1, "squeue: unrecognized option '--foo'\n" + _TRY.format("squeue")),
            (("squeue", "-h", "-j", "abc"), 1, "squeue: error: Invalid job id: abc"),
            (("squeue", "-t", "BADSTATE"), 1, "squeue: error: Invalid job state specified: BADSTATE"),
            (("scancel", "--foo"), 1, "scancel: unrecognized option '--foo'"),
            (("scancel",), 1, "scancel: error: No job identification provided"),
            (("scancel", "abc"), 1, "scancel: error: Invalid job id abc"),
            (("scontrol", "foo"), 1, "invalid keyword: foo"),
            (("sinfo", "--foo"), 1, "sinfo: unrecognized option '--foo'"),
        ]
        for argv, status, text in cases:
            done = desk.run(*argv)
            assert (done.returncode, text in done.stderr) == (status, True), (
                argv,
                done.returncode,
                done.stderr,
            )
            assert done.stdout == "", argv


def check_refused_scripts(env: Mapping[str, str], folder: Path) -> None:
    """Files that are no batch scripts, and wrong options inside of one."""
    with Desk(env, folder) as desk:
        done = desk.run("sbatch", desk.script("echo hi\n", head=""))
        assert done.returncode == 1
        assert "This does not look like a batch script" in done.stderr
        assert (
            desk.run("sbatch", desk.script("", head="")).stderr == "sbatch: error: Batch script is empty!\n"
        )
        done = desk.run("sbatch", desk.script("#SBATCH --bogus=1\ntrue\n"))
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            255,
            "sbatch: unrecognized option '--bogus=1'",
        )
        done = desk.run("sbatch", desk.script('#SBATCH --comment="x\ntrue\n'))
        assert (done.returncode, "line 2: Unmatched" in done.stderr) == (1, True)


def check_refused_requests(env: Mapping[str, str], folder: Path) -> None:
    """What the controller refuses at once."""
    with Desk(env, folder) as desk:
        script = desk.script("true\n")
        unavailable = (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available"
        )
        cases = [
            (("--gres", "gpu:h100:4"), unavailable),
            (("--gres", "gpu:b300:8"), unavailable),
            (("--gpus", "9"), unavailable),
            (("--gres", "nic:1"), "Invalid generic resource (gres) specification"),
            (("-w", "gb300-09"), "sbatch: error: Batch job submission failed: Invalid node name specified"),
            (("-p", "nope"), "sbatch: error: Batch job submission failed: Invalid partition name specified"),
            (
                ("--reservation", "x"),
                "sbatch: error: Batch job submission failed: Requested reservation is invalid",
            ),
        ]
        for options, text in cases:
            done = desk.run("sbatch", "--parsable", *options, script)
            assert (done.returncode, done.stdout, text in done.stderr) == (1, "", True), (
                options,
                done.stderr,
            )


def check_directives(env: Mapping[str, str], folder: Path) -> None:
    """#SBATCH lines: up to the first command, cut at a bare #, lower than the command line."""
    with Desk(env, folder) as desk:
        body = "#SBATCH --job-name=from#script\n# note\n#SBATCH --nodes=2 # two\n##SBATCH --nodes=7\n\n"
        body += "#SBATCH --time=00:05:00 -H\ntrue\n#SBATCH --nodes=1\n"
        job = desk.submit(body)
        assert desk.say("squeue", "-h", "-j", job, "-o", "%j|%D|%l") == "from|2|5:00"
        quoted = desk.submit('#SBATCH --comment=a\\#b --job-name="q # r" -H\ntrue\n')
        assert desk.say("squeue", "-h", "-j", quoted, "-o", "%j|%k") == "q # r|a#b"
        line = desk.submit("#SBATCH --job-name=inside --hold\ntrue\n", "--job-name=outside")
        assert desk.say("squeue", "-h", "-j", line, "-o", "%j") == "outside"


def check_batch_environment(env: Mapping[str, str], folder: Path) -> None:
    """What a batch script sees, where it runs, where its output goes; the script is copied at submission."""
    with Desk(env, folder) as desk:
        body = "env | grep -E '^SLURM|^HOSTNAME|^MARK'; pwd; echo \"args $1\"; sleep 1; echo end\n"
        options = ["-N2", "--gres", "gpu:b300:4", "--exclusive", "--job-name", "env-test"]
        done = desk.run(
            "sbatch",
            "--parsable",
            *options,
            "--output",
            "out-%x-%j.txt",
            desk.script(body),
            "one",
            env={"MARK": "a,b c"},
        )
        job = done.stdout.strip()
        desk.jobs.append(job)
        desk.wait(job, "RUNNING", "COMPLETED")
        desk.script("echo changed; exit 9\n")
        assert desk.wait(job) == "COMPLETED"
        text = desk.read(f"out-env-test-{job}.txt")
        for line in (
            f"SLURM_JOB_ID={job}",
            "SLURM_JOB_NODELIST=gb300-[01-02]",
            "SLURM_NNODES=2",
            "SLURM_JOB_NUM_NODES=2",
            "SLURM_JOB_NAME=env-test",
            f"SLURM_SUBMIT_DIR={folder}",
            "SLURMD_NODENAME=gb300-01",
            "SLURM_JOB_PARTITION=batch",
            "SLURM_GPUS_ON_NODE=4",
            "SLURM_PROCID=0",
            "HOSTNAME=gb300-01",
            "MARK=a,b c",
            str(folder),
            "args one",
            "end",
        ):
            assert line in text.splitlines(), (line, text)
        assert "SLURM_RESTART_COUNT" not in text


def check_export(env: Mapping[str, str], folder: Path) -> None:
    """--export of sbatch: a named value wins, and is cut at its first comma."""
    with Desk(env, folder) as desk:
        body = 'echo "$FOO|$BAR|$OTHER"\n'
        job = desk.submit(body, "--export=ALL,FOO=x,y", "-o", "all.out", env={"FOO": "z", "OTHER": "o"})
        named = desk.submit(body, "--export=BAR,PATH", "-o", "named.out", env={"FOO": "z", "BAR": "b"})
        desk.wait(job)
        desk.wait(named)
        assert (desk.read("all.out"), desk.read("named.out")) == ("x||o\n", "|b|\n")


def check_queue_order(env: Mapping[str, str], folder: Path) -> None:
    """One job runs, the next waits for resources, the third for its turn; ids are in one answer."""
    with Desk(env, folder) as desk:
        first = desk.hold_nodes(body="sleep 4\n")
        second = desk.submit("true\n", "-N2", "--exclusive", "-o", "second.out")
        third = desk.submit("true\n", "-N2", "--exclusive", "-o", "third.out")
        every = f"{first},{second},{third}"

        def rows() -> list[str]:
            return sorted(desk.say("squeue", "-h", "-j", every, "-o", "%i %T %t %r %R %N").splitlines())

        desk.until(lambda: f"{second} PENDING PD Resources (Resources)" in " ".join(rows()), "a reason")
        desk.until(lambda: f"{third} PENDING PD Priority (Priority)" in " ".join(rows()), "a reason")
        assert f"{first} RUNNING R None gb300-[01-02] gb300-[01-02]" in rows()
        desk.wait(second)
        desk.wait(third)
        assert [desk.state(job) for job in (first, second, third)] == ["COMPLETED"] * 3


def check_end_states(env: Mapping[str, str], folder: Path) -> None:
    """Exit statuses and signals of batch scripts; a finished job is listed only when asked for."""
    with Desk(env, folder) as desk:
        good = desk.submit("true\n", "-o", "good.out")
        bad = desk.submit("exit 3\n", "-o", "bad.out")
        killed = desk.submit("kill -9 $$\n", "-o", "killed.out")
        nowhere = desk.submit("true\n", "--chdir", "/nonexistent/folder")
        for job in (good, bad, killed, nowhere):
            desk.wait(job)
        told = {
            job: (desk.state(job), desk.detail(job, "Reason"), desk.detail(job, "ExitCode"))
            for job in (good, bad, killed, nowhere)
        }
        assert told == {
            good: ("COMPLETED", "None", "0:0"),
            bad: ("FAILED", "NonZeroExitCode", "3:0"),
            killed: ("FAILED", "JobLaunchFailure", "0:9"),
            nowhere: ("FAILED", "JobLaunchFailure", "0:53"),
        }
        assert desk.say("squeue", "-h", "-j", bad) == ""
        assert {bad, killed, nowhere} <= set(desk.say("squeue", "-h", "--states=FAILED", "-o", "%i").split())


def check_unknown_ids(env: Mapping[str, str], folder: Path) -> None:
    """Ids that the controller does not know."""
    with Desk(env, folder) as desk:
        invalid = "slurm_load_jobs error: Invalid job id specified\n"
        held = desk.submit("true\n", "--hold")
        done = desk.run("squeue", "-j", "60000001")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", invalid)
        done = desk.run("squeue", "-h", "-j", f"{held},60000001", "-o", "%i")
        assert (done.returncode, done.stdout.strip()) == (0, held)
        assert desk.run("squeue", "-h", "-j", "60000002,60000001").returncode == 0
        done = desk.run("scontrol", "show", "job", "60000001")
        assert (done.returncode, done.stderr) == (1, invalid)
        done = desk.run("scancel", "60000001")
        assert (done.returncode, done.stderr) == (0, "")
        done = desk.run("scancel", "-v", "60000001")
        assert "error: Kill job error on job id 60000001: Invalid job id specified" in done.stderr
        done = desk.run("scontrol", "requeue", "60000001")
        assert (done.returncode, done.stderr) == (1, "Invalid job id specified for job 60000001\n")
        done = desk.run("srun", "--jobid=60000001", "true")
        assert done.returncode == 1
        assert (
            "srun: error: Unable to confirm allocation for job 60000001: Invalid job id specified"
            in done.stderr
        )
        done = desk.run("srun", f"--jobid={held}", "true")
        assert f"Unable to confirm allocation for job {held}: Job is pending execution" in done.stderr


def check_squeue_forms(env: Mapping[str, str], folder: Path) -> None:
    """Columns, widths, headers, filters."""
    with Desk(env, folder) as desk:
        job = desk.submit("true\n", "--hold", "--job-name", "form", "-t", "01:30:00")
        user = desk.say("id", "-un")
        row = desk.say("squeue", "-h", "-j", job, "-o", "%i|%A|%T|%t|%j|%u|%P|%D|%l|%M|%N|%S|%R")
        assert row == f"{job}|{job}|PENDING|PD|form|{user}|batch|1|1:30:00|0:00||N/A|(JobHeldUser)"
        assert desk.say("squeue", "-j", job, "-o", "%i %T %r").splitlines()[0] == "JOBID STATE REASON"
        head = desk.run("squeue").stdout.splitlines()[0]
        assert head == "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"
        wide = desk.run("squeue", "-h", "-O", "JobID:12,State:10,Reason:30,RestartCnt:5").stdout
        assert wide == f"{job:<12}{'PENDING':<10}{'JobHeldUser':<30}{'0':<5}\n"
        for options in ("-n form", "--me", f"-u {user}", "-t PD", "-p batch"):
            assert desk.say("squeue", "-h", *options.split(), "-o", "%i") == job
        for options in ("-n other", "-t RUNNING", "-n form,x -t R"):
            assert desk.say("squeue", "-h", *options.split(), "-o", "%i") == ""


def check_held_and_begin(env: Mapping[str, str], folder: Path) -> None:
    """Held jobs run when released; a begin time keeps a job waiting."""
    with Desk(env, folder) as desk:
        held = desk.submit("true\n", "--hold", "-o", "held.out")
        later = desk.submit("true\n", "--begin=now+600", "-o", "later.out")
        desk.until(lambda: "BeginTime" in desk.say("squeue", "-h", "-j", later, "-o", "%r"), "BeginTime")
        assert desk.say("squeue", "-h", "-j", held, "-o", "%r") == "JobHeldUser"
        assert desk.run("scontrol", "release", held).returncode == 0
        assert desk.wait(held) == "COMPLETED"
        done = desk.run("scontrol", "hold", held)
        assert (done.returncode, f"Job has already finished for job {held}" in done.stderr) == (1, True)
        assert desk.state(later) == "PENDING"


def check_impossible_requests_wait(env: Mapping[str, str], folder: Path) -> None:
    """More nodes or time than the partition has: the job is taken, and waits for ever with a reason."""
    with Desk(env, folder) as desk:
        wide = desk.submit("true\n", "-N3")
        long = desk.submit("true\n", "-t", "10:00:00")

        def reason(job: str) -> str:
            return desk.say("squeue", "-h", "-j", job, "-o", "%r")

        desk.until(lambda: reason(wide) == "PartitionNodeLimit", "PartitionNodeLimit")
        desk.until(lambda: reason(long) == "PartitionTimeLimit", "PartitionTimeLimit")


def check_cancel_pending(env: Mapping[str, str], folder: Path) -> None:
    """A waiting job ends at once; cancelling again is silent."""
    with Desk(env, folder) as desk:
        job = desk.submit("true\n", "--hold")
        done = desk.run("scancel", job)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert desk.wait(job) == "CANCELLED"
        assert desk.detail(job, "ExitCode") == "0:0"
        assert desk.run("scancel", job).returncode == 0
        assert "Job/step already completing or completed" in desk.run("scancel", "-v", job).stderr


def check_cancel_running(env: Mapping[str, str], folder: Path) -> None:
    """TERM reaches script and steps, nothing survives KillWait, the job is never RUNNING after scancel."""
    with Desk(env, folder) as desk:
        body = (
            "trap 'echo script-term' TERM\n"
            "srun --overlap -N1 -n1 -w gb300-02 bash -c 'echo $$ > pid; trap \"\" TERM; sleep 300' &\n"
            "while true; do sleep 0.2; done\n"
        )
        job = desk.submit(body, "-N2", "--exclusive", "-o", "cancel.out")
        desk.wait(job, "RUNNING")
        desk.until(lambda: desk.read("pid").strip() != "", "the step")
        desk.say("scancel", job)
        assert desk.state(job) in ("COMPLETING", "CANCELLED")
        assert desk.wait(job) == "CANCELLED"
        assert not alive(int(desk.read("pid")))
        assert desk.detail(job, "ExitCode").startswith("0:")
        text = desk.read("cancel.out")
        assert "script-term" in text
        assert f"*** JOB {job} ON gb300-01 CANCELLED AT " in text


def check_cancel_by_name_hits_others(env: Mapping[str, str], folder: Path) -> None:
    """A cancel by name takes every job of that name, whoever submitted it for whatever."""
    with Desk(env, folder) as desk:
        one = desk.submit("true\n", "--hold", "--job-name", "runner_1")
        other = desk.submit("true\n", "--hold", "--job-name", "runner_1")
        apart = desk.submit("true\n", "--hold", "--job-name", "runner_1-4711-1")
        user = desk.say("id", "-un")
        desk.say("scancel", f"--user={user}", "--name=runner_1")
        assert [desk.state(job) for job in (one, other, apart)] == ["CANCELLED", "CANCELLED", "PENDING"]
        assert desk.run("scancel", "--name=nobody").returncode == 0


def check_signal_script(env: Mapping[str, str], folder: Path) -> None:
    """scancel --batch --signal reaches the script alone, and cancels nothing."""
    with Desk(env, folder) as desk:
        job = desk.submit(
            "trap 'echo usr1; exit 4' USR1\necho set\nwhile true; do sleep 0.1; done\n", "-o", "signal.out"
        )
        desk.written("signal.out", "set")
        desk.say("scancel", "--batch", "--signal=USR1", job)
        assert desk.wait(job) == "FAILED"
        assert (desk.read("signal.out"), desk.detail(job, "ExitCode")) == ("set\nusr1\n", "4:0")
