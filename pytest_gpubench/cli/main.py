"""The ``gpubench`` command: dispatches to one module per subcommand, loaded only when asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "ci": ("ci", "run pytest; exit 75 when only the infrastructure failed"),
    "compare": ("compare", "compare two ingest files; exit 1 on a regression"),
    "doctor": ("doctor", "check a login node and say what to put in the profile"),
    "import": ("import_", "write a recipe from another harness's file"),
    "pipeline": ("pipeline", "write a Buildkite pipeline for recipes"),
    "push": ("push", "send rows that could not be sent"),
    "reap": ("reap", "cancel jobs that a killed run left behind"),
    "report": ("report", "write a self-contained HTML report"),
    "row": ("row", "print the row that a raw result file gives"),
}
"""Subcommand -> (module in ``pytest_gpubench.cli``, one line of help)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; 2 for an unknown one, else its own exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from pytest_gpubench import __version__

        print(f"gpubench {__version__}")
        return 0
    entry = COMMANDS.get(arguments[0])
    if entry is None:
        import difflib

        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"gpubench: unknown command {arguments[0]!r}{hint}\n\n{usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"pytest_gpubench.cli.{entry[0]}")
    try:
        code: int = module.run(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # `gpubench … | head`: the reader has what it wanted. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def usage() -> str:
    """The list of subcommands."""
    width = max(map(len, COMMANDS))
    lines = ["usage: gpubench COMMAND [options]", "", "commands:"]
    lines += [f"  {name.ljust(width)}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([*lines, "", "gpubench COMMAND --help tells the options of one."])


if __name__ == "__main__":
    sys.exit(main())
