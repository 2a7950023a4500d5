"""A small HTTP/1.1 server over asyncio: enough for JSON, streams and keep-alive, with nothing to install."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Handler", "Request", "Response", "serve"]

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
}
_REASONS |= {429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; ValueError when it is none."""
        return json.loads(self.body or b"null")


@dataclass
class Response:
    """One response: a body, or a stream of server-sent events."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Any, status: int = 200) -> Response:
        """JSON."""
        return cls(status, json.dumps(data).encode())


Handler = Callable[[Request], Awaitable[Response]]


async def serve(sock: socket.socket, handler: Handler) -> asyncio.Server:
    """Answer on a bound socket until the server is closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                response = await handler(request)
                await _write(writer, response)
                if request.headers.get("connection", "").lower() == "close":
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went, or the server ends: asyncio would log a traceback for the latter
        finally:
            writer.close()

    return await asyncio.start_server(connected, sock=sock, backlog=4096, limit=1 << 24)


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _version = first.split(" ", 2)
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif length := int(headers.get("content-length", 0)):
        body = await reader.readexactly(length)
    return Request(method, target.partition("?")[0], headers, body)


async def _write(writer: asyncio.StreamWriter, response: Response) -> None:
    reason = _REASONS.get(response.status, "Unknown")
    lines = [f"HTTP/1.1 {response.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if response.stream is None:
        lines += [f"content-type: {response.kind}", f"content-length: {len(response.body)}"]
        writer.write("\r\n".join([*lines, "\r\n"]).encode() + response.body)
        await writer.drain()
        return
    lines += ["content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked"]
    head = "\r\n".join([*lines, "\r\n"]).encode()  # goes out with the first data, in one packet
    async for data in response.stream:
        writer.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        head = b""
        await writer.drain()
    writer.write(head + b"0\r\n\r\n")
    await writer.drain()
