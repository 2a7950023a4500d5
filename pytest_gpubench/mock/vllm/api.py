"""The OpenAI-compatible API of the simulated server."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from .. import phases
from ..faults import EngineDeadButHealthy, FaultBox, NeverHealthy, RequestFailures
from .engine import Engine, tokens_of
from .http import Request, Response
from .serve_args import ServeArgs
from .settings import Sim

__all__ = ["Api"]

_WORD = " tok"


class Api:
    """Routes and their answers. ``healthy`` is asked at every /health."""

    def __init__(
        self,
        args: ServeArgs,
        sim: Sim,
        engine: Engine,
        faults: FaultBox,
        job: tuple[int, str],
        healthy: Callable[[], bool],
    ) -> None:
        self.args, self.sim, self.engine, self.faults, self.healthy = args, sim, engine, faults, healthy
        self.job_id, self.job_name = job
        self.folder = faults.folder
        self.answered = 0
        self.received = 0
        self.engine_id = str(uuid.uuid4())

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        get = request.method == "GET"
        route = request.path.rstrip("/")
        if route == "/health" and get:
            sick = self.faults.find(NeverHealthy, self.job_name) is not None
            return Response(200 if self.healthy() and not sick else 503)
        if route == "/ping":
            return Response(200)
        if route == "/version" and get:
            return Response.of({"version": self.sim.version})
        if route == "/v1/models" and get:
            return Response.of({"object": "list", "data": [self._model(name) for name in self.args.served]})
        if route == "/metrics" and get:
            return Response(200, self.engine.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        if request.method != "POST":
            return _error(404, "Not Found")
        if route == "/reset_prefix_cache" and os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            self.engine.reset_cache()
            return Response(200)
        try:
            body = request.json()
        except ValueError as err:
            return _error(400, f"JSON decode error: {err}")
        if route == "/tokenize":
            tokens = tokens_of(body.get("prompt") or body.get("messages"))
            ids = [hash(token) % 50_000 for token in tokens]
            return Response.of({"count": len(ids), "max_model_len": self.args.max_model_len, "tokens": ids})
        if route == "/detokenize":
            return Response.of({"prompt": " ".join(f"w{token}" for token in body.get("tokens", []))})
        if route in ("/v1/completions", "/v1/chat/completions"):
            return await self._complete(body, chat=route.endswith("chat/completions"))
        return _error(404, "Not Found")

    def _model(self, name: str) -> dict[str, Any]:
        length = self.args.max_model_len
        return {
            "id": name,
            "object": "model",
            "owned_by": "vllm",
            "root": self.args.model,
            "max_model_len": length,
        }

    # -- completions -----------------------------------------------------------------------------------------

    async def _complete(self, body: dict[str, Any], *, chat: bool) -> Response:
        phases.mark(self.folder, self.job_id, "benching")
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        tokens = tokens_of(body.get("messages") if chat else body.get("prompt"))
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        room = self.args.max_model_len
        count = int(limit) if limit is not None else (64 if chat else 16)
        if room is not None and len(tokens) + (int(limit) if limit is not None else 1) > room:
            text = (
                f"This model's maximum context length is {room} tokens. However, you requested {count} output"
            )
            return _error(400, f"{text} tokens and your prompt contains at least {len(tokens)} input tokens.")
        if not body.get("ignore_eos") and self.sim.eos_after is not None:
            count = min(count, self.sim.eos_after)
        answer = _Answer(body, chat, len(tokens), self._transfer(body, tokens))
        remote = (body.get("kv_transfer_params") or {}).get("do_remote_prefill", False)
        made = self.engine.generate(tokens, count, prefilled=bool(remote))
        if body.get("stream"):
            return Response(stream=self._stream(answer, made))
        total = 0
        async for number in made:
            total += number
        self._count()
        return Response.of(answer.whole(total))

    def _count(self) -> None:
        """One more request was answered; followers read the number from the job's folder."""
        self.answered += 1
        if self.job_id:
            with contextlib.suppress(OSError):
                (self.folder / "spool" / str(self.job_id) / "answered").write_text(str(self.answered))

    def _refusal(self, body: Any) -> Response | None:
        if not isinstance(body, dict):
            return _error(400, "the body must be a JSON object")
        model = body.get("model")
        if model is not None and model not in self.args.served:
            return _error(404, f"The model `{model}` does not exist.", "NotFoundError")
        self.received += 1
        dead = self.faults.find(EngineDeadButHealthy, self.job_name)
        if dead is not None and self.received > dead.after_requests:
            if dead.hang:
                self.engine.stopped = True
            else:
                return _error(
                    500, "EngineCore encountered an issue. See stack trace (above) for the root cause."
                )
        failing = self.faults.find(RequestFailures, self.job_name)
        if failing is not None and int(self.received * failing.rate) > int(
            (self.received - 1) * failing.rate
        ):
            return _error(failing.status, "Internal server error")
        return None

    def _transfer(self, body: dict[str, Any], tokens: Sequence[Any]) -> dict[str, Any] | None:
        """What a prefill instance tells the router, for the decode instance to fetch the blocks."""
        wanted = body.get("kv_transfer_params") or {}
        if not (self.args.kv_role and wanted.get("do_remote_decode")):
            return None
        blocks = -(-len(tokens) // self.args.number("block-size", self.sim.block))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(blocks)),
            "remote_engine_id": self.engine_id,
            "remote_request_id": f"cmpl-{uuid.uuid4().hex}",
            "remote_host": "127.0.0.1",
            "remote_port": int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
            "tp_size": self.args.number("tensor-parallel-size", 1),
        }

    async def _stream(self, answer: _Answer, made: AsyncIterator[int]) -> AsyncIterator[bytes]:
        total = 0
        async for number in made:
            total += number
            yield answer.chunk(number)
        self._count()
        yield answer.last(total)


