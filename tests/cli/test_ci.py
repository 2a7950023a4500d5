"""``gpubench ci``: pytest's exit codes, and one more when only the infrastructure failed."""

from __future__ import annotations

import sys

import pytest

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE, PLUGIN, run
from pytest_gpubench.cli.ci_plugin import FailureWatch
from pytest_gpubench.reasons import Reason

SUITE = """
import pytest

def fail(item, reason):
    if reason:
        item.user_properties.append(("gpubench_reason", reason))
    pytest.fail(str(reason))

@pytest.fixture
def broken(request):
    fail(request.node, "queue_timeout")

def test_no_nodes(broken): pass
def test_dead(request): fail(request.node, "server_exited")
def test_gate(request): fail(request.node, "gate_missed")
def test_plain(request): fail(request.node, None)
def test_odd(request): fail(request.node, "a_reason_of_tomorrow")
def test_good(): pass
"""


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ("test_good", 0),
        ("test_no_nodes or test_dead or test_good", EXIT_INFRASTRUCTURE),
        ("test_no_nodes", EXIT_INFRASTRUCTURE),
        ("test_dead or test_gate", 1),
        ("test_gate", 1),
        ("test_plain or test_dead", 1),
        ("test_odd", 1),
        ("nothing_of_this_name", 5),
    ],
)
def test_exit_codes(chosen: str, code: int, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    assert run_ci(pytester, "-k", chosen) == code


def test_a_collection_error_is_no_infrastructure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a="import nowhere_to_be_found\n", test_b=SUITE)
    assert run_ci(pytester, "-k", "test_dead", "--continue-on-collection-errors") == 1


def test_usage_errors_stay(pytester: pytest.Pytester) -> None:
    assert run_ci(pytester, "--no-such-option") == 4


def test_xdist_workers_are_heard(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    assert run_ci(pytester, "-n", "1", "-k", "test_no_nodes") == EXIT_INFRASTRUCTURE


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_counts_as_its_table_says(reason: Reason) -> None:
    watch = FailureWatch()
    watch.reasons = [reason.value]
    assert watch.exit_code(1) == (EXIT_INFRASTRUCTURE if reason.infrastructure else 1)
    # Any other code of pytest is its own, such as 2 for an interrupted run.
    assert watch.exit_code(2) == 2


def test_no_failure_noted_is_no_infrastructure() -> None:
    assert FailureWatch().exit_code(1) == 1


def test_the_cause_is_said_and_nothing_is_warned_of(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpython_c(CODE.format(["-W", "error", "-k", "test_dead"]))
    assert result.ret == EXIT_INFRASTRUCTURE
    result.stdout.fnmatch_lines(["gpubench ci: exit 75: only the infrastructure failed (server_exited)"])
    result.stdout.no_fnmatch_line("*warning*")


def test_the_process_becomes_pytest() -> None:
    became: list[list[str]] = []

    def execute(program: str, argv: list[str]) -> None:
        became.append([program, *argv])
        raise SystemExit

    with pytest.raises(SystemExit):
        run(["-k", "a b"], execute=execute)
    assert became == [[sys.executable, sys.executable, "-m", "pytest", "-p", PLUGIN, "-k", "a b"]]


CODE = "import sys; from pytest_gpubench.cli.main import main; sys.exit(main(['ci', *{!r}]))"


def run_ci(pytester: pytest.Pytester, *arguments: str) -> int:
    """In a process of its own, which becomes pytest."""
    result = pytester.runpython_c(CODE.format(["-q", "-p", "no:cacheprovider", *arguments]))
    return int(result.ret)
