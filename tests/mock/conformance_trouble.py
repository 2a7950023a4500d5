"""Requeues, failing nodes, limits, and what is told of the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .slurm_desk import Desk, alive


def check_requeue(env: Mapping[str, str], folder: Path) -> None:
    """A requeued job waits under its id with a begin time and a count; --no-requeue forbids it."""
    with Desk(env, folder) as desk:
        firm = desk.submit("sleep 300\n", "--no-requeue", "-o", "firm.out")
        soft = desk.submit("echo restarts=$SLURM_RESTART_COUNT\nsleep 300\n", "-o", "soft.out")
        desk.wait(firm, "RUNNING")
        desk.wait(soft, "RUNNING")
        done = desk.run("scontrol", "requeue", firm)
        assert (done.returncode, done.stderr) == (
            1,
            f"Requested operation is presently disabled for job {firm}\n",
        )
        assert desk.state(firm) == "RUNNING"
        desk.written("soft.out", "restarts=\n")
        desk.say("scontrol", "requeue", soft)
        desk.until(
            lambda: desk.say("squeue", "-h", "-j", soft, "-o", "%T %r") == "PENDING BeginTime", "BeginTime"
        )
        assert desk.detail(soft, "Restarts") == "1"


def check_node_failure(env: Mapping[str, str], folder: Path) -> None:
    """A node that goes down ends its job with NODE_FAIL; srun says so, and exits 0."""
    with Desk(env, folder) as desk:
        job = desk.submit("sleep 300\n", "--no-requeue", "-w", "gb300-02", "-o", "down.out")
        desk.wait(job, "RUNNING")
        step = desk.start("srun", f"--jobid={job}", "--overlap", "bash", "-c", "echo $$ > pid; sleep 300")
        desk.until(lambda: desk.read("pid").strip() != "", "the task")
        desk.say("scontrol", "update", "nodename=gb300-02", "state=down", "reason=test")
        try:
            assert desk.wait(job) == "NODE_FAIL"
            assert desk.detail(job, "Reason") == "NodeDown"
            assert (
                desk.say("squeue", "-h", "-t", "all", "-j", job, "-o", "%r|%R|%N")
                == "NodeDown|gb300-02|gb300-02"
            )
            _, err = step.communicate(timeout=20)
            assert "srun: error: Node failure on gb300-02" in err
            assert step.returncode == 0
            desk.until(lambda: not alive(int(desk.read("pid"))), "the task's end")
            assert "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***" in desk.read("down.out")
        finally:
            desk.run("scontrol", "update", "nodename=gb300-02", "state=resume")
            desk.until(
                lambda: "idle" in desk.say("sinfo", "-h", "-n", "gb300-02", "-o", "%t"), "an idle node"
            )


def check_drained_nodes(env: Mapping[str, str], folder: Path) -> None:
    """A job that needs a drained node waits; the reason has commas and blanks."""
    with Desk(env, folder) as desk:
        desk.say("scontrol", "update", "nodename=gb300-02", "state=drain", "reason=disk, fan")
        try:
            job = desk.submit("true\n", "-N2", "-o", "drained.out")
            reason = ["%r"]
            desk.until(
                lambda: (
                    ("DOWN, DRAINED" in desk.say("squeue", "-h", "-j", job, "-o", reason[0]))
                    or ("ReqNodeNotAvail" in desk.say("squeue", "-h", "-j", job, "-o", reason[0]))
                ),
                "a reason",
            )
            assert "disk, fan" in desk.say("sinfo", "-R", "-h")
        finally:
            desk.say("scontrol", "update", "nodename=gb300-02", "state=resume")
        assert desk.wait(job) == "COMPLETED"


def check_accounting_is_off(env: Mapping[str, str], folder: Path) -> None:
    """sacct on a cluster without accounting."""
    with Desk(env, folder) as desk:
        done = desk.run("sacct", "-j", "1", "-P", "-n", "-X", "--format=JobID,State")
        assert (done.returncode, done.stdout) == (1, "")
        assert "Slurm accounting storage is disabled" in done.stderr


def check_nodes_are_told(env: Mapping[str, str], folder: Path) -> None:
    """Names, addresses, resources, versions."""
    with Desk(env, folder) as desk:
        assert desk.say("scontrol", "show", "hostnames", "gb300-[01-02],x").split() == [
            "gb300-01",
            "gb300-02",
            "x",
        ]
        node = desk.say("scontrol", "-o", "show", "node", "gb300-01")
        for word in (
            "NodeName=gb300-01",
            "NodeAddr=127.0.0.1",
            "Gres=gpu:b300:4",
            "State=IDLE",
            "Partitions=batch",
        ):
            assert word in node.split(), (word, node)
        done = desk.run("scontrol", "show", "node", "nonode")
        assert (done.returncode, done.stdout.strip()) == (1, "Node nonode not found")
        assert re.search(r"is UP", desk.say("scontrol", "ping"))
        for command in ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol"):
            assert re.fullmatch(r"slurm(-wlm)? \d+\.\d+\.\d+\S*", desk.say(command, "--version")), command
        assert (
            desk.say("sinfo", "-h", "-o", "%P %a %l %D %t %N %G")
            == "batch* up 4:00:00 2 idle gb300-[01-02] gpu:b300:4"
        )
        assert desk.say("sinfo", "-h", "-N", "-o", "%N %T").splitlines() == ["gb300-01 idle", "gb300-02 idle"]
        job = desk.hold_nodes()
        assert desk.say("sinfo", "-h", "-o", "%t %N") == "alloc gb300-[01-02]"
        detail = desk.say("scontrol", "show", "job", job)
        assert f"JobId={job} JobName=job.sh" in detail
        assert "TresPerNode=gres:gpu:b300:4" in detail


def check_time_limit(env: Mapping[str, str], folder: Path) -> None:
    """A job at its limit ends with TIMEOUT; limits are whole minutes, rounded up."""
    with Desk(env, folder, patience=150) as desk:
        job = desk.submit(
            "trap 'echo term' TERM\necho on\nwhile true; do sleep 0.1; done\n",
            "-t",
            "0:02",
            "-o",
            "limit.out",
        )
        assert desk.say("squeue", "-h", "-j", job, "-o", "%l") == "1:00"
        assert desk.wait(job) == "TIMEOUT"
        assert desk.detail(job, "Reason") == "TimeLimit"
        text = desk.read("limit.out")
        assert f"*** JOB {job} ON gb300-01 CANCELLED AT " in text
        assert "DUE TO TIME LIMIT ***" in text


def check_purge(env: Mapping[str, str], folder: Path) -> None:
    """A finished job is forgotten after MinJobAge: nobody knows its id any more."""
    with Desk(env, folder, patience=150) as desk:
        job = desk.submit("true\n", "-o", "purge.out")
        desk.wait(job)
        desk.until(lambda: desk.state(job) == "GONE", "the purge")
        assert desk.run("scontrol", "show", "job", job).returncode == 1
        assert desk.run("scancel", job).returncode == 0
