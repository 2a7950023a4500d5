"""What all the Slurm commands share: parsing, refusal, a controller that may be out of reach, the caller's
name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from .getopt import Arg, Parsed, Parser, UsageError
from .store import Store

__all__ = ["TIMED_OUT", "Command", "uid", "user"]

TIMED_OUT = "Socket timed out on send/recv operation"
"""What a command says of a controller that took its request and did not answer."""


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
        if "clusters" in parsed:
            self.check_cluster(parsed.values["clusters"])
        if "help" in parsed or "usage" in parsed:
            names = sorted(Parser(self.name, table, extra=extra).long)
            print(f"Usage: {self.name} [OPTIONS...]\n\n" + "\n".join(f"      --{name}" for name in names))
            raise SystemExit(0)
        return parsed

    def check_cluster(self, name: str) -> None:
        """``--clusters`` asks the accounting database; without one even our own cluster is unknown."""
        if self.store.spec.accounting and name in (self.store.spec.name, "all"):
            return
        if not self.store.spec.accounting:
            sys.stderr.write(f"{self.name}: error: Problem talking to database\n")
        hint = "Use 'sacctmgr list clusters' to see available clusters."
        self.fail(f"'{name}' can't be reached now, or it is an invalid entry for --cluster.  {hint}")

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

    def unreached(self) -> str | None:
        """Why slurmctld never gets the request, or None."""
        if not self.store.has_faults:
            return None
        from ..faults import ControllerDown, FaultBox

        down = FaultBox(self.store.folder).find(ControllerDown) is not None
        return "Unable to contact slurm controller (connect failure)" if down else None

    def unanswered(self) -> str | None:
        """TIMED_OUT when slurmctld keeps silent for as long as a command waits, or None.

        It has the request all the same: commands that change something do so before they ask here.
        """
        if not self.store.has_faults:
            return None
        from ..faults import ControllerHangs, FaultBox

        faults = FaultBox(self.store.folder)
        deadline = time.monotonic() + self.store.spec.message_timeout
        while faults.find(ControllerHangs) is not None:
            if time.monotonic() > deadline:
                return TIMED_OUT
            time.sleep(self.store.spec.poll)
        return None

    def reach_controller(self, prefix: str | None = None, tail: str = "") -> None:
        """End the command when slurmctld does not answer; ``tail`` follows the reason."""
        trouble = self.unreached() or self.unanswered()
        if trouble is not None:
            self.fail(trouble + tail, prefix=prefix)
