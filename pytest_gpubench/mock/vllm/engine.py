"""The simulated engine: tokens, a prefix cache of hashed blocks per data-parallel engine, counters."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .settings import Sim

__all__ = ["Engine", "tokens_of"]


def tokens_of(prompt: Any) -> Sequence[Any]:
    """The tokens of a prompt: its words, or the ids that were given; chat messages are joined.

    ``w7*512`` stands for 512 tokens, so that thousands of long prompts are no gigabytes.
    """
    if isinstance(prompt, str):
        found = prompt.split()
        return Runs(found) if "*" in prompt else found
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        words: list[Any] = []
        for message in prompt:
            content = message.get("content") or ""
            parts = content if isinstance(content, list) else [{"text": content}]
            words.append(f"<{message.get('role')}>")
            for part in parts:
                words.extend(tokens_of(str(part.get("text", ""))))
        return words
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return tokens_of(prompt[0])
    return list(prompt) if isinstance(prompt, list) else []


class Runs(Sequence[Any]):
    """Tokens in the short form, counted at once and written out only when they are looked at."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._runs = [_run(part) for part in parts]
        self._size = sum(times for _, times in self._runs)
        self._tokens: list[str] | None = None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if self._tokens is None:
            self._tokens = [token for token, times in self._runs for _ in range(times)]
        return self._tokens[index]


def _run(part: str) -> tuple[str, int]:
    token, star, times = part.partition("*")
    return (token, int(times)) if star and times.isdecimal() and len(times) < 7 else (part, 1)


@dataclass
class _Counters:
    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    finished: int = 0
    running: int = 0
    waiting: int = 0
    ttft_sum: float = 0.0


@dataclass
class Engine:
    """``engines`` data-parallel engines that take requests in turn."""

    sim: Sim
    engines: int = 1
    caching: bool = True
    slots: int = 256
    model: str = ""
    stopped: bool = False
    """Nothing is answered any more: requests wait for ever."""
    _caches: list[OrderedDict[int, None]] = field(default_factory=list)
    _counters: list[_Counters] = field(default_factory=list)
    _turn: int = 0

    def __post_init__(self) -> None:
        self._caches = [OrderedDict() for _ in range(self.engines)]
        self._counters = [_Counters() for _ in range(self.engines)]
        self._free = [asyncio.Semaphore(self.slots) for _ in range(self.engines)]

    def reset_cache(self) -> None:
        """Forget all prefixes; the counters go on."""
        for cache in self._caches:
            cache.clear()

    def _look_up(self, number: int, tokens: Sequence[Any]) -> int:
        """Prompt tokens that need no prefill; enters the prompt's blocks."""
        if not self.caching:
            return 0
        cache, size = self._caches[number], self.sim.block
        hits, chain, missed = 0, 0, False
        for start in range(0, len(tokens) - size + 1, size):
            chain = hash((chain, *tokens[start : start + size]))
            if chain in cache and not missed:
                cache.move_to_end(chain)
                # The last token is always computed: its logits are needed.
                if start + size < len(tokens):
                    hits += size
                continue
            missed = True
            cache[chain] = None
        while len(cache) * size > self.sim.kv_tokens:
            cache.popitem(last=False)
        return hits

    async def generate(
        self, tokens: Sequence[Any], count: int, *, prefilled: bool = False
    ) -> AsyncIterator[int]:
        """Yield numbers of new tokens, when they are due, ``count`` in all."""
        number = self._turn % self.engines
        self._turn += 1
        counters = self._counters[number]
        began = time.monotonic()
        counters.waiting += 1
        async with self._free[number]:
            counters.waiting -= 1
            counters.running += 1
            try:
                async for made in self._run(number, tokens, count, prefilled, began):
                    counters.generated += made
                    yield made
                counters.finished += 1
            finally:
                counters.running -= 1

    async def _run(
        self, number: int, tokens: Sequence[Any], count: int, prefilled: bool, began: float
    ) -> AsyncIterator[int]:
        counters = self._counters[number]
        hits = self._look_up(number, tokens)
        counters.prompt_tokens += len(tokens)
        if self.caching:
            counters.queries += len(tokens)
            counters.hits += hits
        work = 0 if prefilled else len(tokens) - hits
        await self._until(time.monotonic() + self.sim.ttft + work * self.sim.prefill_per_1k / 1000)
        first = time.monotonic()
        counters.ttft_sum += first - began
        done = min(1, count)
        yield done
        while done < count:
            # A crowded server sends larger chunks, as vLLM merges what a busy front end has not sent yet.
            interval = max(self.sim.stream_interval, sum(each.running for each in self._counters) // 4)
            made = min(interval, count - done)
            done += made
            await self._until(first + (done - 1) * self.sim.token)
            yield made

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        while self.stopped:
            await asyncio.sleep(0.2)

    def metrics(self) -> str:
        """Prometheus text in vLLM's names."""
        lines: list[str] = []
        kinds: tuple[tuple[str, str, Callable[[_Counters], float]], ...] = (
            ("gauge", "num_requests_running", lambda c: c.running),
            ("gauge", "num_requests_waiting", lambda c: c.waiting),
            ("counter", "prefix_cache_queries_total", lambda c: c.queries),
            ("counter", "prefix_cache_hits_total", lambda c: c.hits),
            ("counter", "prompt_tokens_total", lambda c: c.prompt_tokens),
            ("counter", "generation_tokens_total", lambda c: c.generated),
            ("counter", "time_to_first_token_seconds_sum", lambda c: c.ttft_sum),
            ("counter", "time_to_first_token_seconds_count", lambda c: c.finished),
        )
        for kind, name, value in kinds:
            lines += [f"# HELP vllm:{name} Simulated.", f"# TYPE vllm:{name} {kind}"]
            for number, counters in enumerate(self._counters):
                label = f'engine="{number}",model_name="{self.model}"'
                lines.append(f"vllm:{name}{{{label}}} {float(value(counters))}")
        lines += ["# HELP vllm:request_success_total Simulated.", "# TYPE vllm:request_success_total counter"]
        for number, counters in enumerate(self._counters):
            label = f'engine="{number}",finished_reason="length",model_name="{self.model}"'
            lines.append(f"vllm:request_success_total{{{label}}} {float(counters.finished)}")
        return "\n".join([*lines, ""])
