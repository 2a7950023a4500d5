"""Every command in README and docs is run, and prints what the page says it prints."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from pytest_gpubench.cli.main import COMMANDS
from pytest_gpubench.docgen import declared_options

from .pages import REPOSITORY, Block, pages
from .runner import missing_line, run_page

PAGES = {page.name: page for page in pages() if page.commands()}
FAST = ("README.md",)
PYTEST_OPTIONS = {
    "--collect-only", "--junitxml", "--lf", "--markers", "--help", "-k", "-m", "-n", "-q", "-rs", "-v", "-x",
    "--dist",
}  # fmt: skip
"""pytest's and xdist's own that the documentation speaks of."""


def _parameters() -> list[object]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in PAGES]


@pytest.mark.parametrize("name", _parameters())
def test_the_commands_of_a_page_work_and_print_what_it_says(name: str, tmp_path: Path) -> None:
    page = PAGES[name]
    quoted = {block.line: text for block, text in page.commands()}
    for ran in run_page(page, tmp_path, timeout=400):
        where = f"{ran.block}:\n{ran.block.text}\n--- printed:\n{ran.out}"
        assert ran.code == ran.block.exit, f"exit {ran.code}, not {ran.block.exit}: {where}"
        assert ran.failures == (1 if ran.block.exit else 0), f"a command failed: {where}"
        text = quoted[ran.block.line]
        if text is not None:
            line = missing_line(text.text, ran.out)
            assert line is None, f"{text}: not printed: {line!r}\n{where}"


def _sh_blocks() -> list[Block]:
    return [block for page in PAGES.values() for block, _ in page.commands()]


@pytest.mark.parametrize("block", _sh_blocks(), ids=str)
def test_blocks_are_shell_and_their_options_exist(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{block}: {done.stderr}"
    for words in _invocations(block.text):
        if words[0] == "pytest" or words[:2] == ["gpubench", "ci"]:
            known = {option.name for option in declared_options()[0]} | PYTEST_OPTIONS
            given = {word.split("=")[0] for word in words[1:] if re.match(r"-+[a-zA-Z]", word)}
            assert given <= known, f"{block}: unknown options {sorted(given - known)}"
        elif words[0] == "gpubench" and words[1:] and words[1] in COMMANDS:
            _parse(block, words)


def _parse(block: Block, words: list[str]) -> None:
    """The arguments are understood by the subcommand's own parser."""
    module = importlib.import_module(f"pytest_gpubench.cli.{COMMANDS[words[1]][0]}")
    parser: argparse.ArgumentParser = module.parser()
    arguments = words[2 : words.index("--")] if "--" in words else words[2:]
    try:
        parser.parse_args(arguments)
    except SystemExit as err:
        if err.code:
            pytest.fail(f"{block}: {shlex.join(words)}: {parser.format_usage()}")


def _invocations(text: str) -> list[list[str]]:
    """The words of each call of ``pytest`` and ``gpubench``; here-documents and redirections are left out."""
    text = re.sub(r"<<'(\w+)'([^\n]*)\n.*?^\1$", r"\2", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?:^|(?<=\s))#.*", "", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    found = []
    call: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&\n"):
            call.append(word)
            continue
        while call and re.match(r"\w+=", call[0]):
            call.pop(0)
        if call and Path(call[0]).name in {"pytest", "gpubench"}:
            found.append([Path(call[0]).name, *call[1:]])
        call = []
    return found


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "A=1 pytest -q 'a b' | head  # why\ngpubench row >x",
            [["pytest", "-q", "a b"], ["gpubench", "row"]],
        ),
        ("cat > x <<'EOF'\nit's\nEOF\npytest -q \\\n  -x", [["pytest", "-q", "-x"]]),
        ("python3 -c 'a\nb' && .venv/bin/pytest", [["pytest"]]),
    ],
)
def test_invocations_are_found(text: str, calls: list[list[str]]) -> None:
    assert _invocations(text) == calls


def test_what_is_left_to_ci_is_run_by_ci() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    for page in PAGES.values():
        for block, _ in page.commands():
            if block.run != "ci":
                continue
            for command in re.split(r"&&|\n", re.sub(r"\s+#.*", "", block.text)):
                words = command.strip()
                read_from_readme = page.name == "README.md" and "README.md" in script
                assert read_from_readme or words in script or words in _readme(), f"{block}: {words}"


def _readme() -> str:
    return (REPOSITORY / "README.md").read_text()


def test_most_pages_are_covered_by_commands() -> None:
    assert {"README.md", "docs/tutorial.md", "docs/fixtures.md", "docs/gb300_smoke.md"} <= set(PAGES)


@pytest.mark.parametrize(
    ("quoted", "printed", "missing"),
    [
        ("a 12.5 s\nb", "x\na    7 s\ny\nb", None),
        ("=== 1 passed in 6.11s ===", "== 1 passed in 0.2s ==", None),
        ("rows: …/ingest.json", "rows: /tmp/x/ingest.json", None),
        ("3 passed", "3 failed", "3 passed"),
        ("a\nb", "b\na", "b"),
    ],
)
def test_quoted_output_is_compared_loosely_but_compared(
    quoted: str, printed: str, missing: str | None
) -> None:
    assert missing_line(quoted, printed) == missing
