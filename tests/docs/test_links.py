"""Links lead somewhere, and what the pages name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_gpubench.cli.main import COMMANDS
from pytest_gpubench.docgen import declared_options
from pytest_gpubench.mock import faults

from .pages import REPOSITORY, Page, pages, read_page

ALL = {page.name: page for page in pages()}


@pytest.mark.parametrize("name", ALL)
def test_links_lead_somewhere(name: str) -> None:
    page = ALL[name]
    for target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file).resolve() if file else page.path
        assert path.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in read_page(path).anchors(), f"{name}: {target}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [REPOSITORY / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or path.suffix != ".md" or not path.is_file():
            continue
        reached.add(path)
        targets = (target.partition("#")[0] for target in read_page(path).links())
        waiting += [(path.parent / target).resolve() for target in targets if target and ":" not in target]
    assert {page.path for page in ALL.values()} == reached


@pytest.mark.parametrize("name", ALL)
def test_options_that_are_named_exist(name: str) -> None:
    known = {option.name for group in declared_options() for option in group}
    text = ALL[name].path.read_text(encoding="utf-8")
    for option in re.findall(r"(?<![\w/-])(--(?:gpubench-|mock-slurm|workload)[\w-]*)", text):
        assert option in known or option == "--workloads", f"{name}: {option}"
    for ini in re.findall(r"`(gpubench_(?:workloads|profiles|suite|results|poll\w*|heart\w*))`", text):
        assert ini in known, f"{name}: {ini}"
    for command in re.findall(r"`gpubench ([a-z]+)", text):
        assert command in COMMANDS, f"{name}: gpubench {command}"


def test_the_faults_that_are_listed_are_the_faults() -> None:
    rows = re.findall(r"^\| [\w ]+ \| ((?:`[A-Z]\w+` ?)+)\|$", _prose("docs/fixtures.md"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(faults.FAULTS)


def test_modules_that_are_named_exist() -> None:
    package = REPOSITORY / "pytest_gpubench"
    for name in re.findall(r"`([a-z_]+(?:\.py|/))`", _prose("docs/architecture.md")):
        assert (package / name).exists(), name


def _prose(name: str) -> str:
    page: Page = ALL[name]
    return page.prose
