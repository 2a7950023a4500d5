"""Is it a measurement of what was asked? Judged before any threshold; the client's exit code is no evidence.

A dead engine gives zeros and exit code 0, a cut-off engine short outputs, a foreign server another
model's numbers, a leftover file those of yesterday. Each has a reason of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpubench.bench.result import COUNTS, LATENCY_KEY, RATES, RawResult
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Deployment, Load, Point

__all__ = ["Band", "Problem", "expected_output_tokens", "input_band", "output_band", "validate"]

# Tokenizers add a begin token, chat templates some more, and re-tokenizing random text drifts a little.
INPUT_TOLERANCE = 0.10
INPUT_SLACK = 32  # tokens per request


@dataclass(frozen=True)
class Problem:
    """One thing that makes a measurement untrustworthy; ``message`` holds found and expected."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Band:
    """Tokens per request that are acceptable, both ends included."""

    low: float
    high: float

    def holds(self, tokens: float, requests: int) -> bool:
        """Whether a total of ``tokens`` over ``requests`` lies in the band."""
        # Half a token of slack: lengths are drawn as whole numbers, the bounds need not be.
        return self.low * requests - 0.5 <= tokens <= self.high * requests + 0.5

    def of(self, requests: int) -> str:
        """The band of a total over ``requests``, for messages."""
        low, high = math.ceil(self.low * requests - 0.5), math.floor(self.high * requests + 0.5)
        return str(low) if low == high else f"{low} to {high}"


def validate(
    raws: Sequence[RawResult], point: Point, *, prefix_cache_hit_rates: Sequence[float | None] = ()
) -> list[Problem]:
    """Every reason not to trust the repetitions in ``raws`` as a measurement of ``point``.

    ``prefix_cache_hit_rates`` is parallel to ``raws``; None is unknown and proves nothing.
    """
    problems: list[Problem] = []
    wanted = point.load.repetitions if point.load is not None else 1
    if point.kind == "serving" and len(raws) < wanted:
        problems.append(
            Problem(Reason.WRONG_LOAD, f"{len(raws)} of {wanted} repetitions left a result; all are needed")
        )
    for index, raw in enumerate(raws):
        where = f"repetition {index + 1} of {len(raws)}: " if len(raws) > 1 else ""
        rate = prefix_cache_hit_rates[index] if index < len(prefix_cache_hit_rates) else None
        for problem in _one(raw, point, rate):
            problems.append(Problem(problem.reason, where + problem.message))
    return problems


def expected_output_tokens(load: Load | None, completed: int) -> int | None:
    """Output tokens that ``completed`` requests must have when EOS is ignored; None when it is not known."""
    if load is None or load.osl is None or not load.ignore_eos:
        return None
    return completed * load.osl


def output_band(load: Load) -> Band | None:
    """Output tokens per request when EOS is ignored: exact, or the band of a random range ratio."""
    if load.osl is None or not load.ignore_eos or load.dataset != "random":
        return None
    ratio = _range_ratio(load)
    # A server may refuse to end before one token; nothing else lies between asked and got.
    return Band(max(1.0, math.floor(load.osl * (1 - ratio))), math.ceil(load.osl * (1 + ratio)))


def input_band(load: Load) -> Band | None:
    """Input tokens per request that are near what was asked; None where the data set decides."""
    if load.isl is None or load.dataset != "random":
        return None
    ratio = _range_ratio(load)
    prefix = _number(dict(load.args).get("random-prefix-len")) or 0.0
    low = prefix + load.isl * (1 - ratio)
    high = prefix + load.isl * (1 + ratio)
    return Band(
        max(0.0, low * (1 - INPUT_TOLERANCE) - INPUT_SLACK), high * (1 + INPUT_TOLERANCE) + INPUT_SLACK
    )


def _one(raw: RawResult, point: Point, hit_rate: float | None) -> Iterator[Problem]:
    if raw.stale:
        yield Problem(Reason.STALE_RESULT, f"{raw.path} is older than this run: the client wrote nothing")
        return  # whatever else is wrong with it says nothing of this run
    yield from _finite(raw)
    yield from _identity(raw, point.deployment)
    load = point.load
    if load is not None:
        yield from _load(raw, load, search=point.kind == "slo")
    completed = raw.completed
    if completed is None:
        if "completed" not in raw.non_finite:
            yield Problem(Reason.UNREADABLE_RESULT, f"{raw.path} has no `completed`: no benchmark result")
        return
    prompts = raw.num_prompts if raw.num_prompts is not None else (load.num_prompts if load else None)
    yield from _accounting(raw, prompts, completed)
    duration = raw.number("duration")
    if "duration" not in raw.non_finite and (duration is None or duration <= 0):
        found = "missing" if duration is None else f"{duration:g} s"
        yield Problem(Reason.BAD_DURATION, f"the benchmark duration is {found}, expected more than 0 s")
    if completed > 0 and load is not None:
        yield from _tokens(raw, load, completed)
        if point.deployment.scenario == "fixed-seq-len":  # turns of a conversation are meant to hit
            yield from _cache(load, hit_rate)


