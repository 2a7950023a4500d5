"""``gpubench ci``: pytest, with an exit code that tells CI when a repetition may help.

Every argument goes to pytest. The exit code is pytest's own, except that 1 becomes
:data:`EXIT_INFRASTRUCTURE` when every failure carries a reason code of the infrastructure: no nodes, an
image that could not be imported, a dead rank, a hung client. A missed gate, a test that failed
without a reason code, or a collection error keeps pytest's code: repeating it would only hide it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gpubench.reasons import Reason

__all__ = ["EXIT_INFRASTRUCTURE", "FailureWatch", "run"]

EXIT_INFRASTRUCTURE = 75
"""``EX_TEMPFAIL`` of sysexits.h: a temporary failure, try again later. pytest itself uses 0 to 5."""


class FailureWatch:
    """A pytest plugin that notes the reason code of every failed phase; ``None`` where there is none."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the controller for every report, also those of xdist workers."""
        if report.failed:
            reason = dict(report.user_properties).get("gpubench_reason")
            self.reasons.append(reason if isinstance(reason, str) else None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A recipe that cannot be read is nobody's infrastructure."""
        if report.failed:
            self.reasons.append(None)

    def exit_code(self, status: int) -> int:
        """``status`` of pytest, or :data:`EXIT_INFRASTRUCTURE`."""
        only = bool(self.reasons) and all(map(_infrastructure, self.reasons))
        return EXIT_INFRASTRUCTURE if status == pytest.ExitCode.TESTS_FAILED and only else status


def run(argv: Sequence[str]) -> int:
    """Run pytest in this process; the exit code as the module says."""
    watch = FailureWatch()
    code = watch.exit_code(int(pytest.main(list(argv), plugins=[watch])))
    if code == EXIT_INFRASTRUCTURE:
        causes = ", ".join(dict.fromkeys(str(reason) for reason in watch.reasons))
        print(f"gpubench ci: exit {code}: only the infrastructure failed ({causes})")
    return code


def _infrastructure(reason: str | None) -> bool:
    try:
        return Reason(reason).infrastructure
    except ValueError:
        return False
