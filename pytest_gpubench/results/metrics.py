"""The row's metrics: which names exist, in which unit, and which direction is better."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

__all__ = ["FAMILIES", "STATISTICS", "Metric", "known_metric", "metric", "near_metrics", "units"]

FAMILIES = ("ttft", "tpot", "itl", "e2el")
"""Latency families of the client: to first token, per output token, between tokens, end to end."""

STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
"""Statistics that every row has a column for; null where the result file lacks them."""


@dataclass(frozen=True)
class Metric:
    """A metric's name, unit ("" for a share) and whether a higher value is better (None: neither)."""

    name: str
    unit: str
    higher_is_better: bool | None

    def show(self, value: float | None) -> str:
        """The value with its unit, for messages."""
        if value is None:
            return "missing"
        text = f"{value:.6g}"
        return f"{text} {self.unit}" if self.unit else text


_PLAIN = {
    "tput_per_gpu": Metric("tput_per_gpu", "tok/s/GPU", True),
    "output_tput_per_gpu": Metric("output_tput_per_gpu", "tok/s/GPU", True),
    "input_tput_per_gpu": Metric("input_tput_per_gpu", "tok/s/GPU", True),
    "request_throughput": Metric("request_throughput", "req/s", True),
    "output_throughput": Metric("output_throughput", "tok/s", True),
    "total_token_throughput": Metric("total_token_throughput", "tok/s", True),
    "failure_rate": Metric("failure_rate", "", False),
    "prefix_cache_hit_rate": Metric("prefix_cache_hit_rate", "", None),
    "duration": Metric("duration", "s", False),
    "completed": Metric("completed", "requests", True),
    "failed": Metric("failed", "requests", False),
    "total_output_tokens": Metric("total_output_tokens", "tokens", True),
    "slo_best": Metric("slo_best", "", True),
}
# ``p99.9`` is a percentile of its own; p100 is the maximum.
_PATTERN = re.compile(r"^(?:mean|median|std|min|max|p\d{1,2}(?:\.\d+)?|p100)_(ttft|tpot|itl|e2el|intvty)$")


def metric(name: str) -> Metric | None:
    """What is known of the row's metric ``name``; None when a row never has it."""
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    match = _PATTERN.match(name)
    if match is None:
        return None
    if match[1] == "intvty":
        return Metric(name, "tok/s/user", True)
    return Metric(name, "s", False)


def known_metric(name: str) -> bool:
    """True when ``name`` can be gated: it is the name of a figure of the row."""
    return metric(name) is not None


def near_metrics(name: str) -> list[str]:
    """At most three known names that ``name`` may have meant, the likeliest first."""
    shortened = name.removesuffix("_ms")
    if shortened != name and known_metric(shortened):  # the raw file's name: the row is in seconds
        return [shortened]
    names = [*_PLAIN, *(f"{s}_{f}" for f in (*FAMILIES, "intvty") for s in STATISTICS)]
    return difflib.get_close_matches(name, names, n=3, cutoff=0.6)


def units(name: str) -> str:
    """The unit of the row's metric ``name``; "" for a share and for names that are not known."""
    found = metric(name)
    return found.unit if found else ""
