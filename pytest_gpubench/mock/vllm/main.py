"""The ``vllm`` command."""

from __future__ import annotations

import sys
from pathlib import Path

from . import settings

__all__ = ["main"]


def main(folder: Path, argv: list[str]) -> int:
    """Run a subcommand; its exit status."""
    if argv[:1] in (["--version"], ["-v"]):
        print(settings.load(folder).version)
        return 0
    if argv[:1] == ["serve"]:
        from . import server

        return server.main(folder, argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from . import bench

        return bench.main(folder, argv[2:])
    sys.stderr.write("usage: vllm [-h] [-v] {serve,bench} ...\n")
    sys.stderr.write(
        f"vllm: error: invalid choice: {' '.join(argv[:2])!r} (this simulation has serve and bench serve)\n"
    )
    return 2
