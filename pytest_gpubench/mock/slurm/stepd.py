"""The keeper of a step: a detached process that starts the tasks and outlives its srun, as slurmstepd
does."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

from .. import phases, procs
from . import environment, formats, pyxis
from .link import Kind, Reader, send
from .model import Job, Step
from .store import Store

__all__ = ["Request", "StepKeeper"]


@dataclass
class Request:
    """What srun asks for. ``outputs`` and ``errors`` have the open file of each rank, or None for srun's
    own."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    placed: list[str]
    outputs: list[int | None]
    errors: list[int | None]
    feed: set[int] = field(default_factory=set)
    """Ranks that read srun's standard input."""
    container: pyxis.Container | None = None
    options: dict[str, str] = field(default_factory=dict)
    """srun's, for the environment of the tasks."""
    seconds: float | None = None
    """The step's own time limit."""


class StepKeeper:
    """Runs in the process that srun forked; ends when the last task and its output have ended."""

    def __init__(self, store: Store, job: Job, step: Step, request: Request, link: socket.socket) -> None:
        self.store, self.job, self.step, self.request, self.link = store, job, step, request, link
        self.reader = Reader(link)
        self.selector = selectors.DefaultSelector()
        self.tasks: dict[int, subprocess.Popen[bytes]] = {}
        self.inputs: dict[int, int] = {}
        self.open_pipes = 0
        self.cancelled = False
        self.wake: tuple[int, int] = os.pipe()

    def run(self) -> None:
        """Start the tasks, carry their output, report their ends."""
        step = self.step
        step.keeper, step.keeper_start = os.getpid(), procs.start_time(os.getpid()) or ""
        self._watch_signals()
        with self.store.lock():
            self.store.put_step(step)
        try:
            if self.request.container is not None:
                phases.mark(self.store.folder, step.job, "import")
                try:
                    pyxis.start(self.store, self.job, step, self.request.container)
                except pyxis.PyxisError as err:
                    self._refuse(str(err))
                    return
            for rank in range(len(self.request.placed)):
                self._start(rank)
            with self.store.lock():
                self.store.put_step(step)
            self.selector.register(self.link, selectors.EVENT_READ, "link")
            self.selector.register(self.wake[0], selectors.EVENT_READ, "wake")
            self._loop()
        finally:
            with self.store.lock():
                self.store.drop_step(step.job, step.id)
            self.store.registry.remove()
            self.link.close()

    def _watch_signals(self) -> None:
        os.set_blocking(self.wake[0], False)
        os.set_blocking(self.wake[1], False)
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN):
            signal.signal(number, lambda *_: None)

    def _refuse(self, text: str) -> None:
        for line in text.splitlines():
            self._say(f"slurmstepd-{self.step.nodes[0]}: error: {line}")
        for rank in range(len(self.request.placed)):
            send(self.link, Kind.EXIT, rank, b"1")

    def _say(self, line: str) -> None:
        send(self.link, Kind.SAY, 0, line.encode())

    # -- tasks -----------------------------------------------------------------------------------------------

    def _start(self, rank: int) -> None:
        request, node = self.request, self.request.placed[rank]
        env = environment.task(
            self.store, self.job, self.step, request.env, request.placed, rank, request.options
        )
        argv, cwd = request.argv, request.cwd
        try:
            if request.container is not None:
                argv, env, cwd = pyxis.apply(
                    self.store, self.job, self.step, request.container, argv, env, node
                )
            elif not os.path.isdir(cwd):
                text = f"couldn't chdir to `{cwd}': No such file or directory: going to /tmp instead"
                self._say(f"slurmstepd-{node}: error: {text}")
                cwd = "/tmp"
            self.tasks[rank] = self._spawn(rank, argv, env, cwd)
        except pyxis.PyxisError as err:
            self._refuse_rank(rank, node, str(err), 1)
        except OSError as err:
            self._refuse_rank(rank, node, f"execve(): {argv[0]}: {err.strerror}", err.errno or 2)
        else:
            pid = self.tasks[rank].pid
            self.step.tasks.append((pid, procs.start_time(pid) or "", node, rank))

    def _refuse_rank(self, rank: int, node: str, text: str, code: int) -> None:
        for line in text.splitlines():
            self._say(f"slurmstepd-{node}: error: {line}")
        send(self.link, Kind.EXIT, rank, str(code).encode())

    def _spawn(self, rank: int, argv: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
        out, err = self.request.outputs[rank], self.request.errors[rank]
        process = subprocess.Popen(
            argv,
            executable=_resolve(argv[0], env, cwd),
            stdin=subprocess.PIPE if rank in self.request.feed else subprocess.DEVNULL,
            stdout=subprocess.PIPE if out is None else out,
            stderr=subprocess.PIPE if err is None else err,
            env=env,
            cwd=cwd,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_default_signals,
        )
        procs.enter_session(self.store.folder, process.pid, env.get(procs.MARK, ""))
        if process.stdin is not None:
            self.inputs[rank] = process.stdin.fileno()
        for kind, pipe in ((Kind.OUT, process.stdout), (Kind.ERR, process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, selectors.EVENT_READ, (kind, rank))
                self.open_pipes += 1
        return process

    # -- the loop --------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        limit = None if self.request.seconds is None else time.monotonic() + self.request.seconds
        swept = not self.tasks
        while self.tasks or self.open_pipes:
            for key, _ in self.selector.select(None if limit is None else max(0.0, limit - time.monotonic())):
                if key.data == "link":
                    self._from_srun()
                elif key.data == "wake":
                    self._woken()
                else:
                    self._carry(key.fileobj, *key.data)
            if limit is not None and time.monotonic() >= limit:
                limit = None
                self._abort(" DUE TO TIME LIMIT")
                self._signal(signal.SIGTERM)
                limit_kill = self.store.spec.kill_wait
                self.request.seconds, limit = None, time.monotonic() + limit_kill
                if self.cancelled:
                    self._signal(signal.SIGKILL)
            if not self.tasks and not swept:
                # Nothing that a task left behind outlives its step, as with a cgroup.
                procs.end_all(f"{self.store.folder}:{self.step.job}:{self.step.id}.", 2.0)
                swept = True

    def _carry(self, pipe: object, kind: bytes, rank: int) -> None:
        data = os.read(pipe.fileno(), 65536)  # type: ignore[attr-defined]
        if data:
            send(self.link, kind, rank, data)  # without srun it goes nowhere
            return
        self.selector.unregister(pipe)  # type: ignore[arg-type]
        pipe.close()  # type: ignore[attr-defined]
        self.open_pipes -= 1

    def _from_srun(self) -> None:
        for kind, _rank, payload in self.reader.frames():
            if kind == Kind.SIGNAL:
                self._signal(int(payload))
            elif kind == Kind.ABORT:
                self._abort("")
            elif kind == Kind.INPUT:
                self._feed(payload)
        if self.reader.closed:  # srun was killed: the step goes on
            self.selector.unregister(self.link)
            self._feed(b"")

    def _feed(self, data: bytes) -> None:
        for rank, handle in list(self.inputs.items()):
            try:
                if data:
                    os.write(handle, data)
                    continue
            except OSError:
                pass
            self.inputs.pop(rank)
            stream = self.tasks[rank].stdin if rank in self.tasks else None
            if stream is not None:
                stream.close()

    def _woken(self) -> None:
        numbers = os.read(self.wake[0], 4096)
        if signal.SIGUSR2 in numbers:  # the job is being ended
            order = self.store.job(self.step.job)
            failed = order.order_text if order is not None and order.order == "node_fail" else ""
            if failed:
                send(self.link, Kind.NODE, 0, failed.encode())
            else:
                self._abort("")
        if signal.SIGRTMIN in numbers:  # its tasks were sent TERM
            self._say_cancelled("")
        if signal.SIGUSR1 in numbers:  # the step is being cancelled
            self._abort("")
            self._signal(signal.SIGKILL)
        for rank, process in list(self.tasks.items()):
            status = process.poll()
            if status is None:
                continue
            del self.tasks[rank]
            self.inputs.pop(rank, None)
            if process.stdin is not None:
                process.stdin.close()
            # What it wrote before its end comes before the news of its end.
            for key in list(self.selector.get_map().values()):
                if isinstance(key.data, tuple) and key.data[1] == rank:
                    self._drain(key.fileobj, *key.data)
            send(self.link, Kind.EXIT, rank, str(status).encode())

    def _drain(self, pipe: object, kind: bytes, rank: int) -> None:
        try:
            while data := os.read(pipe.fileno(), 65536):  # type: ignore[attr-defined]
                send(self.link, kind, rank, data)
        except BlockingIOError:
            pass

    def _abort(self, why: str) -> None:
        if self.cancelled:
            return
        self.cancelled = True
        send(self.link, Kind.ABORT)
        self._say_cancelled(why)

    def _say_cancelled(self, why: str) -> None:
        stamp = formats.clock(time.time())
        node, name = self.step.nodes[0], f"{self.step.job}.{self.step.id}"
        line = f"slurmstepd-{node}: error: *** STEP {name} ON {node} CANCELLED AT {stamp}{why} ***"
        handle = self.request.errors[0]
        if handle is not None:
            os.write(handle, line.encode() + b"\n")
        else:
            self._say(line)

    def _signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            procs.send(procs.marked(f"{self.store.folder}:{self.step.job}:{self.step.id}."), number)
            return
        procs.send([process.pid for process in self.tasks.values()], number)


def _resolve(program: str, env: dict[str, str], cwd: str) -> str:
    """The program as the task's own PATH has it."""
    if "/" in program:
        return os.path.join(cwd, program)
    for folder in env.get("PATH", "").split(":"):
        path = os.path.join(folder or cwd, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(2, "No such file or directory", program)


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
