"""``gpubench ci``: pytest, with an exit code that tells CI when a repetition may help.

Every argument goes to pytest. The exit code is pytest's own, except that 1 becomes
:data:`EXIT_INFRASTRUCTURE` when every failure carries a reason code of the infrastructure: no nodes, an
image that could not be imported, a dead rank, a hung client. A missed gate, a test that failed
without a reason code, or a collection error keeps pytest's code: repeating it would only hide it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

__all__ = ["EXIT_INFRASTRUCTURE", "run"]

EXIT_INFRASTRUCTURE = 75
"""``EX_TEMPFAIL`` of sysexits.h: a temporary failure, try again later. pytest itself uses 0 to 5."""

PLUGIN = "pytest_gpubench.cli.ci_plugin"


def run(argv: Sequence[str], *, execute: Callable[[str, list[str]], object] = os.execv) -> int:
    """Become pytest: this process is replaced, so that CI's signals reach the run itself."""
    sys.stdout.flush()
    execute(sys.executable, [sys.executable, "-m", "pytest", "-p", PLUGIN, *argv])
    raise AssertionError("execv returned")  # it raises OSError when it fails
