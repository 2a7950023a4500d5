"""No field case without a test named by its id, and a paragraph that names that test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .cases import CASES, REPOSITORY

_TEST = re.compile(r"^def (test_fc_(\d\d)_\w+)\(", re.MULTILINE)
PAGE = REPOSITORY / "docs" / "field_cases.md"


def named_by_id(folder: Path) -> dict[str, set[str]]:
    """``FC-02`` -> the tests below ``folder`` that are named by it, as ``<file>::<function>``."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        name = path.relative_to(REPOSITORY).as_posix()
        for function, number in _TEST.findall(path.read_text(encoding="utf-8")):
            found.setdefault(f"FC-{number}", set()).add(f"{name}::{function}")
    return found


def paragraphs() -> dict[str, str]:
    """``FC-02`` -> its section of the page."""
    parts = re.split(r"^## (FC-\d\d)\b.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_cases() -> None:
    assert len(CASES) == 33
    assert all(re.fullmatch(r"FC-\d\d", case) for case in CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_a_test_here(case: str) -> None:
    assert named_by_id(Path(__file__).parent).get(case), f"no test_fc_{case[3:]}_… in tests/field_cases"


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_a_paragraph_that_names_its_tests(case: str) -> None:
    section = paragraphs()[case]
    named = set(re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", section))
    assert named, f"{case}: docs/field_cases.md names no test"
    assert named <= named_by_id(REPOSITORY / "tests")[case]
    assert len(section.split()) > 40


def test_the_page_tells_the_cases_in_order_and_no_other() -> None:
    assert list(paragraphs()) == list(CASES)


def test_no_test_is_named_by_a_case_that_does_not_exist() -> None:
    assert set(named_by_id(REPOSITORY / "tests")) <= set(CASES)
