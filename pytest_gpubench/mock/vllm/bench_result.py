"""The result file of ``vllm bench serve`` 0.32, from what was measured."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "percentile", "result", "trim"]

_DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


@dataclass
class Outcome:
    """What one request came to; times in seconds."""

    success: bool = False
    prompt_len: int = 0
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    start: float = 0.0
    queued: float = 0.0
    text: str = ""
    error: str = ""


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the closest ranks; 0 for no values, as the real client has it."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def result(args: Namespace, outcomes: list[Outcome], seconds: float, date: str) -> dict[str, Any]:
    """All keys of a run, in the real client's order."""
    good = [item for item in outcomes if item.success]
    prompt, output = sum(item.prompt_len for item in good), sum(item.output_tokens for item in good)
    found: dict[str, Any] = {
        "date": date,
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": args.model,
        "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": args.num_prompts,
    }
    for item in args.metadata or []:
        name, _, value = item.partition("=")
        found[name.strip()] = value.strip()
    rate = args.request_rate
    most_tokens, most_requests = _peaks(good)
    found |= {
        "request_rate": rate if rate < math.inf else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / seconds,
        "request_goodput": _goodput(args, good, seconds),
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        "input_lens": [item.prompt_len for item in outcomes],
        "output_lens": [item.output_tokens if item.success else 0 for item in outcomes],
        "ttfts": [item.ttft for item in outcomes],
        "itls": [item.itl for item in outcomes],
        "start_times": [item.start for item in outcomes],
        "generated_texts": [item.text for item in outcomes],
        "errors": [item.error for item in outcomes],
        "latencies": [item.latency for item in outcomes],
        "queue_times": [item.queued for item in outcomes],
        "max_output_tokens_per_s": most_tokens,
        "max_concurrent_requests": most_requests,
        "rtfx": 0.0,
    }
    found |= _latencies(args, good)
    return found


def trim(found: dict[str, Any]) -> dict[str, Any]:
    """Without ``--save-detailed``."""
    return {key: value for key, value in found.items() if key not in _DETAILS}


def _tpot(item: Outcome) -> float:
    return (item.latency - item.ttft) / (item.output_tokens - 1) if item.output_tokens > 1 else 0.0


def _latencies(args: Namespace, good: list[Outcome]) -> dict[str, float]:
    values = {
        "ttft": [item.ttft for item in good],
        "tpot": [_tpot(item) for item in good if item.output_tokens > 1],
        "itl": [step for item in good for step in item.itl],
        "e2el": [item.latency for item in good],
        "client_queue_time": [item.queued for item in good],
        "e2el_including_client_queue": [item.queued + item.latency for item in good],
    }
    found: dict[str, float] = {}
    asked = (args.percentile_metrics or "ttft,tpot,itl").split(",")
    percents = [float(text) for text in args.metric_percentiles.split(",")]
    for name in ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"):
        if name not in asked:
            continue
        series = values[name]
        found[f"mean_{name}_ms"] = statistics.fmean(series) * 1000 if series else 0.0
        found[f"median_{name}_ms"] = statistics.median(series) * 1000 if series else 0.0
        found[f"std_{name}_ms"] = statistics.pstdev(series) * 1000 if series else 0.0
        for percent in percents:
            word = str(int(percent)) if percent == int(percent) else str(percent)
            found[f"p{word}_{name}_ms"] = percentile(series, percent) * 1000
    return found


def _goodput(args: Namespace, good: list[Outcome], seconds: float) -> float | None:
    if not args.goodput:
        return None
    limits = {name: float(value) / 1000 for name, _, value in (item.partition(":") for item in args.goodput)}
    met = 0
    for item in good:
        values = {"ttft": item.ttft, "tpot": _tpot(item), "e2el": item.latency}
        met += all(values[name] <= limit for name, limit in limits.items())
    return met / seconds


def _peaks(good: list[Outcome]) -> tuple[float, int]:
    """The busiest second: chunks that arrived in it (the real client counts chunks too), requests in
    flight."""
    if not good:
        return 0.0, 0
    first = min(item.start for item in good)
    chunks: dict[int, int] = {}
    requests: dict[int, int] = {}
    for item in good:
        moment = item.start + item.ttft
        for step in [0.0, *item.itl]:
            moment += step
            second = int(moment - first)
            chunks[second] = chunks.get(second, 0) + 1
        for second in range(int(item.start - first), int(item.start + item.latency - first) + 1):
            requests[second] = requests.get(second, 0) + 1
    return float(max(chunks.values())), max(requests.values())
