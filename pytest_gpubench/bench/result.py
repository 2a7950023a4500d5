"""The raw result file of a benchmark client, read strictly: what it says, never what it should say.

vLLM's client exits 0 with every request failed, older clients leave ``failed`` out, which latency keys
exist depends on the client's flags, and ``--append-result`` puts several objects into one file. So
nothing here is assumed: a value is there and has its type, or it is None, or the file is refused.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pytest_gpubench.errors import ResultError

__all__ = ["COUNTS", "JSON", "LATENCY_KEY", "MAX_BYTES", "RATES", "RawResult", "parse_raw", "read_raw"]

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""Any parsed JSON value."""

MAX_BYTES = 256 * 1024 * 1024
"""Largest file read; a result with every token time of a long run stays well below."""

LATENCY_KEY = re.compile(r"^(mean|median|std|min|max|p\d{1,2}(?:\.\d+)?|p100)_([a-z][a-z0-9_]*)_ms$")
"""A latency key of a raw file: statistic, family (ttft, tpot, itl, e2el, ...), milliseconds."""

FAMILIES = frozenset({"ttft", "tpot", "itl", "e2el"})
COUNTS = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
RATES = ("duration", "request_throughput", "output_throughput", "total_token_throughput")
_TEXTS = ("model_id", "tokenizer_id", "backend", "endpoint_type", "date")
_NESTING = 64


@dataclass(frozen=True)
class RawResult:
    """One parsed result file. Token counts are totals, ``duration`` seconds, rates per second.

    ``non_finite`` names the top-level keys that hold NaN or infinity; ``stale`` is True when the file
    is older than the run that should have written it.
    """

    path: str
    data: Mapping[str, JSON] = field(default_factory=dict)
    non_finite: tuple[str, ...] = ()
    stale: bool = False

    def number(self, key: str) -> float | None:
        """The number under ``key``; None when it is missing, null, not a number, NaN or infinite."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the range of a float
            return None
        return number if math.isfinite(number) else None

    def count(self, key: str) -> int | None:
        """The whole number under ``key``, None when it is missing, null or not finite."""
        number = self.number(key)
        return None if number is None else int(number)

    def text(self, key: str) -> str | None:
        """The text under ``key``, None when it is missing, empty or null."""
        value = self.data.get(key)
        return value if isinstance(value, str) and value else None

    @property
    def num_prompts(self) -> int | None:
        """Prompts that the client says it sent."""
        return self.count("num_prompts")

    @property
    def completed(self) -> int | None:
        """Requests that completed."""
        return self.count("completed")

    @property
    def stated_failed(self) -> int | None:
        """The file's own ``failed``; older clients write none, which is not zero."""
        return self.count("failed")

    @property
    def failed(self) -> int | None:
        """Requests that did not complete: the larger of what is stated and what is missing."""
        stated, prompts, completed = self.stated_failed, self.num_prompts, self.completed
        if prompts is None or completed is None:
            return stated
        return max(prompts - completed, stated or 0)

    @property
    def failure_rate(self) -> float | None:
        """Share of the prompts that did not complete, 0..1; None when the prompts are unknown or zero."""
        failed, prompts = self.failed, self.num_prompts
        return min(1.0, failed / prompts) if failed is not None and prompts else None

    @property
    def output_throughput(self) -> float | None:
        """Output tokens per second, from totals and duration where the file does not state it."""
        stated = self.number("output_throughput")
        return stated if stated is not None else self._rate("total_output_tokens")

    @property
    def total_throughput(self) -> float | None:
        """Input and output tokens per second, from totals and duration where the file does not state it."""
        stated = self.number("total_token_throughput")
        return stated if stated is not None else self._rate("total_input_tokens", "total_output_tokens")

    @property
    def latencies(self) -> dict[str, float | None]:
        """``mean_ttft_ms`` and its like with their milliseconds, in file order; None where not finite."""
        return {key: self.number(key) for key in self.data if LATENCY_KEY.match(key)}

    def _rate(self, *keys: str) -> float | None:
        totals = [self.number(key) for key in keys]
        duration = self.number("duration")
        if not duration or duration < 0 or any(total is None for total in totals):
            return None
        return sum(total for total in totals if total is not None) / duration


