"""The part of srun that stays with the user: output, labels, standard input, signals, the exit status."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

from .getopt import Parsed
from .link import Kind, Reader, send
from .model import Step

__all__ = ["Frontend"]


class Frontend:
    """Follows a step through its keeper's socket."""

    def __init__(self, step: Step, placed: list[str], parsed: Parsed, link: socket.socket) -> None:
        self.step, self.placed, self.link = step, placed, link
        self.label = "label" in parsed
        self.kill_on_bad_exit = (
            parsed.get("kill-on-bad-exit") or "0" if "kill-on-bad-exit" in parsed else "0"
        ) != "0"
        if "kill-on-bad-exit" in parsed and parsed.get("kill-on-bad-exit") == "":
            self.kill_on_bad_exit = True
        self.worst = 0
        self.running = set(range(len(placed)))
        self.node_failed = False
        self.terminating = False
        self.interrupted = 0.0
        self.partial: dict[tuple[bytes, int], bytes] = {}
        self.told: set[str] = set()

    def run(self, *, feed: bool) -> int:
        """Until the step has ended; the highest exit status of its tasks, 128 + n for a signal."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGQUIT,
            signal.SIGUSR1,
            signal.SIGUSR2,
        ):
            signal.signal(number, lambda *_: None)
        reader = Reader(self.link)
        selector = selectors.DefaultSelector()
        selector.register(self.link, selectors.EVENT_READ, "link")
        selector.register(wake, selectors.EVENT_READ, "wake")
        if feed:
            try:
                selector.register(0, selectors.EVENT_READ, "input")
            except (OSError, ValueError):  # a regular file (always readable, epoll refuses it) or closed
                self._whole_input()
        while not reader.closed:
            for key, _ in selector.select():
                if key.data == "link":
                    for frame in reader.frames():
                        self._frame(*frame)
                elif key.data == "wake":
                    for got in os.read(wake, 64):
                        self._signalled(got)
                else:
                    data = _read_input()
                    send(self.link, Kind.INPUT, 0, data)
                    if not data:
                        selector.unregister(0)
        return self._result()

    def _whole_input(self) -> None:
        while data := _read_input():
            send(self.link, Kind.INPUT, 0, data)
        send(self.link, Kind.INPUT, 0, b"")

    def _result(self) -> int:
        for (kind, rank), rest in self.partial.items():
            self._write(kind, f"{rank}: ".encode() + rest + b"\n")
        if self.node_failed:
            # Seen with Slurm 22.05: srun's own status says nothing of a failed node.
            return 0
        if self.running:
            # The keeper of the step was killed with its tasks.
            for rank in sorted(self.running):
                self._say(f"srun: error: {self.placed[rank]}: task {rank}: Killed")
            return 137
        if self.worst == 128 + signal.SIGTERM and not self.told:
            self._say(f"srun: Force Terminated StepId={self.step.job}.{self.step.id}")
        return self.worst

    def _frame(self, kind: bytes, rank: int, payload: bytes) -> None:
        if kind in (Kind.OUT, Kind.ERR):
            self._output(kind, rank, payload)
        elif kind == Kind.EXIT:
            self._ended(rank, int(payload))
        elif kind == Kind.SAY:
            self._say(payload.decode("utf-8", "replace"))
        elif kind == Kind.ABORT:
            self._tell("srun: Job step aborted: Waiting up to 5 seconds for job step to finish.")
        elif kind == Kind.NODE:
            self.node_failed = True
            self._say(f"srun: error: Node failure on {payload.decode()}")

    def _output(self, kind: bytes, rank: int, data: bytes) -> None:
        if not self.label:
            self._write(kind, data)
            return
        *lines, rest = (self.partial.pop((kind, rank), b"") + data).split(b"\n")
        for line in lines:
            self._write(kind, f"{rank}: ".encode() + line + b"\n")
        if rest:
            self.partial[(kind, rank)] = rest

    @staticmethod
    def _write(kind: bytes, data: bytes) -> None:
        handle = 1 if kind == Kind.OUT else 2
        while data:
            try:
                data = data[os.write(handle, data) :]
            except OSError:
                return

    def _ended(self, rank: int, status: int) -> None:
        self.running.discard(rank)
        if status == 0:
            return
        code = 128 - status if status < 0 else status
        self.worst = max(self.worst, code)
        if self.node_failed:
            return
        how = (
            f"Exited with exit code {status}"
            if status > 0
            else signal.strsignal(-status) or f"signal {-status}"
        )
        self._say(f"srun: error: {self.placed[rank]}: task {rank}: {how}")
        if self.kill_on_bad_exit and self.running and not self.terminating:
            self.terminating = True
            self._say(f"srun: launch/slurm: _step_signal: Terminating StepId={self.step.job}.{self.step.id}")
            send(self.link, Kind.ABORT)
            send(self.link, Kind.SIGNAL, 0, str(int(signal.SIGTERM)).encode())

    def _signalled(self, number: int) -> None:
        name = f"{self.step.job}.{self.step.id}"
        if number == signal.SIGINT:
            if time.monotonic() - self.interrupted > 1.0:
                self.interrupted = time.monotonic()
                self._say("srun: interrupt (one more within 1 sec to abort)")
                self._say(f"srun: StepId={name} tasks {','.join(map(str, sorted(self.running)))}: running")
                return
            self._say(f"srun: sending Ctrl-C to StepId={name}")
            send(self.link, Kind.SIGNAL, 0, str(int(signal.SIGINT)).encode())
            self._force()
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number == signal.SIGQUIT:
                self._say("srun: Quit")
            self._force()
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            send(self.link, Kind.SIGNAL, 0, str(number).encode())

    def _force(self) -> None:
        self._tell("srun: forcing job termination")
        send(self.link, Kind.ABORT)
        send(self.link, Kind.SIGNAL, 0, str(int(signal.SIGKILL)).encode())

    def _tell(self, line: str) -> None:
        """Say something once."""
        if line not in self.told:
            self.told.add(line)
            self._say(line)

    @staticmethod
    def _say(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _read_input() -> bytes:
    try:
        return os.read(0, 65536)
    except OSError:
        return b""