def _finite(raw: RawResult) -> Iterator[Problem]:
    bad = [k for k in raw.non_finite if k in COUNTS or k in RATES or LATENCY_KEY.match(k)]
    if bad:
        yield Problem(Reason.NOT_FINITE, f"NaN or infinite in {raw.path}: {', '.join(bad)}")


def _identity(raw: RawResult, deployment: Deployment) -> Iterator[Problem]:
    found = raw.text("model_id")
    if found is None:
        return
    names = dict.fromkeys((deployment.model, deployment.model_path, deployment.served_name))
    if found not in names:
        yield Problem(Reason.WRONG_MODEL, f"the result is of model {found!r}, asked was {' or '.join(names)}")


def _load(raw: RawResult, load: Load, *, search: bool) -> Iterator[Problem]:
    if "max_concurrency" in raw.data and load.concurrency is not None and not search:
        found = raw.count("max_concurrency")
        if found != load.concurrency:
            yield Problem(
                Reason.WRONG_LOAD,
                f"the result has concurrency {'unlimited' if found is None else found}, "
                f"asked was {load.concurrency}",
            )
    prompts = raw.num_prompts
    if prompts is not None and prompts != load.num_prompts and not search:
        yield Problem(Reason.WRONG_LOAD, f"the result has {prompts} prompts, asked were {load.num_prompts}")


def _accounting(raw: RawResult, prompts: int | None, completed: int) -> Iterator[Problem]:
    if completed == 0:
        of = f"0 of {prompts} requests" if prompts is not None else "no request"
        yield Problem(Reason.NOTHING_COMPLETED, f"{of} completed: nothing was measured")
    stated = raw.stated_failed
    if prompts is None or stated is None:
        return  # an older client: what did not complete counts as failed, see RawResult.failed
    missing = prompts - completed - stated
    if missing:
        detail = f"{missing} unaccounted for" if missing > 0 else f"{-missing} more than were sent"
        yield Problem(
            Reason.PROMPTS_UNACCOUNTED,
            f"of {prompts} prompts {completed} completed and {stated} failed: {detail}",
        )


def _tokens(raw: RawResult, load: Load, completed: int) -> Iterator[Problem]:
    if "total_output_tokens" not in raw.non_finite:
        tokens = raw.number("total_output_tokens")
        band = output_band(load)
        if tokens is None:
            yield Problem(
                Reason.OUTPUT_TOKENS_OFF,
                "the result has no `total_output_tokens`: nothing shows that anything was generated",
            )
        elif tokens == 0:
            yield Problem(Reason.OUTPUT_TOKENS_OFF, f"{completed} requests completed with 0 output tokens")
        elif band is not None and not band.holds(tokens, completed):
            yield Problem(
                Reason.OUTPUT_TOKENS_OFF,
                f"{tokens:.0f} output tokens from {completed} completed requests of {load.osl}, "
                f"expected {band.of(completed)}",
            )
    inputs, expected = raw.number("total_input_tokens"), input_band(load)
    if inputs is not None and expected is not None and not expected.holds(inputs, completed):
        yield Problem(
            Reason.INPUT_TOKENS_OFF,
            f"{inputs:.0f} input tokens from {completed} completed requests of {load.isl}, "
            f"expected {expected.of(completed)}",
        )


def _cache(load: Load, rate: float | None) -> Iterator[Problem]:
    if rate is None or load.measures_cache_hits or load.dataset != "random":
        return
    limit = load.max_prefix_cache_hit_rate
    if rate > limit:
        yield Problem(
            Reason.PREFIX_CACHE_HITS,
            f"{rate:.1%} of the prompt tokens hit the prefix cache, more than {limit:.1%}: an earlier run "
            "on this server fed this one (a recipe that means to measure hits says so)",
        )


def _range_ratio(load: Load) -> float:
    ratio = load.random_range_ratio
    if ratio is None:
        ratio = _number(dict(load.args).get("random-range-ratio"))
    return min(1.0, max(0.0, ratio or 0.0))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
