"""``vllm bench serve``: drives an endpoint over HTTP and measures it; only the prompts are made up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sys
import time
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any

from .. import phases
from ..faults import ClientExits, ClientHangs, DiskFull, FaultBox, ResultLate, ResultMissing
from ..slurm.keeper import detach
from ..slurm.store import Store
from . import bench_args, client
from .bench_result import Outcome, result, trim

__all__ = ["main"]


def main(folder: Path, argv: list[str]) -> int:
    """Run the benchmark; 0 also when every request failed, as the real client has it."""
    args = bench_args.build().parse_args(bench_args.normalise(argv))
    faults, (_, job) = FaultBox(folder), phases.current_job(folder)
    early = faults.find(ClientExits, job)
    if early is not None:
        sys.stderr.write(f"Traceback (most recent call last):\n{early.text}\n")
        if early.code < 0:
            os.kill(os.getpid(), -early.code)
        return early.code
    try:
        found = asyncio.run(_run(args))
    except ValueError as err:
        sys.stderr.write(f"Traceback (most recent call last):\nValueError: {err}\n")
        return 1
    _print(found)
    if faults.find(ClientHangs, job) is not None:
        while True:
            signal.pause()
    if not (args.save_result or args.append_result):
        return 0
    text = json.dumps(found if args.save_detailed else trim(found))
    return _save(folder, _path(args, found), text, args, faults, job)


_LONG = 64
"""From twice as many tokens on a prompt is written in the short form (see ``engine.tokens_of``)."""

# -- prompts -------------------------------------------------------------------------------------------------


def _prompts(args: Namespace) -> list[tuple[str, int, int]]:
    """Prompt, its tokens, output tokens, of each request. The same seed gives the same prompts."""
    rng = random.Random(f"{args.dataset_name}/{args.seed}")
    vocabulary = [f"w{number}" for number in range(30_000)]
    if args.dataset_name != "random":
        key = f"{args.dataset_name.replace('-', '_')}_output_len"
        outputs = args.output_len or getattr(args, key, None) or 128
        inputs = args.input_len or 256
        return [
            (" ".join(rng.choices(vocabulary, k=inputs)), inputs, outputs) for _ in range(args.num_prompts)
        ]
    inputs, outputs = args.input_len or args.random_input_len, args.output_len or args.random_output_len
    spread_in, spread_out = bench_args.ratios(args.random_range_ratio)
    prefix = _words(rng, vocabulary, args.random_prefix_len)
    found = []
    for _ in range(args.num_prompts):
        length = rng.randint(math.floor(inputs * (1 - spread_in)), math.ceil(inputs * (1 + spread_in)))
        wanted = rng.randint(math.floor(outputs * (1 - spread_out)), math.ceil(outputs * (1 + spread_out)))
        words = [*prefix, *_words(rng, vocabulary, max(1, length))]
        found.append((" ".join(words), args.random_prefix_len + max(1, length), max(1, wanted)))
    return found


def _words(rng: random.Random, vocabulary: list[str], tokens: int) -> list[str]:
    """Random words of so many tokens together; long texts repeat each word, in the short form."""
    run = tokens // _LONG
    if run < 2:
        return rng.choices(vocabulary, k=tokens)
    words = [f"{word}*{run}" for word in rng.choices(vocabulary, k=tokens // run)]
    return [*words, f"{rng.choice(vocabulary)}*{tokens % run}"] if tokens % run else words


# -- the run -------------------------------------------------------------------------------------------------


async def _run(args: Namespace) -> dict[str, Any]:
    base = args.base_url or f"http://{args.host}:{args.port}"
    if args.model is None:
        status, body = await client.get(f"{base}/v1/models")
        if status != 200:
            raise ValueError(f"Failed to fetch models from {base}: HTTP {status}")
        args.model = json.loads(body)["data"][0]["id"]
    prompts = _prompts(args)
    load = _Load(args, f"{base}{args.endpoint}")
    if args.ready_check_timeout_sec > 0:
        print(f"Waiting for endpoint to become up in {args.ready_check_timeout_sec} seconds")
        await load.wait_ready(prompts[0], args.ready_check_timeout_sec)
        print("Initial test run completed.")
    else:
        print("Skipping endpoint ready check.")
    if args.num_warmups:
        print(f"Warming up with {args.num_warmups} requests...")
        # Every warm-up is the first prompt: it is in the prefix cache when it is measured.
        await asyncio.gather(*(load.limited(prompts[0]) for _ in range(args.num_warmups)))
        print("Warmup run completed.")
    print("Starting main benchmark run...")
    print(f"Traffic request rate: {args.request_rate}")
    print(f"Maximum request concurrency: {args.max_concurrency}")
    sys.stdout.flush()
    began = time.perf_counter()
    tasks = []
    for delay, prompt in zip(_delays(args), prompts, strict=True):
        pause = began + delay - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.create_task(load.limited(prompt)))
    outcomes = list(await asyncio.gather(*tasks))
    seconds = time.perf_counter() - began
    return result(args, outcomes, seconds, time.strftime("%Y%m%d-%H%M%S"))


def _delays(args: Namespace) -> list[float]:
    """When each request is sent, in seconds from the start."""
    if args.request_rate == math.inf:
        return [0.0] * args.num_prompts
    rng = random.Random(args.seed)
    theta = 1.0 / (args.request_rate * args.burstiness)
    moments, now = [], 0.0
    for _ in range(args.num_prompts):
        now += rng.gammavariate(args.burstiness, theta)
        moments.append(now)
    scale = args.num_prompts / args.request_rate / now
    return [moment * scale for moment in moments]


class _Load:
    """Sends requests, at most ``--max-concurrency`` at a time."""

    def __init__(self, args: Namespace, url: str) -> None:
        self.args, self.url = args, url
        self.chat = "chat" in args.backend
        limit = args.max_concurrency
        self.slots: Any = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()
        self.headers = {}
        for item in args.header or []:
            name, _, value = item.partition("=")
            self.headers[name.strip()] = value.strip()
        if key := os.environ.get("OPENAI_API_KEY"):
            self.headers["Authorization"] = f"Bearer {key}"

    async def wait_ready(self, prompt: tuple[str, int, int], seconds: float) -> None:
        """One request must succeed within ``seconds``; ValueError otherwise."""
        deadline = time.monotonic() + seconds
        while not (last := await self.one(prompt)).success:
            if time.monotonic() > deadline:
                text = (
                    "Initial test run failed - Please make sure benchmark arguments are correctly specified."
                )
                raise ValueError(f"{text} Error: {last.error}")
            await asyncio.sleep(0.2)

    async def limited(self, prompt: tuple[str, int, int]) -> Outcome:
        """One request when its turn comes."""
        arrived = time.perf_counter()
        async with self.slots:
            outcome = await self.one(prompt)
        outcome.queued = outcome.start - arrived
        return outcome

    def _payload(self, prompt: tuple[str, int, int]) -> dict[str, Any]:
        args = self.args
        payload: dict[str, Any] = {
            "model": args.served_model_name or args.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.chat:
            payload["messages"] = [{"role": "user", "content": [{"type": "text", "text": prompt[0]}]}]
            payload["max_completion_tokens"] = prompt[2]
        else:
            payload |= {"prompt": prompt[0], "max_tokens": prompt[2], "repetition_penalty": 1.0}
        if args.ignore_eos or args.dataset_name == "random":
            payload["ignore_eos"] = True
        for name in ("top_p", "top_k", "min_p", "temperature", "frequency_penalty", "presence_penalty"):
            if getattr(args, name) is not None:
                payload[name] = getattr(args, name)
        if args.extra_body:
            payload |= json.loads(args.extra_body)
        return payload

    async def one(self, prompt: tuple[str, int, int]) -> Outcome:
        """One request; a failure is in the outcome."""
        outcome = Outcome(prompt_len=prompt[1])
        headers = {**self.headers, "x-request-id": f"bench-{uuid.uuid4().hex[:8]}"}
        outcome.start = last = time.perf_counter()
        try:
            async with client.open_reply("POST", self.url, self._payload(prompt), headers) as reply:
                if reply.status != 200:
                    outcome.error = reply.reason
                    return outcome
                last = await self._receive(reply, outcome)
        except (OSError, ValueError, asyncio.IncompleteReadError) as err:
            outcome.error = f"{type(err).__name__}: {err}"
            outcome.success = False
            return outcome
        if not outcome.success:
            outcome.error = (
                "Never received a valid chunk to calculate TTFT.This response will be marked as failed!"
            )
        outcome.latency = last - outcome.start
        return outcome

    async def _receive(self, reply: client.Reply, outcome: Outcome) -> float:
        last, rest, texts = outcome.start, b"", []
        async for part in reply.parts():
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                data = event.strip().removeprefix(b"data: ")
                if not data or data.startswith(b":") or data == b"[DONE]":
                    continue
                message = json.loads(data)
                if choices := message.get("choices"):
                    now = time.perf_counter()
                    if not outcome.success:
                        outcome.success, outcome.ttft = True, now - outcome.start
                    else:
                        outcome.itl.append(now - last)
                    last = now
                    texts.append(
                        choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
                    )
                elif usage := message.get("usage"):
                    outcome.output_tokens = usage["completion_tokens"]
                    outcome.prompt_len = usage["prompt_tokens"]
        outcome.text = "".join(texts)
        if not outcome.output_tokens:
            outcome.output_tokens = len(outcome.text.split())
        return last


# -- the result ----------------------------------------------------------------------------------------------


def _path(args: Namespace, found: dict[str, Any]) -> Path:
    name = args.result_filename
    if not name:
        label = args.label or args.backend
        base = str(args.model).split("/")[-1]
        name = f"{label}-{args.request_rate}qps-{base}-{found['date']}.json"
    if args.result_dir:
        os.makedirs(args.result_dir, exist_ok=True)
        return Path(args.result_dir, name)
    return Path(name)


def _save(folder: Path, path: Path, text: str, args: Namespace, faults: FaultBox, job: str) -> int:
    if faults.find(ResultMissing, job) is not None:
        return 0
    path = path.absolute()
    late = faults.find(ResultLate, job)
    if late is not None:
        if detach(Store(folder), "late result"):
            time.sleep(late.seconds)
            path.write_text(text)
            os._exit(0)
        return 0
    full = faults.find(DiskFull, job) is not None
    with open(path, "a+" if args.append_result else "w", encoding="utf-8") as stream:
        if args.append_result and stream.tell():
            stream.write("\n")
        stream.write(text[: len(text) // 2] if full else text)
    if full:
        sys.stderr.write("Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n")
        return 1
    return 0


def _print(found: dict[str, Any]) -> None:
    failed = [text for text in found["errors"] if text]
    if failed:
        print("Failed requests during benchmark run detected (capping to 10):")
        for number, text in enumerate(failed[:10]):
            print(f"Error {number}: {text}")
    print("============ Serving Benchmark Result ============")
    for label, key in (
        ("Successful requests:", "completed"),
        ("Failed requests:", "failed"),
        ("Benchmark duration (s):", "duration"),
        ("Total input tokens:", "total_input_tokens"),
        ("Total generated tokens:", "total_output_tokens"),
        ("Output token throughput (tok/s):", "output_throughput"),
        ("Total token throughput (tok/s):", "total_token_throughput"),
        ("Median TTFT (ms):", "median_ttft_ms"),
        ("Median TPOT (ms):", "median_tpot_ms"),
    ):
        if key in found:
            value = found[key]
            print(f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}")
    print("=" * 50)
    sys.stdout.flush()
