"""The ground of the other end-to-end tests: the real Slurm, and the plugin that plays Pyxis."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import freezer
from .freezer import Freezer
from .processes import command_of, find_processes, wait_until
from .real_slurm import RealSlurm
from .slurm_conf import ClusterSpec

ROOT = Path(__file__).parents[RealSlurm.__module__.count(".")]
IMAGE = "--container-image=registry/vllm:1"


def submit(slurm: RealSlurm, *argv: str, script: str = "sleep 300") -> str:
    return slurm.run("sbatch", "--parsable", "--output=/dev/null", *argv, f"--wrap={script}").stdout.strip()


def names(pids: list[int]) -> set[str]:
    return {command_of(pid).partition(" ")[0].rpartition("/")[2] for pid in pids}


def every_name() -> set[str]:
    return names(find_processes(lambda _: True))


def step(slurm: RealSlurm, *argv: str, **extra_env: str) -> subprocess.CompletedProcess[str]:
    return slurm.run("srun", "--nodes=1", "--ntasks=1", *argv, check=False, extra_env=extra_env)


def test_two_nodes_with_four_gpus_are_idle(slurm: RealSlurm) -> None:
    assert slurm.node_states() == {"gb300-01": "idle", "gb300-02": "idle"}
    assert slurm.run("sinfo", "--noheader", "--format=%D %G %P").stdout.split() == [
        "2",
        "gpu:b300:4",
        "batch*",
    ]


def test_a_job_is_seen_and_cancelled(slurm: RealSlurm) -> None:
    job = submit(slurm, "--nodes=2", "--exclusive", "--gres=gpu:b300:4", "--job-name=gpubench-x")
    assert slurm.wait_state(job, {"RUNNING"}) == "RUNNING"
    assert slurm.run("squeue", "--noheader", "--name=gpubench-x", "--format=%i %N").stdout.split() == [
        job,
        "gb300-[01-02]",
    ]
    slurm.run("scancel", job)
    assert slurm.wait_state(job, {"CANCELLED"}) == "CANCELLED"
    assert slurm.live_jobs() == []


def test_a_step_is_given_its_nodes_gpus(slurm: RealSlurm) -> None:
    done = step(slurm, "--gres=gpu:b300:4", "printenv", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME")
    assert done.stdout.split() == ["0,1,2,3", "gb300-01"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_failed_node_fails_its_job_and_comes_back(slurm: RealSlurm, crash: bool) -> None:
    job = submit(slurm, "--nodes=2", "--no-requeue")
    slurm.wait_state(job, {"RUNNING"})
    (slurm.crash_node if crash else slurm.fail_node)("gb300-02")
    assert slurm.wait_state(job, {"NODE_FAIL"}) == "NODE_FAIL"
    time.sleep(1)
    assert slurm.node_states()["gb300-02"].rstrip("*") == "down"
    slurm.resume_node("gb300-02")
    slurm.wait_idle()


def test_a_job_outlives_a_controller_that_restarts(slurm: RealSlurm) -> None:
    job = submit(slurm)
    slurm.wait_state(job, {"RUNNING"})
    with slurm.controller_down():
        done = slurm.run("squeue", check=False, seconds=60)
        assert done.returncode == 1
        assert "Unable to contact slurm controller" in done.stderr
    assert slurm.job_state(job) == "RUNNING"


def test_a_submission_that_timed_out_is_queued_all_the_same(slurm: RealSlurm) -> None:
    with slurm.controller_hung():
        done = slurm.run("sbatch", "--parsable", "--job-name=lost", "--wrap=sleep 300", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Socket timed out on send/recv operation" in done.stderr
    found = "squeue", "--noheader", "--name=lost", "--format=%i"
    wait_until(lambda: len(slurm.run(*found).stdout.split()) == 1, 10, "the job nobody was told of")


def test_a_step_waits_for_a_busy_node_unless_it_overlaps(slurm: RealSlurm) -> None:
    job = submit(slurm, "--nodes=2", "--exclusive", script="srun --nodes=2 --ntasks-per-node=1 sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    deadline = time.monotonic() + 20
    while f"{job}.0" not in slurm.run("squeue", "--steps", "--noheader", "--format=%i").stdout.split():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    inside = (f"--jobid={job}", "--nodelist=gb300-02", "printenv", "SLURMD_NODENAME")
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.run("srun", "--nodes=1", "--ntasks=1", *inside, seconds=3)
    assert step(slurm, "--overlap", *inside).stdout == "gb300-02\n"


def test_srun_and_sbatch_list_the_container_options(slurm: RealSlurm) -> None:
    for client in ("srun", "sbatch"):
        text = slurm.run(client, "--help").stdout
        for option in (
            "image",
            "mounts",
            "workdir",
            "name",
            "save",
            "env",
            "mount-home",
            "remap-root",
            "writable",
        ):
            assert f"--container-{option}" in text, client
        assert "--no-container-entrypoint" in text, client


def test_a_file_written_in_the_workdir_appears_on_the_host(slurm: RealSlurm, tmp_path: Path) -> None:
    inside = "/nfs_home/checkout"
    done = step(
        slurm,
        IMAGE,
        f"--container-mounts={tmp_path}:{inside}",
        f"--container-workdir={inside}",
        *("bash", "-c", "pwd; echo served > result.json"),
    )
    assert (done.returncode, done.stdout) == (0, f"{inside}\n"), done.stderr
    assert (tmp_path / "result.json").read_text() == "served\n"
    # The target stood in the step's own namespace.
    assert not Path("/nfs_home").exists()


def test_a_mount_may_be_read_only_and_may_be_a_file(slurm: RealSlurm, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    mounts = f"{tmp_path}:/models/a:ro,{tmp_path}/token:/models/b/token,{tmp_path}:{tmp_path}/c/d:rw+rprivate"
    script = f"cat /models/b/token && touch {tmp_path}/c/d/written && ! touch /models/a/refused"
    done = step(slurm, IMAGE, f"--container-mounts={mounts}", "bash", "-c", script)
    assert (done.returncode, done.stdout) == (0, "secret"), done.stderr
    assert "Read-only file system" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["token", "written"]


def test_a_workdir_that_is_not_mounted_fails_the_step(slurm: RealSlurm, tmp_path: Path) -> None:
    slurm.set_hidden([tmp_path])
    for workdir in (tmp_path / "checkout", Path("/nfs_home/nowhere")):
        done = step(slurm, IMAGE, f"--container-workdir={workdir}", "true")
        assert done.returncode != 0
        assert f"couldn't chdir to {workdir}" in done.stderr


def test_a_missing_mount_source_fails_the_step(slurm: RealSlurm, tmp_path: Path) -> None:
    done = step(slurm, IMAGE, f"--container-mounts={tmp_path}/no:/data", "true")
    assert done.returncode != 0
    assert f"mount source {tmp_path}/no: No such file or directory" in done.stderr


def test_without_a_workdir_a_container_starts_in_its_images(slurm: RealSlurm, tmp_path: Path) -> None:
    assert step(slurm, IMAGE, f"--chdir={tmp_path}", "pwd").stdout == "/\n"
    assert step(slurm, f"--chdir={tmp_path}", "pwd").stdout == f"{tmp_path}\n"


def test_the_images_environment_wins_unless_container_env_names_the_variable(slurm: RealSlurm) -> None:
    slurm.set_image_env({"RATE": "image", "ONLY_IMAGE": "image"})

    def seen(*options: str) -> list[str]:
        script = "echo $RATE $ONLY_IMAGE $ONLY_JOB"
        done = step(slurm, *options, "bash", "-c", script, RATE="job", ONLY_JOB="job")
        return done.stdout.split()

    assert seen() == ["job", "job"]
    assert seen(IMAGE) == ["image", "image", "job"]
    assert seen(IMAGE, "--container-env=OTHER,RATE") == ["job", "image", "job"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--container-image="], "--container-image: an argument is wanted"),
        ([IMAGE, "--container-mounts=/a"], "a mount is SRC:DST[:FLAGS], got '/a'"),
        ([IMAGE, "--container-mounts=a:/b"], "both sides of a mount are absolute paths, got 'a:/b'"),
        ([IMAGE, "--container-mounts=/a:/b,/c:d"], "both sides of a mount are absolute paths, got '/c:d'"),
        ([IMAGE, "--container-mounts=/a:/b:rx"], "unknown mount flag 'rx' for '/a:/b'"),
        ([IMAGE, "--container-workdir=out"], "--container-workdir: an absolute path is wanted"),
        ([IMAGE, "--container-env=A,1B"], "--container-env: a list of variable names is wanted"),
        ([IMAGE, "--container-remap-root", "--no-container-remap-root"], "its opposite was given too"),
        (["--container-mounts=/a:/b"], "does nothing without --container-image"),
    ],
)
def test_a_malformed_container_option_stops_srun_and_sbatch(
    slurm: RealSlurm, options: list[str], complaint: str
) -> None:
    for argv in (["srun", *options, "true"], ["sbatch", *options, "--wrap=true"]):
        done = slurm.run(*argv, check=False)
        assert done.returncode != 0, argv
        assert complaint in done.stderr
    assert slurm.live_jobs() == []


def test_take_down_leaves_no_process(tmp_path: Path) -> None:
    # A process that ignores SIGTERM, and an orphan that nothing but its control group ties to its step.
    orphan = "env -i setsid bash -c 'exec -a renamed-orphan sleep 300'"
    stubborn = f"trap '' TERM; ({orphan} &) ; while :; do sleep 1; done"
    with RealSlurm(tmp_path / "s", ClusterSpec(kill_wait_s=1)) as slurm:
        job = submit(slurm, "--nodes=2", script=f"srun --ntasks-per-node=1 bash -c {shlex.quote(stubborn)}")
        slurm.wait_state(job, {"RUNNING"})
        wait_until(lambda: "renamed-orphan" in names(slurm.processes()), 10, "the orphans")
        assert {"munged", "slurmctld", "slurmd", "slurmstepd:"} <= names(slurm.processes())
    assert slurm.processes() == []
    assert "renamed-orphan" not in every_name()


def test_a_cancelled_job_takes_its_orphans_along(slurm: RealSlurm) -> None:
    orphan = "(setsid bash -c 'exec -a cancelled-orphan sleep 300' &); sleep 300"
    job = submit(slurm, script=f"srun bash -c {shlex.quote(orphan)}")
    wait_until(lambda: "cancelled-orphan" in names(slurm.job_processes("gb300-01")), 10, "the orphan")
    slurm.run("scancel", job)
    slurm.wait_state(job, {"CANCELLED"})
    wait_until(lambda: slurm.job_processes() == [], 10, "the end of its processes")
    assert "cancelled-orphan" not in every_name()


def test_a_cluster_whose_test_process_was_killed_is_cleaned_up(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from {RealSlurm.__module__} import RealSlurm
slurm = RealSlurm(Path({str(tmp_path)!r}) / "s")
slurm.start()
slurm.run("sbatch", "--output=/dev/null", "--wrap=bash -c 'exec -a left-behind sleep 300'")
print("up", flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as test_process:
        try:
            assert test_process.stdout is not None
            assert test_process.stdout.readline() == "up\n"
            wait_until(lambda: "left-behind" in every_name(), 10, "the job")
        finally:
            test_process.kill()
    conf = f"{tmp_path}/s/slurm.conf"
    wait_until(lambda: not find_processes(lambda pid: conf in command_of(pid)), 10, "the end of its daemons")
    assert "left-behind" in every_name()
    Freezer(tmp_path / "next").remove()
    assert "left-behind" not in every_name()


def test_the_freezer_is_mounted_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "MOUNTED", tmp_path / "no")
    group = Freezer(tmp_path / "cgroup")
    assert (tmp_path / "cgroup/freezer/cgroup.procs").read_text() == ""
    group.remove()
    assert list((tmp_path / "cgroup/hierarchy").iterdir()) == []


def test_a_preempted_job_is_requeued(tmp_path: Path) -> None:
    spec = ClusterSpec(
        options={"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
        extra_lines=("PartitionName=urgent Nodes=gb300-[01-02] PriorityTier=10 State=UP",),
    )
    with RealSlurm(tmp_path / "s", spec) as slurm:
        job = submit(slurm, "--nodes=2", "--exclusive", "--requeue")
        slurm.wait_state(job, {"RUNNING"})
        urgent = submit(slurm, "--nodes=2", "--exclusive", "--partition=urgent")
        slurm.wait_state(urgent, {"RUNNING"}, seconds=60)
        assert slurm.job_state(job) == "PENDING"
        assert " Restarts=1 " in slurm.run("scontrol", "--oneliner", "show", "job", job).stdout


def test_a_finished_job_is_forgotten(tmp_path: Path) -> None:
    with RealSlurm(tmp_path / "s", ClusterSpec(min_job_age_s=2)) as slurm:
        job = submit(slurm, script="true")
        assert slurm.wait_state(job, {"COMPLETED"}) == "COMPLETED"
        assert slurm.wait_state(job, {None}, seconds=90) is None
        done = slurm.run("squeue", f"--jobs={job}", check=False)
        assert (done.returncode, "Invalid job id specified" in done.stderr) == (1, True)
