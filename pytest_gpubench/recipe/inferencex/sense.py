"""What InferenceX's validator accepts although it cannot work, found before anything is submitted. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pytest_gpubench.recipe.inferencex.parts import AgenticPoint, Loads, Worker
from pytest_gpubench.recipe.inferencex.schema import Entry, search_spaces

__all__ = ["Location", "Problem", "senseless"]

Location: TypeAlias = "tuple[str | int, ...]"
"""Keys and indexes below the config key, in the file's own spelling."""

Problem: TypeAlias = "tuple[Location, str]"
"""Where, and what is wrong there."""


def senseless(entry: Entry) -> list[Problem]:
    """Everything in the entry that no allocation could serve, in the order of the file."""
    found: list[Problem] = []
    for where, scenario, points in search_spaces(entry):
        for name in ("isl", "osl"):
            value = getattr(scenario, name, None)
            if value is not None and value <= 0:
                found.append(((*where, name), f"must be above 0 (got {value})"))
        if not points:
            found.append(((*where, "search-space"), "is empty: nothing would be measured"))
        for index, point in enumerate(points):
            here = (*where, "search-space", index)
            found += [((*here, *inner), text) for inner, text in _point(point)]
    return found


def _point(point: Loads) -> Iterator[Problem]:
    yield from _concurrencies(point)
    prefill, decode, worker = (getattr(point, name, None) for name in ("prefill", "decode", "worker"))
    for name, role in (("prefill", prefill), ("decode", decode), ("worker", worker)):
        if role is not None:
            yield from (((name, *where), text) for where, text in _worker(role))
    if isinstance(prefill, Worker) and prefill.num_worker == 0:
        yield ("prefill", "num-worker"), "is 0: without prefill workers nothing serves"
    tp = getattr(point, "tp", None)
    if tp is not None:
        ep, pcp = getattr(point, "ep", None), getattr(point, "pcp_size", None)
        yield from _sizes(tp, 1 if ep is None else ep, bool(getattr(point, "dp_attn", False)), pcp or 1)
    if isinstance(point, AgenticPoint) and point.num_nodes is not None and point.worker is None:
        yield ("num-nodes",), "belongs to the aggregated form with worker"


def _worker(worker: Worker) -> Iterator[Problem]:
    if worker.num_worker < 0:
        yield ("num-worker",), f"must not be below 0 (got {worker.num_worker})"
    yield from _sizes(worker.tp, worker.ep, worker.dp_attn, worker.pcp_size)


def _sizes(tp: int, ep: int, dp_attn: bool, pcp: int) -> Iterator[Problem]:
    for name, value in (("tp", tp), ("ep", ep)):
        if value <= 0:
            yield (name,), f"must be above 0 (got {value})"
    if not dp_attn and tp > 0 and ep > tp * pcp:
        yield ("ep",), f"{ep} expert ranks need {ep} GPUs, but tp makes {tp * pcp} (dp-attn is off)"


def _concurrencies(point: Loads) -> Iterator[Problem]:
    for name in ("conc_start", "conc_end"):
        value = getattr(point, name)
        key = name.replace("_", "-")
        if value is not None and point.conc_list is not None:
            yield (key,), "stands beside conc-list: write one of them"
        elif value is not None and value <= 0:
            yield (key,), f"must be above 0 (got {value})"
    seen: set[int] = set()
    for index, conc in enumerate(point.conc_list or []):
        if conc in seen:
            yield ("conc-list", index), f"{conc} is listed twice: it would be measured twice as one point"
        seen.add(conc)
