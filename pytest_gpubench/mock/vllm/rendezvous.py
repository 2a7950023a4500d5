"""Followers meet the head on the master port; both sides keep the connection, so that a death is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

__all__ = ["Meeting", "join", "resolve"]


def resolve(host: str, nodes: list[str]) -> str:
    """The address of a node: all nodes of a mocked cluster are this machine. OSError for an unknown name."""
    if host in nodes or host.split(".")[0] in nodes:
        return "127.0.0.1"
    return socket.gethostbyname(host)


class Meeting:
    """The head's side."""

    def __init__(self, followers: int) -> None:
        self.expected = set(range(1, followers + 1))
        self.joined: set[int] = set()
        self.lost: set[int] = set()
        self.complete = asyncio.Event()
        if not followers:
            self.complete.set()

    async def listen(self, address: str, port: int, changed: Callable[[], None]) -> None:
        """Wait for followers in the background; OSError when the port is taken."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            rank = int(line or b"-1")
            if rank not in self.expected:
                writer.close()
                return
            self.joined.add(rank)
            self.lost.discard(rank)
            if self.joined == self.expected:
                self.complete.set()
            try:
                while await reader.read(64):
                    pass
            except ConnectionError:
                pass
            self.lost.add(rank)
            writer.close()
            changed()

        self._server = await asyncio.start_server(connected, address, port)


async def join(
    address: str, port: int, rank: int, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A follower's side: connect, again and again, for ``seconds``; TimeoutError otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            reader, writer = await asyncio.open_connection(address, port)
        except OSError:
            if loop.time() > deadline:
                raise TimeoutError(f"no head on {address}:{port} after {seconds:g} s") from None
            await asyncio.sleep(0.05)
            continue
        writer.write(f"{rank}\n".encode())
        await writer.drain()
        return reader, writer
