"""``gpubench push``: send the rows that an earlier run could not send."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpubench.errors import GpubenchError, OptionError
from pytest_gpubench.results.ingest import IngestSettings, push
from pytest_gpubench.results.spool import Spool

__all__ = ["parser", "run"]


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench push``."""
    made = argparse.ArgumentParser(
        prog="gpubench push",
        description="Send rows that wait in the spool to PERF_INGEST_URL, with INGEST_BEARER_TOKEN.",
    )
    made.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    made.add_argument("--list", action="store_true", help="show what waits, send nothing")
    return made


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Exit status: 0 nothing is left to send, 1 rows were kept, 4 bad usage."""
    options = parser().parse_args(list(argv))
    spool = Spool.of(options.results)
    waiting = list(spool.entries())
    if options.list:
        for entry in waiting:
            print(f"{entry.label}: {entry.tries} tries: {entry.refused or entry.error or 'not tried'}")
        return 0
    if not waiting:
        print(f"ingest: nothing waits in {spool.folder}")
        return 0
    try:
        settings = IngestSettings.from_env(os.environ if env is None else env)
        if settings is None:
            raise OptionError(
                f"{len(waiting)} rows wait in {spool.folder}: set PERF_INGEST_URL and INGEST_BEARER_TOKEN"
            )
        report = push(spool, settings)
    except OptionError as err:
        print(f"gpubench push: {err}", file=sys.stderr)
        return 4
    except GpubenchError as err:
        print(f"gpubench push: {err}", file=sys.stderr)
        return 1
    print("\n".join(report.lines()))
    return 0 if report.complete else 1
