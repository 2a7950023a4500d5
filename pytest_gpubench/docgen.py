"""The reference pages of the documentation, written from the code, so that neither can drift from the other.

``GPUBENCH_DOCS=write pytest tests/docs`` writes them; without it the tests compare them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_gpubench.cli.main import COMMANDS
from pytest_gpubench.docgen_keys import keys_page
from pytest_gpubench.options import add_options
from pytest_gpubench.plugin import MARKERS
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.results.metrics import units
from pytest_gpubench.results.row import DASHBOARD_FIELDS

__all__ = [
    "PAGES",
    "DeclaredOption",
    "commands_page",
    "declared_options",
    "options_page",
    "reasons_page",
    "row_page",
    "table",
]

GENERATED = "<!-- Written by pytest_gpubench/docgen.py: GPUBENCH_DOCS=write pytest tests/docs -->"

ENVIRONMENT = {
    "WORKLOADS": "recipes to run, separated by commas or line breaks, when `--workload` is not given",
    "VLLM_IMAGE": "image to serve with in place of the recipe's: a registry image or a `.sqsh` path",
    "VLLM_COMMIT": "recorded in each row as `vllm_commit`",
    "NIGHTLY": "`1`, `true`, `yes` or `on`: rows say `nightly: true`",
    "PERF_INGEST_URL": "where rows are sent to when the run ends; simulated rows are never sent",
    "INGEST_BEARER_TOKEN": "token for it; never written anywhere",
    "BUILDKITE_BUILD_ID": "recorded in the run block, and part of the run id",
    "BUILDKITE_RETRY_COUNT": "`attempt` of each row is this + 1",
    "GITHUB_RUN_ID": "recorded in the run block, and part of the run id",
    "GITHUB_RUN_ATTEMPT": "`attempt` of each row",
}
"""Environment variables that are read -> their meaning. Nothing that decides a figure is among them."""


@dataclass(frozen=True)
class DeclaredOption:
    """A command line option or ini value as it is declared."""

    name: str
    metavar: str
    help: str
    default: str


@dataclass
class _Recorder:
    """Takes the declarations in place of pytest's parser."""

    options: list[DeclaredOption] = field(default_factory=list)
    ini: list[DeclaredOption] = field(default_factory=list)

    def getgroup(self, name: str, description: str = "") -> _Recorder:
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        flag = attributes.get("action") == "store_true"
        metavar = "" if flag else str(attributes.get("metavar", names[0].lstrip("-").upper()))
        self.options.append(DeclaredOption(names[0], metavar, attributes["help"], ""))

    def addini(self, name: str, help: str, type: str = "string", default: object = "") -> None:
        text = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        self.ini.append(DeclaredOption(name, type, help, text))


def declared_options() -> tuple[list[DeclaredOption], list[DeclaredOption]]:
    """The command line options and the ini values of the plugin, in the order of their declaration."""
    recorder = _Recorder()
    add_options(cast(pytest.Parser, recorder))
    return recorder.options, recorder.ini


def options_page() -> str:
    """``docs/reference/options.md``: options, ini values, environment, markers."""
    options, ini = declared_options()
    parts = [
        "# Options, ini values, environment, markers",
        "`pytest --help` shows the same options under *LLM-serving GPU benchmarks*. A value that cannot be "
        "meant is a usage error (exit code 4) that names the option.",
        "## Command line",
        table(("option", "meaning"), [(f"`{_spelled(option)}`", cell(option.help)) for option in options]),
        "pytest's own `-m`, `-k`, `--lf`, `-x`, `--junitxml`, `-n` and all others work as always.",
        "## Ini values",
        "In `pytest.ini`, or in `pyproject.toml` under `[tool.pytest]`.",
        table(
            ("name", "meaning", "default"),
            [(f"`{one.name}`", cell(one.help), f"`{one.default}`" if one.default else "") for one in ini],
        ),
        "## Environment",
        table(("variable", "meaning"), [(f"`{name}`", text) for name, text in ENVIRONMENT.items()]),
        "## Markers",
        "For `-m`. Every point carries those that are true of it.",
        table(("marker", "meaning"), [(f"`{name}`", cell(text)) for name, text in MARKERS.items()]),
    ]
    return _page(parts)


def commands_page() -> str:
    """``docs/reference/commands.md``: every subcommand of ``gpubench`` with its options and exit codes."""
    parts = [
        "# The `gpubench` command",
        "Each command tells its options with `--help`, too.",
        table(
            ("command", "what it does"),
            [(f"[`{n}`](#gpubench-{n})", text) for n, (_, text) in COMMANDS.items()],
        ),
    ]
    for name, (module_name, text) in COMMANDS.items():
        module = importlib.import_module(f"pytest_gpubench.cli.{module_name}")
        parts.append(f"## gpubench {name}")
        if not hasattr(module, "parser"):
            parts.append(f"{text[0].upper()}{text[1:]}. Every argument goes to pytest.")
            continue
        parser: argparse.ArgumentParser = module.parser()
        parts.append(_unescaped(parser.description or text))
        parts.append(f"```text\n{_usage(parser)}\n```")
        parts.append(table(("argument", "meaning"), list(_arguments(parser))))
        exits = re.match(r"Exit status: (.+?\.)", " ".join((module.run.__doc__ or "").split()))
        if exits:
            parts.append(f"Exit codes: {exits[1]}")
    return _page(parts)


