"""The frames that srun and the keeper of its step exchange over a socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

__all__ = ["Kind", "Reader", "send"]

_HEAD = struct.Struct("!cHI")


class Kind:
    """Kinds of frames, with what the payload is."""

    OUT = b"O"  # bytes of a task's standard output
    ERR = b"E"  # bytes of a task's standard error
    EXIT = b"X"  # a task's exit status as text, negative for a signal
    SAY = b"M"  # a line for srun's standard error
    ABORT = b"A"  # the step is being cancelled
    NODE = b"N"  # the name of a node that failed
    SIGNAL = b"S"  # to the step: a signal number for all tasks
    INPUT = b"I"  # to the step: standard input for all tasks; empty at its end


def send(link: socket.socket, kind: bytes, rank: int = 0, payload: bytes = b"") -> bool:
    """Send one frame; False when the other side is gone."""
    try:
        link.sendall(_HEAD.pack(kind, rank, len(payload)) + payload)
    except OSError:
        return False
    return True


class Reader:
    """Cuts what arrives into frames."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._buffer = b""
        self.closed = False

    def frames(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Read once, and give the frames that are complete."""
        try:
            data = self._link.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.closed = True
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            kind, rank, size = _HEAD.unpack_from(self._buffer)
            if len(self._buffer) < _HEAD.size + size:
                return
            payload = self._buffer[_HEAD.size : _HEAD.size + size]
            self._buffer = self._buffer[_HEAD.size + size :]
            yield kind, rank, payload
