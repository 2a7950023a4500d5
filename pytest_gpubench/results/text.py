"""Text from outside made fit for reports: log tails cleaned and bounded, secrets masked.

Server logs hold colour codes, NUL, progress bars of hundreds of carriage returns and broken UTF-8;
in a JUnit file or a JSON string each of these makes the whole file unreadable.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

__all__ = ["MASK", "clean", "clean_tail", "encodable", "last_words", "mask", "read_tail", "secret_values"]

MASK = "***"
TAIL_LINES = 40
TAIL_BYTES = 8192
_MIN_SECRET = 6  # masking "1" or "vllm" would make every text unreadable and hide nothing

# CSI (colours, cursor), OSC (titles, links; ended by BEL or ST), then other two-byte escapes.
_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x9b[0-?]*[@-~]"
)
# What XML 1.0 forbids, and C1 controls, which terminals obey. Tab and newline stay.
_ILLEGAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_SECRET_NAME = re.compile(r"(?:TOKEN|_KEY|SECRET|PASSWD)(?:_\d+)?$|PASSWORD|^(?:TOKEN|KEY|SECRET)$", re.I)
_NOT_SECRET = frozenset({"true", "false", "none", "null", "auto", "default"})


def clean(text: str) -> str:
    """``text`` without control sequences, legal in XML 1.0 and UTF-8; progress bars keep their last state."""
    text = _ANSI.sub("", text.replace("\r\n", "\n"))
    lines = []
    for line in text.split("\n"):
        # A terminal shows what follows the last carriage return that has text after it.
        states = [state for state in line.split("\r") if state.strip()]
        lines.append(_ILLEGAL.sub("", states[-1]) if states else "")
    return "\n".join(lines)


def encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: lone surrogates become replacement characters, all else stays."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_tail(content: bytes | str, *, lines: int = TAIL_LINES, max_bytes: int = TAIL_BYTES) -> str:
    """The last ``lines`` non-empty lines of a log, at most ``max_bytes`` bytes of UTF-8, cleaned."""
    # Four bytes per final byte at most are worth cleaning; escapes and progress bars shrink.
    raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
    text = clean(raw[-64 * max_bytes :].decode("utf-8", "replace"))
    kept = [line.rstrip() for line in text.split("\n") if line.strip()][-lines:]
    encoded = "\n".join(kept).encode("utf-8")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    cut = encoded[len(encoded) - max_bytes + 4 :].decode("utf-8", "ignore")
    return f"...\n{cut.partition(chr(10))[2]}" if "\n" in cut else f"...{cut}"


def read_tail(path: Path, *, lines: int = TAIL_LINES, max_bytes: int = TAIL_BYTES) -> str:
    """The cleaned tail of a log file; "" when it cannot be read. Reads the end of the file only."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - 64 * max_bytes))
            return clean_tail(log.read(64 * max_bytes), lines=lines, max_bytes=max_bytes)
    except OSError:
        return ""


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose name says secret: ``*_TOKEN *_KEY *_SECRET *PASSWORD*``; longest first."""
    found = {
        value.strip()
        for name, value in env.items()
        if _SECRET_NAME.search(name)
        and len(value.strip()) >= _MIN_SECRET
        and value.strip().lower() not in _NOT_SECRET
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def last_words(text: str) -> str:
    """The last line that a process wrote itself: srun's own come after it and say less. Empty without one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd", "pyxis:"))]
    return (own or lines or [""])[-1]


def mask(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret replaced, also as JSON, a shell word or a URL would write it."""
    for secret in secrets:
        if not secret:
            continue
        for form in _forms(secret):
            text = text.replace(form, MASK)
    return text


def _forms(secret: str) -> list[str]:
    forms = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        shlex.quote(secret),
        repr(secret)[1:-1],
    }
    with contextlib.suppress(UnicodeEncodeError):
        forms.add(quote(secret, safe=""))
    return sorted(forms, key=len, reverse=True)
