"""Loads: concurrencies, prompts, and the client arguments that a recipe passes through."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_gpubench.recipe.fields import Length, Rate, RequestRate, shown
from pytest_gpubench.recipe.models import LoadKeys, PointModel
from pytest_gpubench.recipe.source import Source
from pytest_gpubench.recipe.types import Load
from pytest_gpubench.recipe.yaml import KeyPath, written

__all__ = [
    "client_args",
    "concurrencies",
    "lengths_tag",
    "load_template",
    "prompts_for",
    "safe_id",
    "with_size",
]

# perf-eval's managed options, and those that would move the result file or the endpoint.
_RESERVED = frozenset(
    {
        "backend",
        "base-url",
        "host",
        "port",
        "endpoint",
        "model",
        "served-model-name",
        "dataset-name",
        "dataset-path",
        "num-prompts",
        "max-concurrency",
        "trust-remote-code",
        "random-input-len",
        "random-output-len",
        "ignore-eos",
        "speed-bench-output-len",
        "speed-bench-dataset-subset",
        "speed-bench-category",
        "skip-tokenizer-init",
        "save-result",
        "append-result",
        "result-dir",
        "result-filename",
    }
)
_ADOPTED: dict[str, TypeAdapter[Any]] = {
    "num-warmups": TypeAdapter(Length),
    "seed": TypeAdapter(Length),
    "random-range-ratio": TypeAdapter(Rate),
    "request-rate": TypeAdapter(RequestRate),
}
"""Client arguments that are fields of a load, with the kind of value each takes."""

_PROMPTS_PER_CONCURRENCY = 10
"""Without ``num_prompts``, a point sends this many prompts per slot: the field's habit."""

_TAGS = {(1024, 1024): "1k1k", (8192, 1024): "8k1k"}


def lengths_tag(isl: int, osl: int) -> str:
    """``1k1k``, ``8k1k``, else ``<isl>x<osl>``."""
    return _TAGS.get((isl, osl), f"{isl}x{osl}")


def safe_id(text: str) -> str:
    """``text`` with everything but ``[A-Za-z0-9._-]`` replaced, fit for an id and a folder name."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    return re.sub(r"\.{2,}", ".", cleaned).strip("-.") or "x"


def concurrencies(point: PointModel) -> tuple[int, ...]:
    """The point's concurrencies: as listed, or from start by factors of the step, the end included."""
    listed = point.conc if point.conc is not None else point.conc_list
    if listed is not None:
        return listed
    start, end, step = point.conc_start, point.conc_end, point.conc_step or 2
    assert start is not None
    assert end is not None
    values = [start]
    while values[-1] < end:
        values.append(min(values[-1] * step, end))
    return tuple(values)


def prompts_for(
    source: Source, given: Sequence[int] | None, wanted: Sequence[int], where: KeyPath
) -> list[int]:
    """One number of prompts per concurrency: as given (one for all, or one each), else ten per slot."""
    if given is None:
        return [_PROMPTS_PER_CONCURRENCY * concurrency for concurrency in wanted]
    if len(given) == 1:
        return [given[0]] * len(wanted)
    if len(given) != len(wanted):
        source.problems.add(
            where,
            f"expected one number of prompts, or one for each of the {len(wanted)} concurrencies "
            f"(got {len(given)})",
        )
    return [given[min(index, len(given) - 1)] for index in range(len(wanted))]


@dataclass
class _Adopted:
    """What the client arguments say of the load's own fields."""

    num_warmups: int | None = None
    seed: int | None = None
    random_range_ratio: float | None = None
    request_rate: str | None = None


def client_args(
    args: Mapping[str, object] | None, where: KeyPath, source: Source
) -> tuple[tuple[tuple[str, str | None], ...], _Adopted]:
    """perf-eval's ``args`` in any spelling: true is a bare flag, false and null nothing, lists repeat."""
    adopted = _Adopted()
    result: list[tuple[str, str | None]] = []
    seen: dict[str, str] = {}
    for key, value in (args or {}).items():
        place = (*where, "args", key)
        name = key.lstrip("-").replace("_", "-")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
            source.problems.add(place, f"{key!r} is not the name of an option", key=True)
        elif name in _RESERVED:
            source.problems.add(
                place, f"--{name} is set from the recipe's own keys or by the launcher; remove it", key=True
            )
        elif name in seen:
            source.problems.add(place, f"--{name} is given twice (also as {seen[name]!r})", key=True)
        else:
            seen[name] = key
            if not _adopt(source, adopted, name, value, place):
                result += _rendered(source, name, value, place)
    return tuple(result), adopted


def _adopt(source: Source, adopted: _Adopted, name: str, value: object, where: KeyPath) -> bool:
    """Move a value into the load's own field; False: it stays an argument."""
    adapter = _ADOPTED.get(name)
    if adapter is None or value is None or isinstance(value, (bool, list, dict)):
        return False
    try:
        setattr(adopted, name.replace("-", "_"), adapter.validate_python(value))
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        source.problems.add(where, f"{text[:1].lower()}{text[1:]} (got {shown(value)})")
    # The warm-ups are kept as written too: the client's own flag is never sent, its meaning is.
    return name != "num-warmups"


def _rendered(source: Source, name: str, value: object, where: KeyPath) -> Iterator[tuple[str, str | None]]:
    if value is None or value is False:
        return
    if value is True:
        yield name, None
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None or isinstance(item, (bool, list)):
                source.problems.add((*where, index), f"expected text or a number (got {shown(item)})")
                continue
            yield name, _scalar(item)
    else:
        yield name, _scalar(value)


def _scalar(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else written(value)


def load_template(
    source: Source, keys: LoadKeys, where: KeyPath, name: str, isl: int | None, osl: int | None
) -> Load:
    """A load without concurrency and prompts: everything that the points of one entry share."""
    args, adopted = client_args(keys.args, where, source)
    model = source.model
    hit_rate = keys.max_prefix_cache_hit_rate
    return Load(
        name=name,
        isl=isl,
        osl=osl,
        concurrency=None,
        num_prompts=0,
        backend=keys.backend,
        dataset=keys.dataset,
        request_rate=adopted.request_rate or keys.request_rate,
        repetitions=keys.repetitions or model.repetitions,
        num_warmups=keys.num_warmups if keys.num_warmups is not None else adopted.num_warmups,
        seed=keys.seed if keys.seed is not None else adopted.seed,
        ignore_eos=keys.ignore_eos,
        random_range_ratio=keys.random_range_ratio
        if keys.random_range_ratio is not None
        else adopted.random_range_ratio,
        speed_bench_dataset_subset=keys.speed_bench_dataset_subset or None,
        speed_bench_category=keys.speed_bench_category or None,
        args=args,
        measures_cache_hits=keys.cache_hits,
        max_prefix_cache_hit_rate=hit_rate if hit_rate is not None else model.max_prefix_cache_hit_rate,
    )


def with_size(template: Load, name: str, concurrency: int, num_prompts: int) -> Load:
    """The template at one concurrency."""
    return replace(template, name=name, concurrency=concurrency, num_prompts=num_prompts)