class _Answer:
    """Builds the JSON of one completion; the parts of a chunk that stay the same are encoded once."""

    def __init__(
        self, body: dict[str, Any], chat: bool, prompt: int, transfer: dict[str, Any] | None
    ) -> None:
        self.chat, self.prompt, self.transfer = chat, prompt, transfer
        self.usage_wanted = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion" if chat else "text_completion"
        name = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.head = {"id": name, "object": kind, "created": int(time.time()), "model": body.get("model")}
        chunk = {**self.head, "object": "chat.completion.chunk" if chat else kind, "choices": None}
        self.begin = "data: " + json.dumps(chunk).removesuffix("null}")

    def _usage(self, total: int) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt, "total_tokens": self.prompt + total, "completion_tokens": total}

    def chunk(self, number: int) -> bytes:
        """The event of ``number`` new tokens."""
        text = _WORD * number
        content = f'"delta": {{"content": "{text}"}}' if self.chat else f'"text": "{text}"'
        return f'{self.begin}[{{"index": 0, {content}, "finish_reason": null}}]}}\n\n'.encode()

    def last(self, total: int) -> bytes:
        """The closing events."""
        content = '"delta": {}' if self.chat else '"text": ""'
        events = f'{self.begin}[{{"index": 0, {content}, "finish_reason": "length"}}]}}\n\n'
        if self.usage_wanted:
            events += f"data: {json.dumps({**self.head, 'choices': [], 'usage': self._usage(total)})}\n\n"
        return (events + "data: [DONE]\n\n").encode()

    def whole(self, total: int) -> dict[str, Any]:
        """The answer in one piece."""
        text = _WORD * total
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        found = {**self.head, "choices": [choice], "usage": self._usage(total)}
        if self.transfer is not None:
            found["kv_transfer_params"] = self.transfer
        return found


def _error(status: int, text: str, kind: str = "BadRequestError") -> Response:
    return Response.of({"error": {"message": text, "type": kind, "param": None, "code": status}}, status)
