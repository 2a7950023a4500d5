"""The reader of raw result files: what it takes, what it refuses, and that it never does anything else."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results.points import DATA, RUN, good_json, good_raw, make_point, raw_of

from pytest_gpubench.bench.result import RawResult, parse_raw, read_raw
from pytest_gpubench.bench.validity import validate
from pytest_gpubench.errors import ResultError
from pytest_gpubench.results.outcome import Outcome
from pytest_gpubench.results.row import build_row
from pytest_gpubench.results.store import to_json

EXAMPLES = int(os.environ.get("GPUBENCH_FUZZ_EXAMPLES", "100"))


def test_a_real_two_node_result_is_read_whole() -> None:
    raw = read_raw(DATA / "vllm_bench" / "ok_two_node_mp.json")
    assert (raw.num_prompts, raw.completed, raw.failed) == (8, 8, 0)
    assert raw.failure_rate == 0.0
    assert raw.latencies["p99_itl_ms"] == 44.51209615002426
    assert raw.text("model_id") == "/models/tiny-opt"
    assert raw.non_finite == ()
    assert not raw.stale


def test_a_real_dead_engine_result_counts_every_prompt_as_failed() -> None:
    raw = read_raw(DATA / "vllm_bench" / "all_failed_exit0.json")
    assert (raw.completed, raw.failed, raw.failure_rate) == (0, 8, 1.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"{", "is not JSON (line 1"),
        (b'{"completed": 12', "is not JSON"),
        (b"\xff\xfe", "is not UTF-8 (byte 0"),
        (b"[1, 2]", "holds a list"),
        (b"3", "holds a number"),
        (b"null", "holds a null"),
        (b'{"completed": 1} trailing', "text after the result"),
        (b'{"completed": 1, "completed": 2}', "'completed' appears twice"),
        (b'{"completed": "8"}', "completed is a text, expected a number"),
        (b'{"completed": true}', "completed is a boolean"),
        (b'{"completed": -1}', "expected zero or more"),
        (b'{"completed": 1.5}', "expected a whole number"),
        (b'{"mean_ttft_ms": [1]}', "mean_ttft_ms is a list"),
        (b'{"p99.9_ttft_ms": -2}', "a latency cannot be negative"),
        (b'{"model_id": 7}', "model_id is a number, expected text"),
        (b'{"max_concurrency": "64"}', "max_concurrency is a text"),
        (b'{"completed": ' + b"9" * 400 + b"}", "beyond any measurement"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not a usable result"),
    ],
)
def test_what_is_no_result_is_refused_by_name(content: bytes, words: str) -> None:
    with pytest.raises(ResultError, match=r"^bench\.json: ") as caught:
        parse_raw(content, "bench.json")
    assert words in str(caught.value)


def test_appended_results_are_refused_because_nobody_knows_which_counts() -> None:
    one = json.dumps(good_json())
    with pytest.raises(ResultError, match=r"more than one result .*--append-result"):
        parse_raw(f"{one}\n{one}".encode(), "bench.json")


def test_missing_and_odd_files_are_refused_without_blocking(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="does not exist"):
        read_raw(tmp_path / "none.json")
    with pytest.raises(ResultError, match="not a regular file"):
        read_raw(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ResultError, match="not a regular file"):
        read_raw(fifo)
    with pytest.raises(ResultError, match="cannot be read"):
        read_raw(Path("a\0b"))


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_bytes(b" " * 2000)
    with pytest.raises(ResultError, match="2000 bytes, more than the 1000"):
        read_raw(path, max_bytes=1000)


def test_an_older_file_is_marked_stale(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(good_json()))
    os.utime(path, (1000.0, 1000.0))
    assert read_raw(path, written_after=1000.5).stale
    assert not read_raw(path, written_after=1000.0).stale
    assert not read_raw(path).stale


def test_non_finite_tokens_are_flagged_and_read_as_unknown() -> None:
    raw = parse_raw(b'{"completed": 3, "mean_ttft_ms": NaN, "duration": Infinity, "x": [1e999]}', "b")
    assert raw.non_finite == ("mean_ttft_ms", "duration", "x")
    assert raw.latencies == {"mean_ttft_ms": None}
    assert raw.number("duration") is None


def test_percentiles_with_a_fraction_and_the_odd_goodput_key_are_understood() -> None:
    raw = raw_of({"completed": 1, "p99.9_ttft_ms": 70.0, "request_goodput:": None, "mean_queue_ms": 1.0})
    assert raw.latencies == {"p99.9_ttft_ms": 70.0, "mean_queue_ms": 1.0}


def test_a_byte_order_mark_is_no_obstacle() -> None:
    assert parse_raw(b'\xef\xbb\xbf{"completed": 1}', "b").completed == 1


@pytest.mark.parametrize(
    ("content", "failed", "rate"),
    [
        ({"num_prompts": 50, "completed": 1}, 49, 0.98),
        ({"num_prompts": 100, "completed": 90, "failed": 4}, 10, 0.10),
        ({"num_prompts": 100, "completed": 100, "failed": 4}, 4, 0.04),
        ({"num_prompts": 0, "completed": 0, "failed": 0}, 0, None),
        ({"completed": 5}, None, None),
        ({"num_prompts": 5}, None, None),
    ],
)
def test_what_did_not_complete_counts_as_failed(
    content: dict[str, Any], failed: int | None, rate: float | None
) -> None:
    raw = raw_of(content)
    assert raw.failed == failed
    assert raw.failure_rate == (None if rate is None else pytest.approx(rate))


def test_rates_come_from_totals_when_the_file_does_not_state_them() -> None:
    raw = good_raw(output_throughput=..., total_token_throughput=...)
    assert raw.output_throughput == 2048.0
    assert raw.total_throughput == 4096.0
    assert good_raw(output_throughput=..., duration=0.0).output_throughput is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*good_json(), "p99.9_e2el_ms", "mean_itl_ms", "request_goodput:", "date"])


def pipeline(content: bytes) -> None:
    """Read, validate, make a row: a clear error, or a row that strict JSON can hold."""
    refusal = ""
    try:
        raw = parse_raw(content, "bench.json")
    except ResultError as err:
        refusal = str(err)
    if refusal:
        assert refusal.startswith("bench.json: ")
        return
    point = make_point()
    validate([raw], point)
    for keep in (False, True):
        row = build_row(point, Outcome(raws=(raw,)), RUN, keep_untrusted=keep)
        to_json(row)
        assert row["status"] in ("passed", "failed")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(KEYS, JSON_VALUES, max_size=5))
def test_fuzz_results_with_odd_values(changes: dict[str, Any]) -> None:
    pipeline(json.dumps({**good_json(), **changes}).encode("utf-8", "surrogatepass"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(content=st.binary(max_size=200))
def test_fuzz_bytes(content: bytes) -> None:
    pipeline(content)


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_fuzz_torn_and_damaged_results(data: st.DataObject) -> None:
    content = json.dumps(good_json()).encode()
    cut = data.draw(st.integers(0, len(content)))
    tail = data.draw(st.binary(max_size=12))
    pipeline(content[:cut] + tail + (content[cut:] if data.draw(st.booleans()) else b""))


def test_numbers_never_leak_non_finite_values() -> None:
    raw = RawResult("b", {"a": math.nan, "b": -math.inf, "c": 10**400, "d": True, "e": "1"})
    assert [raw.number(key) for key in "abcdef"] == [None] * 6
