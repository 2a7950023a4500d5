"""Log tails and secrets."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpubench.results.text import clean, clean_tail, encodable, mask, read_tail, secret_values

PROGRESS = "\r".join(f"loading {n}%" for n in range(200))
LOG = b"start\n\x1b[31mERROR \x1b[0m\0\x07 out\xff\n" + PROGRESS.encode() + b"\r\nlast\n"


def test_fc_45_a_hostile_log_becomes_plain_bounded_text() -> None:
    tail = clean_tail(LOG)
    assert tail == "start\nERROR  out\ufffd\nloading 199%\nlast"
    ElementTree.fromstring(f"<a>{tail}</a>")
    assert json.loads(json.dumps(tail)).encode("utf-8").decode("utf-8") == tail


def test_fc_45_the_tail_is_bounded_in_lines_and_bytes() -> None:
    many = "\n".join(f"line {n}" for n in range(1000))
    assert clean_tail(many, lines=3) == "line 997\nline 998\nline 999"
    for text in (many, "ü" * 50_000, "a" * 50_000, "€\n" * 30_000):
        tail = clean_tail(text, lines=100_000, max_bytes=1000)
        assert 900 < len(tail.encode()) <= 1000
        assert tail.startswith("...")


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=300))
def test_any_bytes_become_legal_xml_and_utf_8(content: bytes) -> None:
    tail = clean_tail(content, lines=5, max_bytes=100)
    assert len(tail.encode("utf-8")) <= 100
    assert len(tail.split("\n")) <= 6
    escaped = tail.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    ElementTree.fromstring(f"<a>{escaped}</a>")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[38;5;196mred\x1b[K", "red"),
        ("\x1b(Bx\x1b=", "x"),
        ("a\ttab", "a\ttab"),
        ("\ud800lone", "lone"),
        ("50%\r", "50%"),
        ("\r\r", ""),
        ("\uffff\x85", ""),
    ],
)
def test_clean(text: str, plain: str) -> None:
    assert clean(text) == plain


def test_encodable_changes_lone_surrogates_only() -> None:
    assert encodable("a\x1b\r\n😀ü") == "a\x1b\r\n😀ü"
    assert encodable("x\ud800y\udcff") == "x\ufffdy\ufffd"


def test_read_tail_reads_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"early\n" * 200_000 + b"CUDA out of memory\n")
    assert read_tail(path, lines=1) == "CUDA out of memory"
    assert read_tail(tmp_path / "none.log") == ""
    assert read_tail(tmp_path) == ""


def test_fc_46_secret_names_give_secret_values() -> None:
    env = {
        "HF_TOKEN": "not-a-secret-but-must-not-show",
        "WANDB_API_KEY": "key-value",
        "CLIENT_SECRET": "secret-value",
        "DB_PASSWORD": "password-value",
        "PGPASSWORD": "pgpass-value",
        "INGEST_BEARER_TOKEN": " bearer-value\n",
        "hf_token": "lower-value",
        "FLAG_KEY": "1",
        "OTHER_TOKEN": "",
        "AUTO_TOKEN": "default",
        "TOKENIZERS_PARALLELISM": "tokenizers",
        "MONKEY": "monkey-value",
        "MAX_TOKENS": "1000000",
        "HOME": "/home/bench",
    }
    assert set(secret_values(env)) == {
        "not-a-secret-but-must-not-show",
        "key-value",
        "secret-value",
        "password-value",
        "pgpass-value",
        "bearer-value",
        "lower-value",
    }


def test_fc_46_no_form_of_a_secret_survives() -> None:
    secret = "pa\"ss'w$ rd/ü\\"
    written = [secret, json.dumps(secret), shlex.quote(secret), quote(secret, safe=""), repr(secret)]
    masked = mask(" | ".join(written), [secret])
    assert "ss" not in masked
    assert masked.count("***") == len(written)


def test_fc_46_a_secret_inside_another_is_masked_whole() -> None:
    secrets = secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdef-ghijkl"})
    assert mask("x abcdef-ghijkl y abcdef", secrets) == "x *** y ***"
    assert mask("nothing", ["", "secret"]) == "nothing"
