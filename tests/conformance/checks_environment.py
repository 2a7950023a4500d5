"""What jobs and steps find: variables, GPUs, folders, files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mock.slurm_desk import Desk

BOTH = ("-N2", "--exclusive", "--gres=gpu:b300:4")


def _pairs(text: str) -> dict[str, str]:
    """``NAME=value`` lines."""
    return {line.partition("=")[0]: line.partition("=")[2] for line in text.splitlines()}


def _assert_has(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    assert {key: found.get(key) for key in wanted} == dict(wanted)


def check_whole_nodes(env: Mapping[str, str], folder: Path) -> None:
    """The variables of a job that has its nodes to itself, and of its steps."""
    with Desk(env, folder) as desk:
        body = "env > batch\nsrun --overlap -N2 --ntasks-per-node=1 bash -c 'env > step.$SLURM_PROCID'\n"
        job = desk.submit(body, *BOTH, "-o", "whole.out", "--job-name=whole")
        assert desk.wait(job) == "COMPLETED"
        common = {
            "CUDA_VISIBLE_DEVICES": "0,1,2,3",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NAME": "whole",
            "SLURM_JOB_GPUS": "0,1,2,3",
            "SLURM_JOB_NODELIST": "gb300-[01-02]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_CPUS_PER_NODE": "72(x2)",
            "SLURM_CPUS_ON_NODE": "72",
            "SLURM_CLUSTER_NAME": "gpubench",
            "SLURM_SUBMIT_DIR": str(folder),
            "HOSTNAME": "gb300-01",
            "ENVIRONMENT": "BATCH",
        }
        batch = _pairs(desk.read("batch"))
        _assert_has(batch, {**common, "SLURM_TASKS_PER_NODE": "72(x2)", "SLURMD_NODENAME": "gb300-01"})
        assert "SLURM_NTASKS" not in batch
        for rank, node in enumerate(("gb300-01", "gb300-02")):
            own = {
                "SLURM_NTASKS": "2",
                "SLURM_NTASKS_PER_NODE": "1",
                "SLURM_TASKS_PER_NODE": "1(x2)",
                "SLURM_STEP_GPUS": "0,1,2,3",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "gb300-[01-02]",
                "SLURM_PROCID": str(rank),
                "SLURM_NODEID": str(rank),
                "SLURM_LOCALID": "0",
                "SLURMD_NODENAME": node,
            }
            _assert_has(_pairs(desk.read(f"step.{rank}")), {**common, **own})


def check_part_of_a_node(env: Mapping[str, str], folder: Path) -> None:
    """The variables of a job that asked for tasks, CPUs and memory."""
    with Desk(env, folder) as desk:
        job = desk.submit("env > batch\n", "-n3", "-c2", "--mem=10G", "-A", "acct", "-o", "part.out")
        assert desk.say("squeue", "-h", "-t", "all", "-j", job, "-o", "%C") == "6"
        assert desk.wait(job) == "COMPLETED"
        wanted = {
            "SLURM_NTASKS": "3",
            "SLURM_TASKS_PER_NODE": "3",
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_CPUS_ON_NODE": "6",
            "SLURM_JOB_CPUS_PER_NODE": "6",
            "SLURM_MEM_PER_NODE": "10240",
            "SLURM_JOB_ACCOUNT": "acct",
        }
        batch = _pairs(desk.read("batch"))
        _assert_has(batch, wanted)
        assert (
            not {"SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"} & batch.keys() - env.keys()
        )


def check_gpus_are_given_out(env: Mapping[str, str], folder: Path) -> None:
    """Jobs on one node get different GPUs; what does not fit goes to another node, or waits."""
    with Desk(env, folder) as desk:
        body = "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS > gpus.$SLURM_JOB_ID\nsleep 300\n"
        requests = ("--gres=gpu:2", "--gres=gpu:b300:2", "--gpus=4")
        first, second, third = (desk.submit(body, option, "-o", "gpus.out") for option in requests)
        for job, numbers in ((first, "0,1 0,1"), (second, "2,3 2,3"), (third, "0,1,2,3 0,1,2,3")):
            desk.wait(job, "RUNNING")
            desk.written(f"gpus.{job}", f"{numbers}\n")
        assert desk.say("squeue", "-h", "-j", third, "-o", "%N") == "gb300-02"
        fourth = desk.submit(body, "--gpus-per-node=1", "-o", "gpus.out")
        desk.until(lambda: desk.say("squeue", "-h", "-j", fourth, "-o", "%r") == "Resources", "Resources")
        desk.say("scancel", first)
        desk.wait(fourth, "RUNNING")
        desk.written(f"gpus.{fourth}", "0 0\n")


def check_gpus_of_steps(env: Mapping[str, str], folder: Path) -> None:
    """All GPUs of the job, a number of them, none, or some for each task; the caller's list counts for
    nothing."""
    with Desk(env, folder) as desk:
        job = desk.hold_nodes()

        def seen(*options: str, caller: str | None = None) -> list[str]:
            script = "echo =$CUDA_VISIBLE_DEVICES=$SLURM_STEP_GPUS"
            words = ("srun", f"--jobid={job}", "--overlap", "-N1", "-w", "gb300-02", *options)
            extra = {"CUDA_VISIBLE_DEVICES": caller} if caller else None
            return sorted(desk.run(*words, "bash", "-c", script, env=extra).stdout.split())

        assert seen("-n1") == ["=0,1,2,3=0,1,2,3"]
        assert seen("-n1", caller="7") == ["=0,1,2,3=0,1,2,3"]
        assert seen("-n1", "--gres=gpu:2") == ["=0,1=0,1"]
        assert seen("-n1", "--gres=gpu:b300:1") == ["=0=0"]
        assert seen("-n1", "--gpus-per-node=2") == ["=0,1=0,1"]
        assert seen("-n1", "--gres=none") == ["=="]
        assert [line.split("=")[1] for line in seen("-n2", "--gpus-per-task=2")] == ["0,1", "2,3"]


def check_export_none(env: Mapping[str, str], folder: Path) -> None:
    """A job without the caller's variables has a login's PATH; a step without them has none at all."""
    with Desk(env, folder) as desk:
        body = 'echo "$MARK|${PATH:+path}|$SLURM_EXPORT_ENV"\nsrun -N1 -n1 true; echo "srun $?"\n'
        job = desk.submit(body, "--export=NONE", "-o", "none.out", env={"MARK": "1"})
        desk.wait(job)
        text = desk.read("none.out")
        assert text.startswith("|path|NONE\n")
        assert text.endswith("srun 2\n")  # it takes over the job's --export
        assert "execve(): true: No such file or directory" in text
        held = desk.hold_nodes()
        done = desk.step(held, "-N1", "-n1", "--export=NONE", "true")
        assert (done.returncode, "execve(): true: No such file or directory" in done.stderr) == (2, True)
        assert desk.step(held, "-N1", "-n1", "--export=NONE", "/bin/true").returncode == 0
        assert desk.step(held, "-N1", "-n1", "--export=MARK=2", "true").returncode == 2
        done = desk.step(held, "-N1", "-n1", "--export=PATH,MARK=2", "bash", "-c", "echo $MARK")
        assert done.stdout == "2\n"


def check_folders(env: Mapping[str, str], folder: Path) -> None:
    """--chdir, relative to where sbatch runs; the folder of the submission stays known."""
    with Desk(env, folder) as desk:
        (folder / "sub").mkdir()
        inside = desk.submit("pwd\necho $SLURM_SUBMIT_DIR\n", "-D", "sub", "-o", "here.out")
        beside = desk.submit("pwd\n", f"--chdir={folder}/sub", "-o", f"{folder}/there.out")
        astray = desk.submit("pwd\n", "-D", "nowhere", "-o", f"{folder}/astray.out")
        unwritten = desk.submit("pwd\n", "-o", "nowhere/out")
        assert [desk.wait(job) for job in (inside, beside, astray, unwritten)] == [
            "COMPLETED",
            "COMPLETED",
            "COMPLETED",
            "FAILED",
        ]
        assert desk.read("sub/here.out") == f"{folder}/sub\n{folder}\n"
        assert desk.read("there.out") == f"{folder}/sub\n"
        gone = f"couldn't chdir to `{folder}/nowhere': No such file or directory: going to /tmp instead"
        assert desk.read("astray.out").count(gone) == 2
        assert desk.read("astray.out").endswith("\n/tmp\n")
        assert desk.detail(unwritten, "Reason") == "JobLaunchFailure"
        assert desk.detail(unwritten, "ExitCode") == "0:53"
        job = desk.hold_nodes()
        done = desk.step(job, "-N1", "-n1", "--chdir=/nonexistent", "pwd")
        assert (done.returncode, done.stdout) == (0, "/tmp\n")
        assert "couldn't chdir to `/nonexistent'" in done.stderr


def check_files(env: Mapping[str, str], folder: Path) -> None:
    """Names of output files, two streams, appending, input."""
    with Desk(env, folder) as desk:
        job = desk.submit("true\n", "--job-name=n-x", "-o", "o.%j.%x.%A.%a.%J.%s.%t.%n.%%.%5j.%b")
        desk.wait(job)
        assert (folder / f"o.{job}.n-x.{job}.4294967294.{job}.batch.0.0.%.{job:0>5}.%b").exists()
        both = "echo out; echo err >&2\n"
        desk.wait(desk.submit(both, "-o", "one", "-e", "two"))
        assert (desk.read("one"), desk.read("two")) == ("out\n", "err\n")
        desk.wait(desk.submit(both, "-o", "one", "--open-mode=append"))
        assert desk.read("one") == "out\nout\nerr\n"
        desk.wait(desk.submit(both, "-o", "one"))
        assert desk.read("one") == "out\nerr\n"
        job = desk.submit("echo default\n")
        desk.wait(job)
        assert desk.read(f"slurm-{job}.out") == "default\n"
        desk.wait(desk.submit("true\n", "-o", "none"))
        assert not (folder / "none").exists()
        (folder / "source").write_text("data\n")
        desk.wait(desk.submit("cat\n", "-i", "source", "-o", "copy"))
        assert desk.read("copy") == "data\n"
        desk.wait(desk.submit("cat; echo end\n", "-o", "nothing"))
        assert desk.read("nothing") == "end\n"
        lost = desk.submit("cat\n", "-i", "missing")
        assert desk.wait(lost) == "FAILED"
        held = desk.hold_nodes()
        assert desk.step(held, "-N1", "-n1", "--input=source", "cat").stdout == "data\n"
