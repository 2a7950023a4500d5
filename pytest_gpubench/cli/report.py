"""``gpubench report``: a self-contained HTML report from ingest files and results folders."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.results.report import load_sources, write_report
from pytest_gpubench.results.text import secret_values

__all__ = ["parser", "run"]


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench report``."""
    made = argparse.ArgumentParser(
        prog="gpubench report",
        description="Write one HTML file that needs no network: throughput against interactivity and TTFT, "
        "time per phase, the table, failures with their log tails. Several sources are laid over each other.",
    )
    made.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results folder or an ingest file; a folder's report has the log tails in it",
    )
    made.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="PATH", help="default: report.html"
    )
    made.add_argument("--title", metavar="TEXT", help="heading of the page")
    return made


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Exit status: 0 the report is written, 1 a source cannot be read or Plotly is missing, 2 bad usage."""
    options = parser().parse_args(list(argv))
    environment = os.environ if env is None else env
    try:
        sources = load_sources(options.results, secrets=secret_values(environment))
        path = write_report(options.out, sources, title=options.title)
    except GpubenchError as err:
        print(f"gpubench report: {err}", file=sys.stderr)
        return 1
    points = sum(len(source.rows) for source in sources)
    print(f"{path}: {_count(points, 'point')} of {_count(len(sources), 'run')}")
    return 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
