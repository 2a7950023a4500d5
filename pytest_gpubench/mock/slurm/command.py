"""What all the Slurm commands share: parsing, refusal, a controller that may be out of reach, the caller's
name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .getopt import Arg, Parsed, Parser, UsageError
from .store import Store

__all__ = ["Command", "uid", "user"]


def user() -> str:
    """Login name of the caller."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def uid() -> int:
    """Number of the caller."""
    return os.getuid()


class Command:
    """One invocation of a command."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store

    def parse(
        self,
        table: str,
        argv: Sequence[str],
        *,
        usage: int = 1,
        permute: bool = True,
        extra: dict[str, Arg] | None = None,
    ) -> Parsed:
        """Read the options; a wrong command line ends the command with exit status ``usage``."""
        try:
            parsed = Parser(self.name, table, permute=permute, extra=extra).parse(list(argv))
        except UsageError as err:
            self.fail(str(err), usage, prefix="")
        if "version" in parsed:
            print(f"slurm {self.store.spec.version}")
            raise SystemExit(0)
        if "help" in parsed or "usage" in parsed:
            names = sorted(Parser(self.name, table, extra=extra).long)
            print(f"Usage: {self.name} [OPTIONS...]\n\n" + "\n".join(f"      --{name}" for name in names))
            raise SystemExit(0)
        return parsed

    def fail(self, text: str, status: int = 1, *, prefix: str | None = None) -> NoReturn:
        """Say ``text`` on standard error and end the command."""
        lead = f"{self.name}: error: " if prefix is None else prefix
        sys.stdout.flush()
        sys.stderr.write(f"{lead}{text}\n")
        sys.stderr.flush()
        raise SystemExit(status)

    def refuse(self, parsed: Parsed, *keys: str) -> None:
        """End the command at an option that would change what happens and is not modelled."""
        for key in keys:
            if key in parsed:
                self.fail(f"--{key} is not modelled by the mocked Slurm")

    def reach_controller(self, prefix: str | None = None) -> None:
        """End the command when slurmctld is out of reach."""
        if not self.store.has_faults:
            return
        from ..faults import ControllerDown, FaultBox

        if FaultBox(self.store.folder).find(ControllerDown) is not None:
            self.fail("Unable to contact slurm controller (connect failure)", prefix=prefix)