def row_page(schema: Mapping[str, Any] | None = None) -> str:
    """``docs/reference/row.md``: the fields of a row, from the JSON Schema that the package ships."""
    if schema is None:
        schema = json.loads((Path(__file__).parent / "results" / "schema.json").read_text(encoding="utf-8"))
    row = schema["$defs"]["row"]
    required, properties = set(row["required"]), row["properties"]
    figures = sorted(required - set(properties))
    families = list(dict.fromkeys(name.partition("_")[2] for name in figures))
    statistics = list(dict.fromkeys(name.partition("_")[0] for name in figures))
    dashboard = [name for name in properties if name in DASHBOARD_FIELDS]
    others = [name for name in properties if name not in DASHBOARD_FIELDS]

    def rows(names: Sequence[str]) -> list[tuple[str, ...]]:
        return [
            (
                f"`{name}`" + ("" if name in required else " (where it applies)"),
                _schema_type(properties[name]),
                units(name),
                cell(properties[name]["description"]),
            )
            for name in names
        ]

    head = ("field", "type", "unit", "meaning")
    parts = [
        "# The row",
        '`ingest.json` is `{"schema_version": 1, "run": {…}, "rows": [row, …]}`; each point\'s `row.json` '
        "is one row. There is one for every point that was run, also for those that failed. Latencies are "
        "**seconds**. Unknown figures are `null`, never NaN. `pytest_gpubench/results/schema.json` is the "
        "JSON Schema. Gates and comparisons use these names and units.",
        "## Fields of the performance dashboard",
        table(head, rows(dashboard)),
        "## Latency and interactivity",
        f"`<statistic>_<family>`: each of {_listed(statistics)} with each of {_listed(families)}, and "
        "further percentiles (`p99.9_ttft`) when the client gives them.",
        table(
            ("family", "unit", "meaning"),
            [(f"`{name}`", units(f"mean_{name}"), _FAMILIES.get(name, "")) for name in families],
        ),
        "## What else a row tells",
        table(head, rows(others)),
    ]
    return _page(parts)


def reasons_page() -> str:
    """``docs/reasons.md``: every reason code, by what it says of the figures and whose fault it is."""

    def codes(*, infrastructure: bool, trusted: bool) -> str:
        found = [one for one in Reason if (one.infrastructure, one.trusted) == (infrastructure, trusted)]
        return table(("code", "meaning"), [(f"`{one.value}`", cell(one.meaning)) for one in found])

    phases = [(f"`{phase.value}`", f"while {phase.doing}") for phase in Phase]
    parts = [
        "# Reason codes",
        "Every row that is not `passed` says why in `reason`, with one of these codes. It stands in brackets "
        "in the first line of the failure, too, and in JUnit as `gpubench_reason`. What to do about each is "
        "in [Troubleshooting](troubleshooting.md).",
        "## The measurement is good, the verdict is not",
        "Status `failed`. The figures are in the row; a resumed run does not measure the point again.",
        codes(infrastructure=False, trusted=True),
        "## What was measured is not what was asked for",
        "Status `failed`, every figure `null`, before any gate is looked at: a wrong number is worse than "
        "none. A resumed run measures the point again.",
        codes(infrastructure=False, trusted=False),
        "## Infrastructure",
        "Status `error`, every figure `null`. The measured system is not to blame, so these alone are "
        "repeated by `--gpubench-retry-infra N`; the row's `attempt` counts. pytest shows an ERROR when the "
        "point never began, and a failure whose first line begins with `infrastructure error` when it had.",
        codes(infrastructure=True, trusted=False),
        "## Phases",
        "An infrastructure failure says in which phase it came; `phase_seconds` of the row has the time of "
        "each, and each has a deadline of its own.",
        table(("phase", "in messages"), phases),
    ]
    return _page(parts)


_FAMILIES = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between two tokens of the stream",
    "e2el": "end to end: from the request to its last token",
    "intvty": "interactivity, 1 / tpot of the same statistic",
}

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/options.md": options_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/row.md": row_page,
    "docs/reference/keys.md": lambda: _page(keys_page()),
    "docs/reasons.md": reasons_page,
}
"""File, relative to the repository -> what writes its text."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the cells are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def cell(text: str) -> str:
    """Plain text as the cell of a table."""
    flat = " ".join(_unescaped(text).split())
    pieces = flat.split("`")  # what stands in backticks is code already
    for index in range(0, len(pieces), 2):
        pieces[index] = pieces[index].replace("<", "&lt;").replace("*", "\\*")
    return "`".join(pieces).replace("|", "\\|")


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join([parts[0], GENERATED, *parts[1:]]) + "\n"


def _spelled(option: DeclaredOption) -> str:
    return f"{option.name} {option.metavar}" if option.metavar else option.name


def _unescaped(text: str) -> str:
    return text.replace("%%", "%")


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else None
        if not action.option_strings:
            name = metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest)
        else:
            takes = action.nargs != 0
            name = f"{action.option_strings[-1]}{f' {metavar or action.dest.upper()}' if takes else ''}"
        yield (
            f"`{name}`" + (" (required)" if action.option_strings and action.required else ""),
            cell(action.help or ""),
        )


def _usage(parser: argparse.ArgumentParser) -> str:
    """One line; argparse's own breaks lines in another way in every Python."""
    if parser.usage:
        return parser.usage
    words = [parser.prog]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        metavar = str(action.metavar or (action.choices and "|".join(action.choices)) or action.dest.upper())
        if action.option_strings:
            text = action.option_strings[-1] + ("" if action.nargs == 0 else f" {metavar}")
            text = text if action.required else f"[{text}]"
        else:
            text = {"+": f"{metavar} [{metavar} …]", "*": f"[{metavar} …]"}.get(str(action.nargs), metavar)
        words.append(text)
    return " ".join(words)


def _schema_type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    found = schema.get("type", "object")
    names = [found] if isinstance(found, str) else list(found)
    if names == ["array"]:
        inner = schema.get("items", {}).get("type")
        return f"array of {inner}s" if isinstance(inner, str) else "array of objects"
    return " or ".join(names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
