"""``vllm-router``: the installed one, else a small one that hands requests to prefill, then to decode."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from . import client
from .http import Request, Response, serve
from .settings import load

__all__ = ["main"]

_EMPTY = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


def main(folder: Path, argv: list[str]) -> int:
    """Become the real router where there is one (unless ``sim`` says otherwise), else route."""
    real = _installed(folder) if load(folder).router == "auto" else None
    if real is not None:
        os.execv(real, [real, *argv])
    args, _ = _parser().parse_known_args(argv)
    if not args.vllm_pd_disaggregation or not args.prefill or not args.decode:
        sys.stderr.write("this simulation routes with --vllm-pd-disaggregation, --prefill and --decode\n")
        return 2
    return asyncio.run(_Router([entry[0] for entry in args.prefill], args.decode).run(args.host, args.port))


def _installed(folder: Path) -> str | None:
    """The real ``vllm-router``: beside this interpreter, or on PATH behind the mock's own commands."""
    beside = Path(sys.executable).parent
    path = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part != f"{folder}/bin"]
    return shutil.which("vllm-router", path=os.pathsep.join([str(beside), *path]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm-router", allow_abbrev=False)
    parser.add_argument("--vllm-pd-disaggregation", action="store_true")
    parser.add_argument("--prefill", nargs="+", action="append", default=[])
    parser.add_argument("--decode", action="append", default=[])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    return parser


class _Router:
    """Two stages per request, as NixlConnector wants them; workers take turns."""

    def __init__(self, prefill: list[str], decode: list[str]) -> None:
        self.workers = [*prefill, *decode]
        self.prefill, self.decode = itertools.cycle(prefill), itertools.cycle(decode)

    async def run(self, host: str, port: int) -> int:
        """Route until told to stop."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as err:
            sys.stderr.write(f"Failed to bind to {host}:{port}: {err.strerror}\n")
            return 1
        await serve(sock, self)
        print(f"Starting simulated router on {host}:{port}", flush=True)
        await stop.wait()
        return 0

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        if request.path == "/health":
            return await self._health()
        if request.method == "GET":
            status, body = await client.get(f"{next(self.decode)}{request.path}")
            return Response(status, body)
        if request.path not in ("/v1/completions", "/v1/chat/completions"):
            return Response(404)
        try:
            body = request.json()
            if not isinstance(body, dict):
                return Response.of({"error": "the body must be a JSON object"}, 400)
            return await self._two_stages(request.path, body)
        except (OSError, ValueError, asyncio.IncompleteReadError) as err:
            return Response.of({"error": f"{type(err).__name__}: {err}"}, 500)

    async def _health(self) -> Response:
        for url in self.workers:
            try:
                status, _ = await client.get(f"{url}/health")
            except (OSError, asyncio.IncompleteReadError):
                status = 503
            if status != 200:
                return Response(503, f"{url} is not healthy".encode(), "text/plain")
        return Response(200, b"All servers healthy", "text/plain")

    async def _two_stages(self, path: str, body: dict[str, Any]) -> Response:
        first = {name: value for name, value in body.items() if name != "stream_options"}
        first |= {"max_tokens": 1, "stream": False}
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        wanted = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(_EMPTY)}
        status, answer = await client.post(
            f"{next(self.prefill)}{path}", first | {"kv_transfer_params": wanted}
        )
        if status != 200:
            return Response.of({"error": f"prefill answered {status}: {answer}"}, status)
        if isinstance(answer, dict) and answer.get("kv_transfer_params") is not None:
            body = body | {"kv_transfer_params": answer["kv_transfer_params"]}
        stack = contextlib.AsyncExitStack()
        reply = await stack.enter_async_context(client.open_reply("POST", f"{next(self.decode)}{path}", body))
        if reply.status != 200 or not body.get("stream"):
            async with stack:
                return Response(reply.status, await reply.body())
        return Response(stream=_passed_on(stack, reply))


async def _passed_on(stack: contextlib.AsyncExitStack, reply: client.Reply) -> AsyncIterator[bytes]:
    async with stack:
        async for part in reply.parts():
            yield part
