"""What went wrong, as HTML: one block per deployment with its points' messages and its log tails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.report.source import Source
from pytest_gpubench.results.text import clean

__all__ = ["MAX_DEPLOYMENTS", "MAX_POINTS", "failures_html"]

MAX_DEPLOYMENTS = 40
"""Deployments with failures that get a block with log tails."""
MAX_POINTS = 25
"""Failed points per deployment whose message is shown."""

Row = Mapping[str, JSON]


def failures_html(sources: Sequence[Source]) -> str:
    """The section's content; a sentence when nothing failed."""
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for index, source in enumerate(sources):
        for row in source.rows:
            if row.get("status") != "passed":
                key = (index, str(row.get("workload")), str(row.get("deployment")))
                groups.setdefault(key, []).append(row)
    if not groups:
        return "<p>Every point passed.</p>"
    blocks = [
        _deployment(sources[run], workload, deployment, rows, run_named=len(sources) > 1)
        for (run, workload, deployment), rows in list(groups.items())[:MAX_DEPLOYMENTS]
    ]
    left = len(groups) - MAX_DEPLOYMENTS
    if left > 0:
        blocks.append(
            f'<p class="muted">Failures of {left} more deployments are in the table; filter it by status.</p>'
        )
    return "\n".join(blocks)


def _deployment(source: Source, workload: str, deployment: str, rows: list[Row], *, run_named: bool) -> str:
    where = f" · {source.label}" if run_named else ""
    parts = [f"<h3>{escape(f'{workload} · {deployment}{where}')}</h3>"]
    parts += [_point(row) for row in rows[:MAX_POINTS]]
    if len(rows) > MAX_POINTS:
        parts.append(f'<p class="muted">{len(rows) - MAX_POINTS} more points of this deployment failed.</p>')
    # A missed gate is explained by its figures; logs are for what broke.
    if any(row.get("reason") != Reason.GATE_MISSED.value for row in rows):
        logs = source.logs(workload, deployment)
        parts += [
            f"<details><summary>Last lines of <code>{escape(log.name)}</code></summary>"
            f'<pre tabindex="0">{escape(log.text)}</pre></details>'
            for log in logs
        ]
        if not logs and source.folder is None:
            parts.append('<p class="muted">No logs: the report was made without the results folder.</p>')
    return "\n".join(parts)


def _point(row: Row) -> str:
    status, reason = str(row.get("status")), row.get("reason")
    known = f" (known issue: {row.get('known_issue')})" if row.get("known_issue") else ""
    title = (
        f'<span class="{escape(status, quote=True)}">{escape(status)}</span> '
        f"{escape(str(row.get('point')))}{escape(f': {reason}' if reason else '')}{escape(known)}"
    )
    meaning = _meaning(reason)
    message = clean(str(row.get("message") or "no message was recorded"))
    explained = f'<p class="muted">{escape(meaning)}</p>' if meaning else ""
    return (
        f"<details open><summary>{title}</summary>{explained}"
        f'<pre class="message" tabindex="0">{escape(message)}</pre></details>'
    )


def _meaning(reason: JSON) -> str:
    try:
        return Reason(reason).meaning
    except ValueError:  # a row of a newer version
        return ""
