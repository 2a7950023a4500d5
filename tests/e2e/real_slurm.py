"""A real Slurm in a temporary folder: munged, slurmctld and one slurmd per node, all on this machine.

    with RealSlurm(tmp_path / "slurm") as slurm:
        job = slurm.run("sbatch", "--parsable", "--wrap", "hostname").stdout.strip()
        slurm.wait_state(job, {"COMPLETED"})

Every client command works with `slurm.env()`. The cluster has its own munge key and socket, so that it
neither needs nor disturbs a munged that runs already, and its own ports, so that several clusters fit on one
machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from .freezer import Freezer
from .processes import (
    Deadline,
    command_of,
    environment_of,
    find_processes,
    kill_all,
    start_daemon,
    stop_daemons,
    wait_until,
)
from .slurm_clients import SlurmClients
from .slurm_conf import ClusterSpec, gres_conf, pick_ports, plugstack_conf, slurm_conf
from .slurm_parts import CLIENTS, SYSTEM_PATH, compile_pyxis, program

NODE_VARIABLE = "GPUBENCH_TEST_NODE"
UP_STATES = {"idle", "allocated", "mixed", "completing"}
UP_SECONDS = 60.0
DOWN_SECONDS = 60.0


class RealSlurm(SlurmClients):
    """Brings a cluster up on entry and takes it down on exit, jobs and daemons, leaving no process.

    `folder` must not exist or be empty; logs stay there. Raises TimeoutError, with the ends of the daemons'
    logs in the message, when the nodes are not idle within `up_seconds`.
    """

    def __init__(
        self, folder: Path, spec: ClusterSpec | None = None, *, up_seconds: float = UP_SECONDS
    ) -> None:
        self.folder = folder.resolve()
        super().__init__(self.folder / "slurm.conf")
        self.spec = spec or ClusterSpec()
        self._up_seconds = up_seconds
        self._munged: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._freezer: Freezer | None = None
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}

    # -- up and down -------------------------------------------------

    def __enter__(self) -> RealSlurm:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Writes the configuration, starts the daemons and waits until every node is idle."""
        try:
            self._write_files()
            self._start_munged()
            self.start_controller(wait=False)
            for node in self.spec.nodes:
                self.start_slurmd(node)
            self.wait_idle(self._up_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancels the jobs, ends the daemons, kills what is left; RuntimeError if anything survives."""
        deadline = Deadline(DOWN_SECONDS, "take-down of the cluster")
        if self._controller is not None and self._controller.poll() is None:
            self._controller.send_signal(signal.SIGCONT)
            with contextlib.suppress(AssertionError, subprocess.SubprocessError, TimeoutError):
                self.cancel_all()
        # A slurmd that still waits for a step does not end.
        kill_all(self.job_processes())
        stop_daemons(*self._daemons())
        self._slurmds.clear()
        self._controller = self._munged = None
        if self._freezer is not None:
            self._freezer.remove()
            self._freezer = None
        while left := self.processes():
            kill_all(left)
            if deadline.left() == 0.0:
                names = "; ".join(f"{pid} {command_of(pid)}" for pid in left)
                raise RuntimeError(f"left by the cluster: {names}")
            time.sleep(0.1)

    def restart(self) -> None:
        """Ends and starts the controller and the nodes; jobs are kept, running ones too."""
        self.stop_controller()
        for node in self.spec.nodes:
            self.stop_slurmd(node)
        self.start_controller(wait=False)
        for node in self.spec.nodes:
            self.start_slurmd(node)
        self.wait_nodes(set(self.spec.nodes), UP_STATES, self._up_seconds)

    def processes(self) -> list[int]:
        """The ids of this cluster's live processes: daemons, steps, what the jobs run, clients."""
        daemons = [daemon.pid for daemon in self._daemons() if daemon.poll() is None]
        return sorted({*daemons, *self.job_processes(), *find_processes(self._is_client)})

    def job_processes(self, node: str | None = None) -> list[int]:
        """The ids of what the jobs run, their keepers (slurmstepd) included; on one node or on all."""
        grouped = self._freezer.pids(node) if self._freezer else []
        names = {node} if node else set(self.spec.nodes)
        # A keeper that was just started is in no group yet; it has its slurmd's environment.
        fresh = find_processes(lambda pid: self._variable(pid, NODE_VARIABLE) in names)
        return sorted({*grouped, *fresh} - {daemon.pid for daemon in self._daemons()})

    def _daemons(self) -> list[subprocess.Popen[bytes]]:
        return [daemon for daemon in (*self._slurmds.values(), self._controller, self._munged) if daemon]

    def _variable(self, pid: int, name: str) -> str | None:
        env = environment_of(pid)
        return env.get(name) if env.get("SLURM_CONF") == str(self.conf) else None

    def _is_client(self, pid: int) -> bool:
        # By its name too: a pytest that was handed env() is none.
        called = Path(command_of(pid).partition(" ")[0]).name
        return called in CLIENTS and self._variable(pid, "SLURM_CONF") is not None

    def cancel_all(self) -> None:
        """Cancels every job of this cluster and waits until none is left.

        What a step cannot end by itself is killed after KillWait and five seconds.
        """
        deadline = Deadline(self.spec.kill_wait_s + 20.0, "all jobs cancelled")
        cancelled: set[str] = set()
        while jobs := set(self.live_jobs()):
            if new := jobs - cancelled:
                self.run("scancel", *sorted(new), check=False)
                cancelled |= new
            if deadline.left() < 15.0:
                kill_all(self.job_processes())
            deadline.check(" ".join(jobs))
            time.sleep(0.2)

    def reset(self) -> None:
        """Puts the cluster back for the next test: no jobs, nodes in service, nothing hidden or set."""
        self.cancel_all()
        for node in self.spec.nodes:
            self.resume_node(node)
        self.set_image_env({})
        self.set_hidden([])
        self.wait_idle()

    # -- nodes -------------------------------------------------------

    def wait_nodes(self, nodes: Iterable[str], states: Collection[str], seconds: float = 30.0) -> None:
        """Waits until each of `nodes` is in one of `states`."""
        deadline = Deadline(seconds, f"nodes {','.join(states)}")
        while True:
            seen = "no answer"
            with contextlib.suppress(AssertionError):
                now = self.node_states()
                seen = str(now)
                if all(now.get(node) in states for node in nodes):
                    return
            deadline.check(f"{seen}\n{self.log_tails()}")
            time.sleep(0.2)

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Waits until every node is idle."""
        self.wait_nodes(self.spec.nodes, {"idle"}, seconds)

    def fail_node(self, node: str, reason: str = "test") -> None:
        """Marks a node as down: its jobs end as NODE_FAIL, or are requeued if they may be.

        Its slurmd lives, and ends the steps on it; see crash_node.
        """
        self.run("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def drain_node(self, node: str, reason: str = "test") -> None:
        """Lets no new job start on a node; what runs goes on."""
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def crash_node(self, node: str) -> None:
        """Ends a node as a power cut would, daemon and steps at once, and marks it as down."""
        self._slurmds[node].kill()
        self._slurmds.pop(node).wait(timeout=10)
        deadline = Deadline(10.0, f"end of the processes on {node}")
        while left := self.job_processes(node):  # one may start another while we look
            kill_all(left)
            deadline.check(str(left))
            time.sleep(0.05)
        self.fail_node(node, "crashed")

    def resume_node(self, node: str) -> None:
        """Takes a failed, crashed or drained node back and waits until it serves."""
        if node not in self._slurmds:
            self.start_slurmd(node)
        if self.node_states()[node].startswith(("down", "drain")):
            # Slurm refuses the state when the node has come back in the meantime.
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self.wait_nodes([node], UP_STATES)

    def start_slurmd(self, node: str) -> None:
        """Starts the daemon of a node."""
        argv = [program("slurmd"), "-D", "-f", str(self.conf), "-N", node]
        env = {**self._daemon_env(), NODE_VARIABLE: node}
        self._slurmds[node] = start_daemon(argv, self.folder / f"slurmd-{node}.out", env)

    def stop_slurmd(self, node: str) -> None:
        """Ends the daemon of a node; its steps go on, and the node is down after `spec.slurmd_timeout_s`."""
        stop_daemons(self._slurmds.pop(node))

    # -- controller --------------------------------------------------

    def start_controller(self, *, wait: bool = True) -> None:
        """Starts slurmctld, which takes up the jobs it knew; with `wait`, returns when it answers."""
        argv = [program("slurmctld"), "-D", "-f", str(self.conf)]
        self._controller = start_daemon(argv, self.folder / "slurmctld.out", self._daemon_env())
        if wait:
            wait_until(self.controller_answers, 30.0, "an answer of the controller")

    def stop_controller(self) -> None:
        """Ends slurmctld: clients fail at once ("Unable to contact slurm controller")."""
        if self._controller is not None:
            stop_daemons(self._controller)
            self._controller = None

    def controller_answers(self) -> bool:
        """True when `scontrol ping` says that the controller is up."""
        try:
            return " is UP" in self.run("scontrol", "ping", seconds=10, check=False).stdout
        except subprocess.TimeoutExpired:
            return False

    @contextlib.contextmanager
    def controller_hung(self) -> Iterator[None]:
        """Within the block slurmctld is stopped (SIGSTOP): clients connect and wait."""
        assert self._controller is not None, "the controller does not run"
        self._controller.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._controller.send_signal(signal.SIGCONT)
            wait_until(self.controller_answers, 30.0, "an answer of the controller")

    @contextlib.contextmanager
    def controller_down(self) -> Iterator[None]:
        """Within the block slurmctld does not run; afterwards it does, and knows its jobs."""
        self.stop_controller()
        try:
            yield
        finally:
            self.start_controller()

    # -- containers --------------------------------------------------

    def set_image_env(self, values: Mapping[str, str]) -> None:
        """What the image of every following step with --container-image sets in its environment."""
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (self.folder / "pyxis/image.env").write_text(text)

    def set_hidden(self, folders: Iterable[Path]) -> None:
        """Folders of the host that the containers of all following steps see only if they mount them."""
        (self.folder / "pyxis/hidden").write_text("".join(f"{folder}\n" for folder in folders))

    # -- inside ------------------------------------------------------

    def log_tails(self, lines: int = 8) -> str:
        """The last lines of every daemon's log, for error messages."""
        parts = []
        for log in sorted(self.folder.glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"-- {log.name}", *tail]))
        return "\n".join(parts)

    def _daemon_env(self) -> dict[str, str]:
        return {"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf)}

    def _write_files(self) -> None:
        spools = [f"spool-{node}" for node in self.spec.nodes]
        for name in ["state", "munge", "gpus", "pyxis/scratch", *spools]:
            (self.folder / name).mkdir(parents=True)
        for number in range(self.spec.gpus):
            # A device, or slurmd sets no CUDA_VISIBLE_DEVICES; harmless, it is another /dev/null.
            os.mknod(self.folder / f"gpus/gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(gres_conf(self.spec, self.folder))
        if self.spec.pyxis:
            plugin = compile_pyxis(self.folder / "spank_pyxis.so")
            (self.folder / "plugstack.conf").write_text(plugstack_conf(plugin, self.folder))
        self._freezer = Freezer(self.folder / "cgroup")
        (self.folder / "cgroup.conf").write_text(self._freezer.conf())
        self.conf.write_text(slurm_conf(self.spec, pick_ports(self.spec), self.folder))

    def _start_munged(self) -> None:
        home = self.folder / "munge"
        home.chmod(0o755)
        key = home / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(256))
        options = [f"--{option}-file={home}/{option}" for option in ("key", "pid", "log", "seed")]
        options.append(f"--socket={home}/socket")
        # --force: a temporary folder may be closed to other users, which a munged for all users refuses.
        argv = [program("munged"), "--foreground", "--force", *options]
        self._munged = start_daemon(argv, self.folder / "munged.out")
        wait_until((home / "socket").exists, 10.0, f"munged (see {home}/log and {self.folder}/munged.out)")
