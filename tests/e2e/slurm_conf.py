"""The texts of slurm.conf, gres.conf and plugstack.conf for a Slurm that lives in one folder."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ClusterSpec:
    """What a test cluster looks like; the defaults are two nodes of a GB300 rack in the partition `batch`."""

    nodes: tuple[str, ...] = ("gb300-01", "gb300-02")
    gpus: int = 4
    gpu_type: str = "b300"
    cpus: int = 72
    memory_mb: int = 900_000
    partition: str = "batch"
    default_time: str = "00:30:00"
    max_time: str = "04:00:00"
    kill_wait_s: int = 5
    """Seconds between SIGTERM and SIGKILL of a cancelled job's processes (Slurm's own default is 30)."""
    min_job_age_s: int = 300
    """Seconds until a finished job is forgotten and its id is unknown (Slurm's default is 300)."""
    slurmd_timeout_s: int = 60
    """Seconds of silence until a node is down; too short, and a busy machine loses nodes by itself."""
    pyxis: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf keys to set or replace, e.g. {"PreemptMode": "REQUEUE"}."""
    extra_lines: tuple[str, ...] = ()
    """Whole slurm.conf lines to add, e.g. a second partition."""

    @property
    def gres(self) -> str:
        """What each node offers, as `--gres` asks for it."""
        return f"gpu:{self.gpu_type}:{self.gpus}"


@dataclass(frozen=True)
class ClusterPorts:
    """The TCP ports of one controller and of its nodes, in the order of the nodes."""

    controller: int
    nodes: tuple[int, ...]


def free_ports(count: int) -> tuple[int, ...]:
    """Finds TCP ports that are free now, below the range that the kernel gives to outgoing connections."""
    found: list[int] = []
    for port in random.sample(range(20_000, 30_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return tuple(found)
    raise RuntimeError(f"no {count} free ports between 20000 and 30000")


def pick_ports(spec: ClusterSpec) -> ClusterPorts:
    """Finds free ports for the controller and the nodes of a cluster."""
    controller, *nodes = free_ports(1 + len(spec.nodes))
    return ClusterPorts(controller, tuple(nodes))


def controller_host() -> str:
    """The name that slurmctld compares with its own: the host name up to the first dot."""
    return socket.gethostname().split(".")[0]


def slurm_conf(spec: ClusterSpec, ports: ClusterPorts, folder: Path) -> str:
    """Renders slurm.conf; all that the daemons write goes below `folder`."""
    host = controller_host()
    options = {
        "ClusterName": "gpubench",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(ports.controller),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "CredType": "cred/munge",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool-%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "ProctrackType": "proctrack/cgroup",  # see freezer.py
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "GresTypes": "gpu",
        # The nodes claim more than the machine has.
        "SlurmdParameters": "config_overrides",
        # A node that was silent comes back by itself; one that was marked down stays so (with 2 it came back
        # a quarter of a second later).
        "ReturnToService": "1",
        "KillWait": str(spec.kill_wait_s),
        "MinJobAge": str(spec.min_job_age_s),
        "SlurmdTimeout": str(spec.slurmd_timeout_s),
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=5,bf_interval=5",
        "MailProg": "/bin/true",
    }
    if spec.pyxis:
        options["PlugStackConfig"] = f"{folder}/plugstack.conf"
    options.update(spec.options)
    lines = [f"{key}={value}" for key, value in options.items()]
    for node, port in zip(spec.nodes, ports.nodes, strict=True):
        lines.append(
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} Sockets=1"
            f" CoresPerSocket={spec.cpus} ThreadsPerCore=1 CPUs={spec.cpus} RealMemory={spec.memory_mb}"
            f" Gres={spec.gres} State=UNKNOWN"
        )
    lines.append(
        f"PartitionName={spec.partition} Nodes={','.join(spec.nodes)} Default=YES State=UP"
        f" DefaultTime={spec.default_time} MaxTime={spec.max_time}"
    )
    return "\n".join([*lines, *spec.extra_lines, ""])


def gres_conf(spec: ClusterSpec, folder: Path) -> str:
    """Renders gres.conf. Without `File` nodes drain ("gres/gpu count reported lower than configured")."""
    what = f"Name=gpu Type={spec.gpu_type} Flags=nvidia_gpu_env File={folder}/gpus/gpu[0-{spec.gpus - 1}]"
    return "".join(f"NodeName={node} {what}\n" for node in spec.nodes)


def plugstack_conf(plugin: Path, folder: Path) -> str:
    """Renders plugstack.conf, which names the Pyxis plugin of the tests and the files it reads."""
    return (
        f"required {plugin} scratch={folder}/pyxis/scratch imageenv={folder}/pyxis/image.env"
        f" hidden={folder}/pyxis/hidden\n"
    )
