"""``docs/reasons.md`` names every reason once, in the section that is true of it."""

from __future__ import annotations

import re

import pytest

from pytest_gpubench.docgen import reasons_page
from pytest_gpubench.reasons import Phase, Reason

from .pages import REPOSITORY


def sections() -> dict[str, list[str]]:
    """Heading -> codes of its table, of the page as it is kept."""
    text = (REPOSITORY / "docs" / "reasons.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {
        head: re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)
        for head, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_page_is_what_the_code_gives() -> None:
    kept = (REPOSITORY / "docs" / "reasons.md").read_text(encoding="utf-8")
    assert kept == reasons_page(), "GPUBENCH_DOCS=write pytest tests/docs, then look"


def test_every_reason_is_there_once() -> None:
    *codes, phases = sections().values()
    assert sorted(code for section in codes for code in section) == sorted(one.value for one in Reason)
    assert phases == [phase.value for phase in Phase]


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_has_a_meaning_and_one_place(reason: Reason) -> None:
    assert re.fullmatch(r"\S.{15,}\.", reason.meaning)
    good, wrong, infrastructure, _ = sections().values()
    assert (reason.value in infrastructure) == reason.infrastructure
    assert (reason.value in good) == reason.trusted
    assert (reason.value in wrong) == (not reason.infrastructure and not reason.trusted)
    assert not (reason.infrastructure and reason.trusted)
