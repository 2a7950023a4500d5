"""What goes wrong in Slurm, on demand."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pytest_gpubench.mock import (
    CancelledExternally,
    ControllerDown,
    MockCluster,
    NodeFails,
    OutOfMemory,
    Preempted,
    Requeued,
    SbatchAnswers,
    SbatchHangsButQueues,
    SbatchRefuses,
    SlowQueue,
    SqueueTimesOut,
    StuckCompleting,
    TimeLimit,
)

from .jobs import Site, until


def test_slow_queue_gives_its_reason_whole(site: Site) -> None:
    reason = "ReqNodeNotAvail, UnavailableNodes:gb-a[01-04]"
    site.cluster.inject(SlowQueue(3600.0, reason))
    job = site.submit("true\n")
    row = site.run("squeue", "-h", "-j", str(job), "-o", "%T|%r|%R").stdout
    assert row == f"PENDING|{reason}|({reason})\n"
    site.cluster.clear(SlowQueue)
    assert site.cluster.wait(job).state == "COMPLETED"
    site.cluster.inject(SlowQueue(0.5))
    again = site.cluster.wait(site.submit("true\n"))
    assert again.start - again.submit >= 0.5


def test_sbatch_refuses(site: Site) -> None:
    site.cluster.inject(SbatchRefuses("sbatch: error: AssocGrpGRES", match="mine"))
    done = site.run("sbatch", "--job-name=mine", "--wrap=true")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sbatch: error: AssocGrpGRES\n")
    assert site.cluster.jobs() == []
    assert site.run("sbatch", "--job-name=other", "--wrap=true").returncode == 0


def test_sbatch_hangs_but_queues(site: Site) -> None:
    site.cluster.inject(SbatchHangsButQueues())
    command = ["sbatch", "--parsable", "--job-name=lost", "--hold", "--wrap=true"]
    hung = subprocess.Popen(command, env=site.cluster.env(), stdout=subprocess.PIPE, cwd=site.folder)
    until(lambda: site.run("squeue", "-h", "-n", "lost", "-o", "%i").stdout == "1\n", "the job")
    assert hung.poll() is None
    hung.kill()
    out, _ = hung.communicate()
    assert out == b""
    assert site.cluster.job(1).state == "PENDING"


def test_sbatch_answers_in_other_words(site: Site) -> None:
    site.cluster.inject(SbatchAnswers("site-filter 2 - using account perf\n{id};gbclu\n"))
    assert (
        site.run("sbatch", "--parsable", "--wrap=true").stdout
        == "site-filter 2 - using account perf\n1;gbclu\n"
    )


def test_squeue_times_out_for_some_calls(site: Site) -> None:
    job = str(site.submit("true\n", "--hold"))
    site.cluster.inject(SqueueTimesOut(exit_code=0, calls=2))
    answers = [site.run("squeue", "-h", "-j", job, "-o", "%T") for _ in range(3)]
    timed_out = "slurm_load_jobs error: Socket timed out on send/recv operation\n"
    assert [done.stderr for done in answers] == [timed_out, timed_out, ""]
    assert [done.stdout for done in answers] == ["", "", "PENDING\n"]
    assert [done.returncode for done in answers] == [0, 0, 0]


def test_controller_down_leaves_jobs_running(site: Site) -> None:
    job = site.hold()
    site.cluster.inject(ControllerDown())
    for argv in (
        ["squeue"],
        ["sbatch", "--wrap=true"],
        ["scancel", str(job)],
        ["sinfo"],
    ):
        done = site.run(*argv)
        assert done.returncode == (8 if argv[0] == "scancel" else 1), argv
        assert "Unable to contact slurm controller (connect failure)" in done.stderr, argv
    assert "is DOWN" in site.run("scontrol", "ping").stdout
    assert site.run("scontrol", "show", "hostnames", "a[1-2]").stdout == "a1\na2\n"
    site.cluster.clear()
    site.cluster.inject(ControllerDown(seconds=0.2))
    until(lambda: site.run("squeue", "-h", "-o", "%i %T").stdout == f"{job} RUNNING\n", "the controller")


def test_cancelled_from_outside(site: Site) -> None:
    site.cluster.inject(CancelledExternally(seconds=0.2, uid=4711))
    job = site.submit("sleep 300\n")
    assert site.cluster.wait(job).state == "CANCELLED"
    assert site.cluster.job(job).order_text == "4711"
    assert "CANCELLED AT" in (site.folder / f"slurm-{job}.out").read_text()


def test_cancelled_while_pending(site: Site) -> None:
    site.cluster.inject(CancelledExternally(phase="pending", seconds=0.2))
    job = site.submit("true\n", "--hold")
    assert site.cluster.wait(job).state == "CANCELLED"
    by_hand = site.submit("true\n", "--hold", "--job-name=b")
    site.cluster.clear()
    site.cluster.cancel_externally(by_hand)
    assert site.cluster.wait(by_hand).state == "CANCELLED"


def test_requeued_once_under_the_same_id(site: Site) -> None:
    site.cluster.inject(Requeued(seconds=0.2))
    job = site.submit("echo restart $SLURM_RESTART_COUNT\nsleep 1\n")
    found = site.cluster.wait(job)
    assert (found.state, found.restarts) == ("COMPLETED", 1)
    assert (site.folder / f"slurm-{job}.out").read_text() == "restart 1\n"


def test_requeue_by_the_administrator(site: Site) -> None:
    job = site.hold()
    site.cluster.requeue(job)
    until(lambda: site.cluster.job(job).restarts == 1, "the restart")
    site.cluster.wait(job, "RUNNING")


def test_preempted(site: Site) -> None:
    site.cluster.inject(Preempted(seconds=0.1))
    job = site.submit("sleep 300\n")
    assert site.cluster.wait(job).state == "PREEMPTED"
    assert "DUE TO PREEMPTION" in (site.folder / f"slurm-{job}.out").read_text()


def test_node_fails(site: Site) -> None:
    site.cluster.inject(NodeFails("1", seconds=0.2))
    job = site.submit("sleep 300\n", "--no-requeue")
    found = site.cluster.wait(job)
    assert (found.state, found.reason) == ("NODE_FAIL", "NodeDown")
    assert site.run("sinfo", "-h", "-N", "-o", "%N %T").stdout == "gb300-01 idle\ngb300-02 down\n"
    again = site.submit("true\n")
    until(lambda: "DOWN, DRAINED" in site.cluster.job(again).reason, "a reason")
    site.cluster.restore_node("gb300-02")
    assert site.cluster.wait(again).state == "COMPLETED"


def test_node_fails_by_hand_and_the_job_comes_back(site: Site) -> None:
    job = site.hold(nodes=1)
    site.cluster.fail_node("gb300-01")
    until(lambda: site.cluster.job(job).restarts == 1, "the requeue")
    assert site.cluster.wait(job, "RUNNING").nodes == ["gb300-02"]


def test_time_limit(site: Site) -> None:
    site.cluster.inject(TimeLimit(0.3))
    job = site.submit("sleep 300\n")
    found = site.cluster.wait(job)
    assert (found.state, found.reason) == ("TIMEOUT", "TimeLimit")


def test_out_of_memory(site: Site) -> None:
    site.cluster.inject(OutOfMemory(seconds=0.1))
    job = site.submit("sleep 300\n")
    assert site.cluster.wait(job).state == "OUT_OF_MEMORY"
    assert "oom_kill event" in (site.folder / f"slurm-{job}.out").read_text()


def test_stuck_completing_holds_the_nodes(site: Site) -> None:
    site.cluster.inject(StuckCompleting(2.0))
    job = site.hold()
    after = site.submit("true\n")
    site.run("scancel", str(job))
    both = f"{job},{after}"
    rows = site.run("squeue", "-h", "-j", both, "-o", "%i %t %r").stdout.splitlines()
    assert sorted(rows) == [f"{job} CG None", f"{after} PD Resources"]
    ended = site.cluster.wait(job).end
    assert site.cluster.wait(after).start - ended >= 1.9


def test_accounting_remembers_what_the_controller_forgot(site: Site) -> None:
    folder = site.folder.parent / "accounted"
    with MockCluster(folder, accounting=True, min_job_age=0.2) as cluster:
        other = Site(cluster, site.folder)
        done = other.submit("exit 3\n", "--job-name=acc")
        cluster.wait(done)
        cut = other.submit("sleep 300\n")
        cluster.wait(cut, "RUNNING")
        cluster.cancel_externally(cut, uid=1234)
        cluster.wait(cut)
        until(lambda: other.run("squeue", "-j", str(done)).returncode == 1, "the purge")
        words = ["sacct", "-j", f"{done},{cut}", "-X", "-n", "-P", "--format=JobID,State,ExitCode,NodeList"]
        assert other.run(*words).stdout.splitlines() == [
            f"{done}|FAILED|3:0|gb300-[01-02]",
            f"{cut}|CANCELLED by 1234|0:15|gb300-[01-02]",
        ]
        assert (
            f"{done}.batch|batch"
            in other.run("sacct", "-j", str(done), "-n", "-P", "--format=JobID,JobName").stdout
        )


def test_a_signal_before_the_time_limit(tmp_path: Path) -> None:
    with MockCluster(tmp_path / "cluster", minute=2.0, kill_wait=0.2) as cluster:
        site = Site(cluster, tmp_path)
        body = "trap 'echo warned; exit 0' USR1\nwhile true; do sleep 0.05; done\n"
        job = site.submit(body, "-t", "1", "--signal=B:USR1@45")
        found = cluster.wait(job)
        assert (found.state, (tmp_path / f"slurm-{job}.out").read_text()) == ("COMPLETED", "warned\n")
        assert 0.4 < found.end - found.start < 1.8
        assert "Invalid --signal specification" in site.run("sbatch", "--signal=FOO", "job.sh").stderr


def test_sbatch_waits(site: Site) -> None:
    done = site.run("sbatch", "--parsable", "--wait", "--wrap", "sleep 0.3; exit 4")
    assert (done.returncode, done.stdout, site.cluster.job(1).state) == (4, "1\n", "FAILED")


def test_what_is_not_modelled_is_refused(site: Site) -> None:
    for words in (["--array=1-3"], ["--dependency=afterok:1"]):
        done = site.run("sbatch", *words, "--wrap=true")
        assert (done.returncode, "is not modelled by the mocked Slurm" in done.stderr) == (1, True)
    assert site.cluster.jobs() == []
    assert "Invalid feature specification" in site.run("sbatch", "-C", "h100", "--wrap=true").stderr


def test_a_job_holds_no_file_of_its_submitter(site: Site) -> None:
    """A lock of the calling shell is free again when that shell has ended."""
    lock = site.folder / "lock"
    script = f"exec 9>{lock}; flock 9; sbatch --wrap 'sleep 300'; srun --jobid=1 --overlap -n1 -N1 true"
    assert site.run("bash", "-c", script).returncode == 0
    assert site.run("flock", "--nonblock", str(lock), "true").returncode == 0
    assert site.cluster.job(1).state == "RUNNING"


def test_srun_takes_an_allocation_of_its_own(site: Site) -> None:
    done = site.run(
        "srun", "-N1", "-n1", "--gres=gpu:b300:4", "bash", "-c", "echo $SLURM_JOB_ID $SLURMD_NODENAME"
    )
    assert (done.returncode, done.stdout) == (0, "1 gb300-01\n")
    assert site.cluster.wait(1).state == "COMPLETED"
    holder = site.hold()
    waiting = subprocess.Popen(
        ["srun", "-N2", "true"], env=site.cluster.env(), cwd=site.folder, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "srun: job 3 queued and waiting for resources\n"
    site.run("scancel", str(holder))
    assert waiting.wait(timeout=10) == 0
    assert waiting.stderr.read() == "srun: job 3 has been allocated resources\n"
    waiting.stderr.close()
    assert site.cluster.wait(3).state == "COMPLETED"
    refused = site.run("srun", "--gres=gpu:h100:1", "true")
    assert "Unable to allocate resources: Requested node configuration is not available" in refused.stderr
