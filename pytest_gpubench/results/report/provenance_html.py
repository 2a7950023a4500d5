"""The run block of each source as HTML: nested values become dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.results.report.source import Source

__all__ = ["flatten", "provenance_html"]

_MAX_FACTS = 400


def provenance_html(sources: Sequence[Source]) -> str:
    """One block per source."""
    return "\n".join(_source(source, opened=len(sources) == 1) for source in sources)


def flatten(value: JSON, name: str = "") -> Iterator[tuple[str, str]]:
    """``{"git": {"commit": "abc"}}`` as ``("git.commit", "abc")``; nulls and empty parts are left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from flatten(item, f"{name}[{index}]" if len(value) > 1 else name)
    elif value is not None:
        yield name, str(value)


def _source(source: Source, *, opened: bool) -> str:
    facts = (
        [("file", source.path), *flatten(dict(source.run))]
        if source.path
        else list(flatten(dict(source.run)))
    )
    facts += _of_rows(source)
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{_value(value)}</dd>" for name, value in facts[:_MAX_FACTS])
    more = f'<p class="muted">{len(facts) - _MAX_FACTS} more.</p>' if len(facts) > _MAX_FACTS else ""
    return (
        f"<details{' open' if opened else ''}><summary>{escape(source.label)}</summary>"
        f"<dl>{shown}</dl>{more}</details>"
    )


def _of_rows(source: Source) -> list[tuple[str, str]]:
    """What the rows alone say: models, images, versions, nodes."""
    found = []
    for key in ("model", "image", "vllm_version", "device"):
        values = dict.fromkeys(str(row[key]) for row in source.rows if row.get(key))
        if values:
            listed = list(values)
            more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
            found.append((f"rows: {key}", ", ".join(listed[:5]) + more))
    return found


def _value(value: str) -> str:
    if value.startswith(("https://", "http://")):
        return f'<a href="{escape(value, quote=True)}" rel="noreferrer">{escape(value)}</a>'
    return escape(value)
