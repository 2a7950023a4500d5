from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.yaml import MAX_BYTES, dotted, load_yaml, parse_yaml, written


def parse(text: str) -> Any:
    return parse_yaml(text.encode(), "f.yaml").value


def problem(data: str | bytes) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_yaml(data.encode() if isinstance(data, str) else data, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("1e-2", 0.01),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("00.5", "00.5"),
        ("03:00:00", "03:00:00"),
        ("12:30:45", "12:30:45"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("-3", -3),
        ("+4", 4),
        ("'5'", "5"),
        ('"on"', "on"),
        ("!!str 5", "5"),
        (".inf", math.inf),
        ("registry.example.com:5050#team/vllm:v1", "registry.example.com:5050#team/vllm:v1"),
        ("a # comment", "a"),
    ],
)
def test_a_scalar_stays_what_was_written(text: str, value: object) -> None:
    found = parse(f"k: {text}")["k"]
    assert found == value
    assert type(found) is type(value) or isinstance(found, type(value))


def test_keys_are_always_text() -> None:
    assert parse("on: 1\n1: 2\ntrue: 3\n03:00: 4") == {"on": 1, "1": 2, "true": 3, "03:00": 4}


@pytest.mark.parametrize("text", ["0.10", "1e5", "7.50", "+3", "12"])
def test_numbers_remember_their_spelling(text: str) -> None:
    assert written(parse(f"k: {text}")["k"]) == text


def test_every_value_and_key_has_its_place() -> None:
    file = parse_yaml(b"a:\n  - b: 1\n    cc: [x, y]\n", "f.yaml")
    assert str(file.at(("a", 0, "cc", 1))) == "f.yaml:3:13"
    assert str(file.at(("a", 0, "cc"), key=True)) == "f.yaml:3:5"
    assert str(file.at(("a", 0, "gone", "deeper"))) == "f.yaml:2:5"
    assert file.holds(("a", 0, "b"))
    assert not file.holds(("a", 1))
    assert dotted(("a", 0, "cc", 1)) == "a[0].cc[1]"


def test_columns_count_characters() -> None:
    assert "f.yaml:1:11" in problem("{ü: 1, é: *x}")


@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1:", "'a' is written twice in one mapping (first in line 1)"),
        ("x:\n  a: 1\n  'a': 3", "f.yaml:3:3: x:", "written twice"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1:", "second document"),
        ("a:\n\t- b", "f.yaml:2:1:", "a tab"),
        (b"a: b\nc: \xff", "f.yaml:2:4:", "not UTF-8 (got the byte 0xFF)"),
        (b"a: \x00", "f.yaml:1:4:", "U+0000"),
        ("a: &x [*x]", "f.yaml:1:8: a[0]:", "holds itself"),
        ("a: *x", "f.yaml:1:4: a:", "no anchor before it"),
        ("a: !env HOME", "f.yaml:1:4: a:", "tags are not understood here (got !env)"),
        ("? [a]\n: b", "f.yaml:1:3:", "a key must be text"),
        ("a: {null: 1}", "f.yaml:1:5: a:", "a key is missing or null"),
        ("", "f.yaml:1:1:", "the file is empty"),
        ("# only a comment\n", "f.yaml:1:1:", "the file is empty"),
        ("a: b: c", "f.yaml:1:5:", "not YAML"),
        ("a: [1, 2", "f.yaml:", "not YAML"),
        ("a: 1\n<<: 3", "f.yaml:2:5: <<:", "merges mappings only"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(data: str | bytes, place: str, words: str) -> None:
    text = problem(data)
    assert text.startswith(place)
    assert words in text


def test_merge_keys_give_way_to_the_mapping_itself() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc:\n  <<: [*a, *b]\n  y: 4"
    assert parse(text)["c"] == {"y": 4, "x": 1, "z": 3}


@pytest.mark.parametrize("data", [b"[" * 100_000, b"- " * 100_000, b"{a: " * 5_000])
def test_depth_is_bounded(data: bytes) -> None:
    assert "nest" in problem(data)


def test_an_alias_bomb_is_refused_before_it_is_expanded() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "aliases expanded" in problem("\n".join(lines))


def test_size_is_bounded() -> None:
    assert "larger than" in problem(b"a: " + b"x" * MAX_BYTES)


def test_a_missing_file_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        load_yaml(tmp_path / "gone.yaml")
    with pytest.raises(RecipeError, match="cannot be read: Is a directory"):
        load_yaml(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert parse_yaml(b"\xef\xbb\xbfa: 1", "f.yaml").value == {"a": 1}
