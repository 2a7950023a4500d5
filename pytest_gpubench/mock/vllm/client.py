"""A small HTTP client over asyncio for the simulated benchmark and evaluation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Reply", "get", "open_reply", "post"]


@dataclass
class Reply:
    """The head of an answer, and its body as it arrives."""

    status: int
    reason: str
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in the pieces it was sent in."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self.reader.readline()).split(b";")[0] or b"0", 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            return
        length = self.headers.get("content-length")
        if length is None:
            while data := await self.reader.read(65536):
                yield data
        elif int(length):
            yield await self.reader.readexactly(int(length))

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.parts()])


@asynccontextmanager
async def open_reply(
    method: str, url: str, payload: Any = None, headers: dict[str, str] | None = None
) -> AsyncIterator[Reply]:
    """Send a request on a connection of its own; OSError when nobody listens."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
    try:
        body = b"" if payload is None else json.dumps(payload).encode()
        lines = [f"{method} {parts.path or '/'} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        _, status, reason = (*head[0].split(" ", 2), "")[:3]
        pairs = (line.partition(":") for line in head[1:] if line)
        found = {name.strip().lower(): value.strip() for name, _, value in pairs}
        yield Reply(int(status), reason, found, reader)
    finally:
        writer.close()


async def get(url: str) -> tuple[int, bytes]:
    """Status and body."""
    async with open_reply("GET", url) as reply:
        return reply.status, await reply.body()


async def post(url: str, payload: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON (None when the body is none)."""
    async with open_reply("POST", url, payload, headers) as reply:
        body = await reply.body()
    try:
        return reply.status, json.loads(body)
    except ValueError:
        return reply.status, None
