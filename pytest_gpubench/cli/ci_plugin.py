"""The pytest plugin of ``gpubench ci``: notes why tests failed, and sets the exit code."""

from __future__ import annotations

import pytest

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE
from pytest_gpubench.reasons import Reason

__all__ = ["FailureWatch", "pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    """Watch in the controller only: every report of xdist's workers arrives there."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureWatch(), "gpubench-ci")


class FailureWatch:
    """``reasons`` holds the reason code of every failed phase; ``None`` where there is none."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the code that the run of a point left in the report."""
        if report.failed:
            reason = dict(report.user_properties).get("gpubench_reason")
            self.reasons.append(reason if isinstance(reason, str) else None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A recipe that cannot be read is nobody's infrastructure."""
        if report.failed:
            self.reasons.append(None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """What the session's ``exitstatus`` is now, the process ends with."""
        session.exitstatus = self.exit_code(int(exitstatus))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Say why the exit code is not pytest's."""
        if self.exit_code(int(exitstatus)) == EXIT_INFRASTRUCTURE:
            causes = ", ".join(dict.fromkeys(str(reason) for reason in self.reasons))
            terminalreporter.write_line(
                f"gpubench ci: exit {EXIT_INFRASTRUCTURE}: only the infrastructure failed ({causes})"
            )

    def exit_code(self, status: int) -> int:
        """``status`` of pytest, or :data:`~pytest_gpubench.cli.ci.EXIT_INFRASTRUCTURE`."""
        only = bool(self.reasons) and all(map(_infrastructure, self.reasons))
        return EXIT_INFRASTRUCTURE if status == pytest.ExitCode.TESTS_FAILED and only else status


def _infrastructure(reason: str | None) -> bool:
    try:
        return Reason(reason).infrastructure
    except ValueError:  # none, or one of a newer version
        return False
