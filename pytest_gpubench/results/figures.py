"""One raw result -> the row's figures: rates per GPU, latencies in seconds, interactivity.

The arithmetic is the dashboard's own, operation by operation, so that values agree to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpubench.bench.result import LATENCY_KEY, RawResult
from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.types import Deployment
from pytest_gpubench.results.metrics import FAMILIES, STATISTICS

__all__ = ["THROUGHPUTS", "Divisors", "divisors", "empty_figures", "figures"]

THROUGHPUTS = ("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu")
_TOTALS = ("request_throughput", "output_throughput", "total_token_throughput")


@dataclass(frozen=True)
class Divisors:
    """GPUs that divide each per-GPU figure, and what they are: ``allocated`` or ``roles``."""

    total: int
    output: int
    input: int
    basis: str


def divisors(deployment: Deployment) -> Divisors:
    """The GPUs allocated; disaggregated: total by both roles, output by decode, input by prefill GPUs.

    Aggregated multi-node (a prefill role, no decode workers) divides by all GPUs, as one server does.
    """
    prefill, decode = deployment.prefill, deployment.decode
    if prefill is not None and decode is not None and decode.gpus > 0 and prefill.gpus > 0:
        return Divisors(prefill.gpus + decode.gpus, decode.gpus, prefill.gpus, "roles")
    count = deployment.gpu_count
    if count <= 0:
        raise RecipeError(
            f"{deployment.recipe}: {deployment.id}: gpu_count is {count}: per-GPU figures need the number of "
            "GPUs allocated (vllm_bench.metadata.gpu_count, num_gpus, or num_nodes and gpus_per_node)"
        )
    return Divisors(count, count, count, "allocated")


def figures(raw: RawResult, deployment: Deployment) -> dict[str, float | None]:
    """Every figure of the row; None where the file has no such value. Columns are those of
    :func:`empty_figures`, then any further latency that the file has.
    """
    found = empty_figures()
    gpus = divisors(deployment)
    total, output = raw.total_throughput, raw.output_throughput
    if total is not None:
        found["tput_per_gpu"] = total / gpus.total
    if output is not None:
        found["output_tput_per_gpu"] = output / gpus.output
    if total is not None and output is not None:
        found["input_tput_per_gpu"] = (total - output) / gpus.input
    found["request_throughput"] = raw.number("request_throughput")
    found["output_throughput"], found["total_token_throughput"] = output, total
    for key, milliseconds in raw.latencies.items():
        name = key.removesuffix("_ms")
        measured = _measured(key, milliseconds)
        found[name] = None if measured is None else measured / 1000.0
        if name.endswith("_tpot"):
            found[name.replace("tpot", "intvty")] = 1000.0 / measured if measured else None
    return found


def empty_figures() -> dict[str, float | None]:
    """The columns that every row has, all None: what is absent is null, not 0 and not a missing column."""
    names = [*THROUGHPUTS, *_TOTALS]
    for family in FAMILIES:
        for statistic in STATISTICS:
            names.append(f"{statistic}_{family}")
            if family == "tpot":
                names.append(f"{statistic}_intvty")
    return dict.fromkeys(names)


def _measured(key: str, milliseconds: float | None) -> float | None:
    """Zero is the client's "no samples" (one output token has no TPOT), except for a deviation."""
    match = LATENCY_KEY.match(key)
    return None if milliseconds == 0 and (match is None or match[1] != "std") else milliseconds
