"""``gpubench compare``: two runs against each other, by the rules of ``--gpubench-compare-fail``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpubench.errors import GpubenchError, OptionError
from pytest_gpubench.results.compare import Baseline, Comparison, compare_runs, load_baseline, parse_rules
from pytest_gpubench.results.tables import DEFAULT_METRICS, comparison_table

__all__ = ["headline", "markdown_summary", "parser", "run"]

COMMENT_LIMIT = 60_000
"""Characters of Markdown that a pull request comment surely takes (GitHub refuses 65,536)."""
SUMMARY_LIMIT = 1_000_000
"""Bytes of Markdown that one step may add to ``$GITHUB_STEP_SUMMARY`` (GitHub refuses 1 MiB)."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench compare``."""
    made = argparse.ArgumentParser(
        prog="gpubench compare",
        description="Compare two runs. Exit 1 when a point of B is worse than its counterpart in A by more "
        "than --fail allows.",
    )
    made.add_argument("before", type=Path, metavar="A", help="ingest file or results folder to compare with")
    made.add_argument("after", type=Path, metavar="B", help="ingest file or results folder to judge")
    made.add_argument(
        "--fail",
        action="append",
        default=[],
        metavar="METRIC:PERCENT",
        help="as --gpubench-compare-fail, such as output_tput_per_gpu:5%%; repeatable",
    )
    made.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="a metric to show beside the usual ones; repeatable",
    )
    made.add_argument("--markdown", action="store_true", help="Markdown, short enough for a PR comment")
    made.add_argument("--github-summary", action="store_true", help="also append it to $GITHUB_STEP_SUMMARY")
    return made


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Exit status: 0 no regression, 1 a regression or an unreadable file, 4 bad usage."""
    options = parser().parse_args(list(argv))
    environment = os.environ if env is None else env
    try:
        summary = _summary_file(environment) if options.github_summary else None
        rules = parse_rules(options.fail)
        before, after = (load_baseline(_ingest(path)) for path in (options.before, options.after))
        found = compare_runs(before, after, rules)
        metrics = tuple(dict.fromkeys((*DEFAULT_METRICS, *(rule.metric for rule in rules), *options.metric)))
        gone = _gone(before, after)
        if options.markdown:
            print(markdown_summary(found, gone, metrics, limit=COMMENT_LIMIT))
        else:
            print("\n".join([comparison_table(found, metrics=metrics), "", headline(found), *gone]))
        if summary is not None:
            text = markdown_summary(found, gone, metrics, limit=SUMMARY_LIMIT)
            with summary.open("a", encoding="utf-8") as sink:
                sink.write(f"{text}\n")
    except OptionError as err:
        print(f"gpubench compare: {_own_words(str(err))}", file=sys.stderr)
        return 4
    except GpubenchError as err:
        print(f"gpubench compare: {err}", file=sys.stderr)
        return 1
    except OSError as err:
        print(f"gpubench compare: $GITHUB_STEP_SUMMARY cannot be written: {err}", file=sys.stderr)
        return 1
    return 1 if any(comparison.regressions for comparison in found) else 0


def headline(comparisons: Sequence[Comparison]) -> str:
    """One sentence: how many points were compared, how many regressed, how many could not be judged."""
    compared = sum(comparison.status in {"compared", "regressed"} for comparison in comparisons)
    regressed = sum(bool(comparison.regressions) for comparison in comparisons)
    if not compared:
        return "Nothing was compared: no point of B has a trusted counterpart in A."
    text = f"{_count(compared, 'point')} compared, {regressed or 'none'} regressed"
    for status, words in (("no baseline", "without a baseline"), ("not measured", "not measured")):
        count = sum(comparison.status == status for comparison in comparisons)
        text += f", {count} {words}" if count else ""
    return f"{text}."


def markdown_summary(
    comparisons: Sequence[Comparison], notes: Sequence[str], metrics: Sequence[str], *, limit: int
) -> str:
    """Markdown of at most ``limit`` bytes: regressed points first, then as many others as fit."""
    ordered = sorted(comparisons, key=lambda comparison: not comparison.regressions)
    head = [f"### gpubench: {headline(comparisons)}", ""]
    tail = ["", *(f"- {note}" for note in notes[:20])] if notes else []
    for kept in _fewer(len(ordered)):
        table = comparison_table([_safe(c) for c in ordered[:kept]], markdown=True, metrics=metrics)
        left = len(ordered) - kept
        cut = ["", f"_{_count(left, 'more point')} left out for length._"] if left else []
        text = "\n".join([*head, *([table] if kept else []), *cut, *tail])
        if len(text.encode("utf-8")) <= limit:
            return text
    return head[0]


def _fewer(count: int) -> list[int]:
    sizes = [count]
    while sizes[-1] > 0:
        sizes.append(sizes[-1] * 3 // 4)
    return sizes


def _safe(comparison: Comparison) -> Comparison:
    """Warnings quote the rows; in Markdown none of them may become markup or mention people."""

    def plain(text: str) -> str:
        return text.replace("<", "&lt;").replace("@", "&#64;").replace("`", "'")

    return replace(comparison, warnings=tuple(map(plain, comparison.warnings)))


def _gone(before: Baseline, after: Baseline) -> list[str]:
    """Points that A has and B has not: a sweep that lost points must not look as good as a whole one."""
    there = {(row.get("workload"), row.get("point")) for row in after.rows}
    gone = [
        f"{row.get('workload')} {row.get('point')}"
        for row in before.rows
        if (row.get("workload"), row.get("point")) not in there
    ]
    if not gone:
        return []
    shown = ", ".join(gone[:10]) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
    return [f"{_count(len(gone), 'point')} of A not in B: {shown}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ingest(path: Path) -> Path:
    return path / "ingest.json" if path.is_dir() else path


def _summary_file(env: Mapping[str, str]) -> Path:
    name = env.get("GITHUB_STEP_SUMMARY")
    if not name:
        raise OptionError("--github-summary: GITHUB_STEP_SUMMARY is not set; it is inside GitHub Actions")
    return Path(name)


def _own_words(text: str) -> str:
    return text.replace("--gpubench-compare-fail", "--fail")
