"""One self-contained HTML file from ingest files and results folders: curves, timeline, table, failures."""

from pytest_gpubench.results.report.build import build_report, write_report
from pytest_gpubench.results.report.source import Source, load_source, load_sources

__all__ = ["Source", "build_report", "load_source", "load_sources", "write_report"]
