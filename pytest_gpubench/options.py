"""Command line and ini options: declared, read once, validated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpubench.errors import OptionError

__all__ = ["Options", "add_options", "read_options", "rootdir_moved"]

DEFAULT_SUITE = "pytest_gpubench.suite"


@dataclass(frozen=True)
class Options:
    """Validated options. Paths are absolute."""

    workloads: tuple[str, ...]
    workloads_from: str  # the option, or the variable
    folders: tuple[Path, ...]
    profiles: Path | None
    suite: str
    mock: bool
    dry_run: bool
    results: Path
    json: Path
    smoke: bool
    resume: bool
    skip_rejected: bool
    retry_infra: int
    compare: Path | None
    compare_fail: tuple[str, ...]
    meta: tuple[tuple[str, str], ...]
    inferencex: Path | None
    runners: Path | None
    html: Path | None
    stream_logs: bool
    prefetch: int
    max_nodes: int | None
    heartbeat_limit: float
    poll_interval: float | None


def add_options(parser: pytest.Parser) -> None:
    """Declare everything in one group."""
    group = parser.getgroup("gpubench", "LLM-serving GPU benchmarks (pytest_gpubench)")
    add = group.addoption
    add(
        "--workload",
        action="append",
        default=[],
        metavar="NAME",
        help="recipe to run: file stem, its `name:`, a path or a glob; repeatable, comma-separated "
        "(default: the environment variable WORKLOADS; without either no recipe is collected)",
    )
    add("--mock-slurm", action="store_true", help="run on the mocked Slurm with the simulated vLLM")
    add("--gpubench-dry-run", action="store_true", help="render every script and command, run nothing")
    add("--gpubench-results", metavar="DIR", help="results folder (default: results)")
    add("--gpubench-json", metavar="PATH", help="the ingest file (default: <results>/ingest.json)")
    add(
        "--gpubench-smoke", action="store_true", help="one point per deployment: shortest, lowest concurrency"
    )
    add("--gpubench-resume", action="store_true", help="skip points that already have a valid row")
    add("--gpubench-skip-rejected", action="store_true", help="skip rejected points instead of an error")
    add(
        "--gpubench-retry-infra",
        type=int,
        default=0,
        metavar="N",
        help="repeat after infrastructure failures",
    )
    add("--gpubench-compare", metavar="PATH", help="compare with an earlier ingest file")
    add(
        "--gpubench-compare-fail",
        action="append",
        default=[],
        metavar="METRIC:PERCENT",
        help="fail a point whose metric is worse than the baseline by more than PERCENT; repeatable",
    )
    add("--gpubench-meta", action="append", default=[], metavar="KEY=VALUE", help="recorded in the run block")
    add("--gpubench-inferencex", metavar="FILE", help="an InferenceX master file; --workload names its keys")
    add("--gpubench-runners", metavar="FILE", help="InferenceX runners.yaml")
    add("--gpubench-html", metavar="PATH", help="write a self-contained HTML report")
    add("--gpubench-stream-logs", action="store_true", help="server logs on the terminal, too")
    add(
        "--gpubench-prefetch",
        type=int,
        default=1,
        metavar="N",
        help="allocations asked for ahead (default: 1)",
    )
    add("--gpubench-max-nodes", type=int, metavar="N", help="never hold more nodes than this")
    parser.addini("gpubench_workloads", "folders that hold recipes", type="paths", default=[])
    parser.addini("gpubench_profiles", "gpu_profiles.yaml for recipes that have none beside them", default="")
    parser.addini("gpubench_suite", "module with the tests that the points run", default=DEFAULT_SUITE)
    parser.addini("gpubench_results", "results folder", default="results")
    parser.addini(
        "gpubench_poll_interval", "seconds between Slurm queries (default: 2; on the mock 0.3)", default=""
    )
    parser.addini(
        "gpubench_heartbeat", "seconds without a heartbeat after which a job ends itself", default="120"
    )


def read_options(config: pytest.Config, env: Mapping[str, str] = os.environ) -> Options:
    """Validate; raises OptionError with the option's name and what is valid."""
    option = config.getoption
    base = config.invocation_params.dir
    results = _results(config)
    compare_fail = tuple(option("--gpubench-compare-fail"))
    if compare_fail:
        from pytest_gpubench.results.compare import parse_rules

        if not option("--gpubench-compare"):
            raise OptionError("--gpubench-compare-fail needs --gpubench-compare PATH")
        parse_rules(compare_fail)
    for name in ("--gpubench-retry-infra", "--gpubench-prefetch"):
        if option(name) < 0:
            raise OptionError(f"{name}: expected 0 or more, got {option(name)}")
    max_nodes = option("--gpubench-max-nodes")
    if max_nodes is not None and max_nodes < 1:
        raise OptionError(f"--gpubench-max-nodes: expected 1 or more, got {max_nodes}")
    poll = config.getini("gpubench_poll_interval")
    return Options(
        workloads=_names(option("--workload"), env),
        workloads_from="--workload" if option("--workload") else "WORKLOADS",
        folders=tuple(map(Path, config.getini("gpubench_workloads"))) or _default_folders(config),
        profiles=_optional_file(config.rootpath, config.getini("gpubench_profiles"), "gpubench_profiles"),
        suite=config.getini("gpubench_suite"),
        mock=option("--mock-slurm"),
        dry_run=option("--gpubench-dry-run"),
        results=results,
        json=_output(base, option("--gpubench-json"), "--gpubench-json") or results / "ingest.json",
        smoke=option("--gpubench-smoke"),
        resume=option("--gpubench-resume"),
        skip_rejected=option("--gpubench-skip-rejected"),
        retry_infra=option("--gpubench-retry-infra"),
        compare=_optional_file(base, option("--gpubench-compare"), "--gpubench-compare"),
        compare_fail=compare_fail,
        meta=tuple(_pair(text) for text in option("--gpubench-meta")),
        inferencex=_optional_file(base, option("--gpubench-inferencex"), "--gpubench-inferencex"),
        runners=_optional_file(base, option("--gpubench-runners"), "--gpubench-runners"),
        html=_output(base, option("--gpubench-html"), "--gpubench-html"),
        stream_logs=option("--gpubench-stream-logs"),
        prefetch=option("--gpubench-prefetch"),
        max_nodes=max_nodes,
        heartbeat_limit=_seconds(config.getini("gpubench_heartbeat"), "gpubench_heartbeat"),
        poll_interval=_seconds(poll, "gpubench_poll_interval") if poll else None,
    )


