"""The documentation as data: pages, fenced blocks with the marks before them, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_MARK = re.compile(r"^<!-- (exit|run|on): *([\w-]+) *-->$")
_LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``exit`` is the exit code that its commands end with; ``run`` and ``on`` say where."""

    page: Path
    line: int
    language: str
    text: str
    exit: int = 0
    run: str = ""
    on: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A Markdown page."""

    path: Path
    blocks: tuple[Block, ...]
    prose: str  # without the fenced blocks

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(REPOSITORY).as_posix()

    def commands(self) -> list[tuple[Block, Block | None]]:
        """The ``sh`` blocks, each with the ``text`` block that quotes its output, if one follows."""
        found = []
        for index, block in enumerate(self.blocks):
            if block.language == "sh":
                after = self.blocks[index + 1] if index + 1 < len(self.blocks) else None
                found.append((block, after if after is not None and after.language == "text" else None))
        return found

    def links(self) -> list[str]:
        """The targets of its links and pictures."""
        return _LINK.findall(re.sub(r"`[^`\n]*`", "", self.prose))

    def anchors(self) -> set[str]:
        """What a link may name after ``#``, as GitHub makes it from the headings."""
        return {
            re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        }


def read_page(path: Path) -> Page:
    """Parse a page."""
    blocks: list[Block] = []
    prose: list[str] = []
    marks: dict[str, str] = {}
    inside: tuple[str, str, int, list[str]] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence is not None and fence[1] == inside[0] and not fence[2]:
                blocks.append(_block(path, inside, marks))
                marks = {name: value for name, value in marks.items() if name == "on"}
                inside = None
            else:
                inside[3].append(line)
        elif fence is not None:
            inside = (fence[1], fence[2], number, [])
        else:
            mark = _MARK.match(line)
            if mark is not None:
                marks[mark[1]] = mark[2]
            prose.append(line)
    assert inside is None, f"{path}: the block of line {inside[2] if inside else 0} does not end"
    return Page(path, tuple(blocks), "\n".join(prose))


def _block(path: Path, inside: tuple[str, str, int, list[str]], marks: dict[str, str]) -> Block:
    _, language, line, lines = inside
    own = marks if language == "sh" else {}
    return Block(
        path,
        line,
        language,
        "\n".join(lines),
        int(own.get("exit", "0")),
        own.get("run", ""),
        own.get("on", ""),
    )


def pages() -> Iterator[Page]:
    """README, CONTRIBUTING, CHANGELOG and everything in ``docs/``."""
    top = (REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    for path in [*top, *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        yield read_page(path)
