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
from .slurm_conf import ClusterSpec, gres_conf, pick_ports, plugstack_conf, slurm_conf
from .slurm_parts import CLIENTS, SYSTEM_PATH, compile_pyxis, program

DAEMONS = ("munged", "slurmctld", "slurmd")
NODE_VARIABLE = "GPUBENCH_TEST_NODE"
UP_STATES = {"idle", "allocated", "mixed", "completing"}
UP_SECONDS = 60.0
DOWN_SECONDS = 60.0


class RealSlurm:
    """Brings a cluster up on entry and takes it down on exit, jobs and daemons, leaving no process.

    `folder` must not exist or be empty; logs stay there. Raises TimeoutError, with the ends of the daemons'
    logs in the message, when the nodes are not idle within `up_seconds`.
    """

    def __init__(
        self, folder: Path, spec: ClusterSpec | None = None, *, up_seconds: float = UP_SECONDS
    ) -> None:
        self.folder = folder.resolve()
        self.spec = spec or ClusterSpec()
        self.conf = self.folder / "slurm.conf"
        self._up_seconds = up_seconds
        self._munged: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
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
        stop_daemons(*filter(None, (*self._slurmds.values(), self._controller, self._munged)))
        self._slurmds.clear()
        self._controller = self._munged = None
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
        return find_processes(lambda pid: self._role(pid) is not None)

    def job_processes(self, node: str | None = None) -> list[int]:
        """The ids of the processes of steps, their keepers (slurmstepd) included; of one node or of all."""
        names = (node,) if node else self.spec.nodes
        return find_processes(lambda pid: self._role(pid) in names)

    def _role(self, pid: int) -> str | None:
        """ "daemon", "client", the name of the node on which a step's process runs, or None: not ours."""
        command = command_of(pid)
        name = Path(command.split(maxsplit=1)[0]).name if command else ""
        if name in DAEMONS and str(self.folder) in command:
            return "daemon"
        env = environment_of(pid)
        if env.get("SLURM_CONF") != str(self.conf):
            return None
        # A step's keeper has what its slurmd was started with. A pytest that was handed env() is not ours.
        return env.get("SLURMD_NODENAME") or env.get(NODE_VARIABLE) or ("client" if name in CLIENTS else None)

    # -- using it ----------------------------------------------------

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment without its Slurm variables, with PATH and SLURM_CONF of this cluster."""
        ours = ("SLURM", "SBATCH_", "SRUN_", "SPANK_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        return {**clean, "PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf), **(extra or {})}

    def run(
        self,
        *argv: str,
        seconds: float = 30.0,
        check: bool = True,
        extra_env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a client command.

        Raises subprocess.TimeoutExpired, and with `check` AssertionError with the command's output.
        """
        done = subprocess.run(
            argv,
            env=self.env(extra_env),
            input=stdin,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def job_state(self, job: str) -> str | None:
        """The state of a job, e.g. "RUNNING"; None when the controller does not know its id (any more)."""
        done = self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T", check=False)
        return done.stdout.strip() or None

    def wait_state(self, job: str, states: Collection[str | None], seconds: float = 30.0) -> str | None:
        """Waits until a job is in one of `states` (None: unknown id) and returns which."""
        deadline = Deadline(seconds, f"job {job} in {sorted(map(str, states))}")
        while (state := self.job_state(job)) not in states:
            deadline.check(f"it is {state}")
            time.sleep(0.2)
        return state

    def live_jobs(self) -> list[str]:
        """The ids of the jobs that wait, run or complete, whoever submitted them."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def cancel_all(self) -> None:
        """Cancels every job of this cluster and waits until none is left.

        A process that left its step (a new session, its parent gone) is not found by proctrack/linuxproc and
        keeps the job COMPLETING for ever: it is killed after KillWait and some seconds.
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

    def node_states(self) -> dict[str, str]:
        """Node name to state as sinfo prints it, e.g. {"gb300-01": "idle", "gb300-02": "down*"}."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)

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
        kill_all(self.job_processes(node))
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

    @property
    def version(self) -> str:
        """The version of this Slurm, e.g. "22.05.8". Without a slurm.conf even `sinfo --version` fails."""
        return self.run("sinfo", "--version").stdout.split()[-1]

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
