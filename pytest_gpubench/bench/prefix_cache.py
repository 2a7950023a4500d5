"""The prefix-cache hit rate of one run, from two readings of vLLM's ``/metrics``.

The counters ``vllm:prefix_cache_hits_total`` and ``vllm:prefix_cache_queries_total`` count tokens and
exist once per engine (label ``engine``); data parallelism and disaggregation have several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["CacheCounters", "hit_rate", "parse_metrics", "read_counters"]

_SAMPLE = re.compile(
    r"""^([A-Za-z_:][A-Za-z0-9_:]*)              # metric name
        (\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?     # labels; a quoted value may hold any character
        \s+(\S+)(?:\s+-?\d+)?\s*$                # value and an optional timestamp""",
    re.VERBOSE,
)
# Without the suffix: as older servers and some proxies name the counters.
_HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total")
_QUERIES = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_queries_total",
)


@dataclass(frozen=True)
class CacheCounters:
    """Hits and queries in tokens, per engine (its labels as text), at one moment."""

    hits: Mapping[str, float]
    queries: Mapping[str, float]


def parse_metrics(text: str, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The finite samples of ``names`` in Prometheus text: name -> labels -> value; junk is passed over."""
    wanted = set(names)
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None or match[1] not in wanted:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            found.setdefault(match[1], {})[match[2] or ""] = value
    return found


def read_counters(text: str) -> CacheCounters | None:
    """The counters in a ``/metrics`` page, None when the server does not offer them."""
    samples = parse_metrics(text, (*_HITS, *_QUERIES))
    hits = next((samples[name] for name in _HITS if name in samples), None)
    queries = next((samples[name] for name in _QUERIES if name in samples), None)
    return CacheCounters(hits, queries) if hits is not None and queries is not None else None


def hit_rate(before: CacheCounters | None, after: CacheCounters | None) -> float | None:
    """Hits per query between two readings, 0..1, all engines together.

    None when it cannot be known: a reading is missing, nothing was queried, a counter went back or an
    engine is gone (a server restarted in between), or more hits than queries are claimed.
    """
    if before is None or after is None:
        return None
    hits = _growth(before.hits, after.hits)
    queries = _growth(before.queries, after.queries)
    if hits is None or queries is None or queries <= 0 or hits > queries:
        return None
    return hits / queries


def _growth(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    if not before.keys() <= after.keys():
        return None
    changes = [value - before.get(engine, 0.0) for engine, value in after.items()]
    return None if any(change < 0 for change in changes) else sum(changes)