_PATHS = ("results", "json", "compare", "html", "inferencex", "runners")


def rootdir_moved(config: pytest.Config) -> bool:
    """True when pytest took the value of one of our options for a path and looked for its ini file there.

    It does so before it knows the options of plugins; ``--option=VALUE`` avoids it.
    """
    if not config.invocation_params.dir.is_relative_to(config.rootpath):
        return True
    if config.inipath is not None:
        return False
    values = {config.getoption(f"--gpubench-{name}") for name in _PATHS} | {*config.getoption("--workload")}
    words = values.intersection(map(str, config.invocation_params.args))
    return any((config.invocation_params.dir / word).exists() for word in words)


def _names(given: list[str], env: Mapping[str, str]) -> tuple[str, ...]:
    texts = given or [env.get("WORKLOADS", "")]
    names = [name.strip() for text in texts for line in text.splitlines() for name in line.split(",")]
    names = [name for name in names if name]
    if given and not names:
        raise OptionError("--workload: expected a recipe name, got an empty one")
    return tuple(dict.fromkeys(names))


def _default_folders(config: pytest.Config) -> tuple[Path, ...]:
    here = config.invocation_params.dir
    folders = [folder for folder in (config.rootpath / "workloads", here / "workloads") if folder.is_dir()]
    return tuple(dict.fromkeys(folders)) or (here,)


def _results(config: pytest.Config) -> Path:
    """An option's path is relative to where pytest was started, an ini value's to the ini file."""
    given, ini = config.getoption("--gpubench-results"), config.getini("gpubench_results")
    base = config.invocation_params.dir if given or config.inipath is None else config.inipath.parent
    path = Path(os.path.abspath(base / (given or ini)))
    if path.exists() and not path.is_dir():
        raise OptionError(f"{'--gpubench-results' if given else 'ini gpubench_results'}: {path} is no folder")
    return path


def _output(base: Path, text: str | None, name: str) -> Path | None:
    if not text:
        return None
    path = Path(os.path.abspath(base / text))
    if path.is_dir():
        raise OptionError(f"{name}: {path} is a folder, expected a file to write")
    return path


def _optional_file(base: Path, text: str | None, name: str) -> Path | None:
    if not text:
        return None
    path = Path(os.path.abspath(base / text))
    if not path.is_file():
        raise OptionError(f"{name}: no file {path}")
    return path


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"--gpubench-meta: expected KEY=VALUE, got {text!r}")
    return key.strip(), value


def _seconds(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise OptionError(f"{name}: expected seconds above 0, got {text!r}")
    return value
