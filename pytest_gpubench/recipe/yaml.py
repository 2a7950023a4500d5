"""YAML with a position for every key and value, and without YAML 1.1's surprises.

Values stay what was written: ``on``, ``yes``, ``010``, ``0x1f``, ``1_000``, ``03:00:00`` are text, ``1e-2``
is a number; a field that wants a truth value turns ``on`` into one, in sight of its own name.
Numbers remember their spelling: an environment variable written ``0.10`` is not exported as ``0.1``.

The parser's events are read directly: that keeps the C parser's speed and its positions, needs no
recursion, and lets depth, size and aliases be bounded.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_gpubench.errors import Position, RecipeError

__all__ = ["KeyPath", "WrittenFloat", "WrittenInt", "YamlFile", "load_yaml", "parse_yaml", "written"]

MAX_BYTES = 4_000_000
MAX_DEPTH = 40
MAX_VALUES = 200_000  # counted with aliases expanded: an alias bomb ends here

KeyPath = tuple[str | int, ...]
"""Keys and list indexes from the top of a file to a value."""

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_SPECIAL: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class WrittenInt(int):
    """An integer that knows how it was written."""

    text: str


class WrittenFloat(float):
    """A float that knows how it was written."""

    text: str


def written(value: object) -> str:
    """A scalar as text: numbers as they stand in the file, truth values as Python has them."""
    return value.text if isinstance(value, (WrittenInt, WrittenFloat)) else str(value)


@dataclass
class _Mark:
    """Where a value stands, and for a container where its children do (with their keys' places)."""

    line: int
    column: int
    children: dict[str | int, tuple[int, int, _Mark]] | None = None
    size: int = 1


@dataclass
class _Open:
    """A container that is being read."""

    value: dict[str, Any] | list[Any]
    mark: _Mark
    anchor: str | None
    key: tuple[str, int, int] | None = None
    merges: list[tuple[dict[str, Any], _Mark]] = field(default_factory=list)


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: plain Python data in ``value``, and :meth:`at` for the place of any part of it."""

    path: str
    value: Any
    sha256: str
    _root: _Mark

    def at(self, where: KeyPath = (), *, key: bool = False) -> Position:
        """The place of the value at ``where`` (``key``: of its key); of the nearest part above if absent."""
        mark = self._root
        line, column = mark.line, mark.column
        for step in where:
            child = (mark.children or {}).get(step)
            if child is None:
                break
            mark = child[2]
            line, column = (child[0], child[1]) if key else (mark.line, mark.column)
        return Position(self.path, line + 1, column + 1)

    def holds(self, where: KeyPath) -> bool:
        """True when the file has something at exactly ``where``."""
        mark = self._root
        for step in where:
            child = (mark.children or {}).get(step)
            if child is None:
                return False
            mark = child[2]
        return True

    def error(self, where: KeyPath, text: str, *, key: bool = False) -> RecipeError:
        """One problem at ``where``."""
        return RecipeError.at(self.at(where, key=key), dotted(where), text)


def dotted(where: KeyPath) -> str:
    """``vllm_bench.configs[0].name``."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def load_yaml(path: Path) -> YamlFile:
    """Read and parse a file. Raises RecipeError for anything that keeps it from being read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecipeError(f"{path}: cannot be read: {reason}") from error
    return parse_yaml(data, str(path))


def parse_yaml(data: bytes, path: str) -> YamlFile:
    """Parse one document. ``path`` is only for messages."""
    if len(data) > MAX_BYTES:
        raise _problem(path, 0, 0, f"the file is larger than {MAX_BYTES} bytes (got {len(data)} or more)")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n")
        start = before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")
        byte = data[error.start]
        raise _problem(
            path, line, len(start), f"the file is not UTF-8 (got the byte 0x{byte:02X})"
        ) from error
    try:
        value, root = _Builder(path).build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        what = " ".join(part for part in (error.context, error.problem) if part)
        if mark is not None and text[_offset(text, line) + column :][:1] == "\t":
            what += " (a tab: YAML is indented with spaces)"
        raise _problem(path, line, column, f"not YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        before_text = text[: max(0, error.position)]
        line = before_text.count("\n")
        column = len(before_text) - before_text.rfind("\n") - 1
        shown = f"U+{error.character:04X}" if isinstance(error.character, int) else repr(error.character)
        raise _problem(path, line, column, f"not YAML: {error.reason} (got {shown})") from error
    except yaml.YAMLError as error:
        raise _problem(path, 0, 0, f"not YAML: {error}") from error
    return YamlFile(path, value, hashlib.sha256(data).hexdigest(), root)


def _offset(text: str, line: int) -> int:
    """Where the line starts; lines count from 0."""
    position = 0
    for _ in range(line):
        position = text.find("\n", position) + 1
    return position


def _problem(path: str, line: int, column: int, text: str, where: str = "") -> RecipeError:
    return RecipeError.at(Position(path, line + 1, column + 1), where, text)


class _Builder:
    """Builds data and marks from the event stream of one document."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Any, _Mark] | None] = {}
        self.count = 0
        self.result: tuple[Any, _Mark] | None = None

    def build(self, text: str) -> tuple[Any, _Mark]:
        documents = 0
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._open(event)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._close()
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._at(event, "a second document starts here; a file holds one")
        if self.result is None or self.result[0] is None:
            raise _problem(self.path, 0, 0, "the file is empty")
        return self.result

    def _at(self, event: Any, text: str) -> RecipeError:
        where: list[str | int] = []
        for container in self.stack:
            if isinstance(container.value, list):
                where.append(len(container.value))
            elif container.key is not None:
                where.append(container.key[0])
        return _problem(self.path, event.start_mark.line, event.start_mark.column, text, dotted(tuple(where)))

    def _scalar(self, event: Any) -> None:
        mark = _Mark(event.start_mark.line, event.start_mark.column)
        top = self.stack[-1] if self.stack else None
        if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
            raise self._at(event, f"tags are not understood here (got {event.tag})")
        if top is not None and isinstance(top.value, dict) and top.key is None:
            plain = event.implicit[0] and event.tag is None
            if plain and event.value in ("", "~", "null"):
                raise self._at(event, f"a key is missing or null (got {event.value!r})")
            self._set_key(top, event, str(event.value), merge=plain and event.value == "<<")
            return
        value = _resolve(event.value) if event.implicit[0] and event.tag is None else event.value
        self._add(event, value, mark, event.anchor)

    def _set_key(self, top: _Open, event: Any, key: str, merge: bool) -> None:
        line, column = event.start_mark.line, event.start_mark.column
        children = top.mark.children
        assert children is not None
        if merge:
            top.key = ("<<", line, column)
            return
        if key in children:
            first = children[key]
            raise self._at(
                event, f"the key {key!r} is written twice in one mapping (first in line {first[0] + 1})"
            )
        top.key = (key, line, column)

    def _open(self, event: Any) -> None:
        if event.tag is not None:
            raise self._at(event, f"tags are not understood here (got {event.tag})")
        if len(self.stack) >= MAX_DEPTH:
            raise self._at(event, f"nested deeper than {MAX_DEPTH} levels")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            raise self._at(event, "a key must be text (got a mapping or a list)")
        mark = _Mark(event.start_mark.line, event.start_mark.column, {})
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Open({} if is_mapping else [], mark, event.anchor))

    def _close(self) -> None:
        done = self.stack.pop()
        if isinstance(done.value, dict):
            for merged, mark in done.merges:
                for key, value in merged.items():
                    if key not in done.value:
                        assert done.mark.children is not None
                        assert mark.children is not None
                        done.value[key] = value
                        done.mark.children[key] = mark.children[key]
        self._add(None, done.value, done.mark, done.anchor)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            raise self._at(event, f"the alias *{event.anchor} has no anchor before it")
        found = self.anchors[event.anchor]
        if found is None:
            raise self._at(event, f"the alias *{event.anchor} holds itself")
        value, mark = found
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            raise self._at(event, "an alias cannot be a key")
        place = _Mark(event.start_mark.line, event.start_mark.column, mark.children, mark.size)
        self._add(event, value, place, None)

    def _add(self, event: Any, value: Any, mark: _Mark, anchor: str | None) -> None:
        self.count += mark.size if isinstance(event, yaml.AliasEvent) else 1
        if self.count > MAX_VALUES:
            raise _problem(
                self.path, mark.line, mark.column, f"more than {MAX_VALUES} values, aliases expanded"
            )
        if anchor is not None:
            self.anchors[anchor] = (value, mark)
        if not self.stack:
            self.result = (value, mark)
            return
        top = self.stack[-1]
        children = top.mark.children
        assert children is not None
        top.mark.size += mark.size
        if isinstance(top.value, list):
            children[len(top.value)] = (mark.line, mark.column, mark)
            top.value.append(value)
            return
        assert top.key is not None
        key, line, column = top.key
        top.key = None
        if key == "<<":
            self._merge(top, value, mark)
            return
        children[key] = (line, column, mark)
        top.value[key] = value

    def _merge(self, top: _Open, value: Any, mark: _Mark) -> None:
        parts = value if isinstance(value, list) else [value]
        for index, part in enumerate(parts):
            if not isinstance(part, dict):
                raise _problem(self.path, mark.line, mark.column, "'<<' merges mappings only", "<<")
            place = mark.children[index][2] if isinstance(value, list) and mark.children else mark
            top.merges.append((part, place))


def _resolve(text: str) -> object:
    """A plain scalar: null, true, false, a decimal number, else the text itself."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if text[0] not in "-+.0123456789" or len(text) > 400:
        return text
    if _INT.match(text):
        number = WrittenInt(text)
        number.text = text
        return number
    if _FLOAT.match(text) and not _LEADING_ZERO.match(text):
        decimal = WrittenFloat(text)
        decimal.text = text
        return decimal
    return text
