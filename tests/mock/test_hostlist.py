"""Host lists of the mock."""

from __future__ import annotations

import pytest

from pytest_gpubench.mock import hostlist

CASES = [
    ("gb300-[01-02]", ["gb300-01", "gb300-02"]),
    ("a[1,3-4]", ["a1", "a3", "a4"]),
    ("gb-r[01-02]-n[09-10],login7", ["gb-r01-n09", "gb-r01-n10", "gb-r02-n09", "gb-r02-n10", "login7"]),
    ("n[099-101]", ["n099", "n100", "n101"]),
    ("head", ["head"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "hosts"), CASES)
def test_expand(text: str, hosts: list[str]) -> None:
    assert hostlist.expand(text) == hosts


@pytest.mark.parametrize("text", ["gb[01-", "a[x]", "a[1-b]"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        hostlist.expand(text)


def test_compress_is_the_inverse() -> None:
    names = ["gb300-01", "gb300-02", "gb300-04", "login", "x9", "x10"]
    assert hostlist.compress(names) == "gb300-[01-02,04],login,x9,x10"
    assert hostlist.expand(hostlist.compress(names)) == names
    assert hostlist.compress(hostlist.expand("gb300-[0001-1000]")) == "gb300-[0001-1000]"
    assert hostlist.compress([]) == ""