def read_raw(path: Path, *, written_after: float | None = None, max_bytes: int = MAX_BYTES) -> RawResult:
    """Read and check a result file; ``ResultError`` names the file and what is wrong with it.

    ``written_after`` (seconds since the epoch, by the clock of the file system) marks an older file
    as stale: it is not refused, so that the report can show what it holds.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):  # a FIFO would block, a device never end
            raise ResultError(f"{path}: not a regular file; expected the client's result file")
        if info.st_size > max_bytes:
            raise ResultError(
                f"{path}: {info.st_size} bytes, more than the {max_bytes} that are read; "
                "run the client without --save-detailed"
            )
        content = path.read_bytes()
    except FileNotFoundError:
        raise ResultError(f"{path}: does not exist; the client left no result file") from None
    except (OSError, ValueError) as err:  # ValueError: a NUL byte in the path
        raise ResultError(f"{path}: cannot be read: {err}") from None
    stale = written_after is not None and info.st_mtime < written_after
    return parse_raw(content, str(path), stale=stale)


def parse_raw(content: bytes, path: str, *, stale: bool = False) -> RawResult:
    """The checked result in ``content``; ``path`` is for messages only."""
    if not content.strip():
        raise ResultError(f"{path}: is empty; the client was stopped before it wrote, or the disk is full")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise ResultError(f"{path}: is not UTF-8 (byte {err.start}: {err.reason})") from None
    data = _one_object(text, path)
    _check_types(data, path)
    bad = tuple(key for key, value in data.items() if _holds_non_finite(value, 0))
    return RawResult(path, data, bad, stale)


def _one_object(text: str, path: str) -> dict[str, JSON]:
    decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates)
    start = len(text) - len(text.lstrip())
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as err:
        raise ResultError(
            f"{path}: is not JSON (line {err.lineno}, column {err.colno}: {err.msg}); "
            "the client may have been stopped while it wrote"
        ) from None
    except RecursionError:
        raise ResultError(f"{path}: is nested too deeply for a result file") from None
    except ValueError as err:  # a duplicate key, or an integer of thousands of digits
        raise ResultError(f"{path}: is not a usable result: {err}") from None
    rest = text[end:].lstrip()
    if rest.startswith("{"):
        raise ResultError(
            f"{path}: holds more than one result (written with --append-result?); one file per run is "
            "needed, or it is unknown which run a figure belongs to"
        )
    if rest:
        raise ResultError(f"{path}: has text after the result object: {rest[:40]!r}")
    if not isinstance(value, dict):
        raise ResultError(f"{path}: holds a {_kind(value)}, expected one object of benchmark results")
    return value


def _no_duplicates(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found: dict[str, JSON] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:80]!r} appears twice")
        found[key] = value
    return found


def _check_types(data: dict[str, JSON], path: str) -> None:
    for key in COUNTS:
        value = data.get(key)
        _check_number(value, key, path)
        if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
            raise ResultError(f"{path}: {key} is {value!r}, expected a whole number")
        if isinstance(value, (int, float)) and value < 0:
            raise ResultError(f"{path}: {key} is {value!r}, expected zero or more")
    for key in (*RATES, "max_concurrency"):
        _check_number(data.get(key), key, path)
    for key, value in data.items():
        match = LATENCY_KEY.match(key)
        if match and match[2] in FAMILIES:
            _check_number(value, key, path)
            if isinstance(value, (int, float)) and value < 0:
                raise ResultError(f"{path}: {key} is {value!r}: a latency cannot be negative")
    for key in _TEXTS:
        value = data.get(key)
        if value is not None and not isinstance(value, str):
            raise ResultError(f"{path}: {key} is a {_kind(value)}, expected text")


def _check_number(value: JSON, key: str, path: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ResultError(f"{path}: {key} is a {_kind(value)}, expected a number")
    if isinstance(value, int) and abs(value) > 10**300:
        raise ResultError(f"{path}: {key} is an integer beyond any measurement")


def _holds_non_finite(value: JSON, depth: int) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if depth >= _NESTING:
        return False
    if isinstance(value, list):
        return any(_holds_non_finite(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return any(_holds_non_finite(item, depth + 1) for item in value.values())
    return False


def _kind(value: JSON) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names[type(value)]
