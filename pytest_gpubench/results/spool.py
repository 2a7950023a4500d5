"""Rows on their way to the dashboard: one file each, removed only when the dashboard has taken the row.

A row is spooled before it is sent, so a kill between the two loses nothing; the idempotency key tells
the dashboard that it sees a row again. The spool holds no credentials.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import InfraError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.store import atomic_write, to_json

__all__ = ["Entry", "Spool", "idempotency_key"]


@dataclass(frozen=True)
class Entry:
    """One row to send. ``refused`` is the dashboard's own answer when it did not want the row."""

    key: str
    label: str
    payload: Mapping[str, JSON]
    tries: int = 0
    refused: str | None = None
    error: str | None = None


def idempotency_key(row: Mapping[str, JSON]) -> str:
    """The same for every try at one row: run, recipe, point and attempt."""
    parts = [str(row.get(name)) for name in ("run_id", "workload", "recipe_sha256", "point", "attempt")]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class Spool:
    """The folder ``<results>/.gpubench/spool``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, results: Path) -> Spool:
        """The spool of a results folder."""
        return cls(results / ".gpubench" / "spool")

    def put(self, entry: Entry) -> None:
        """Keep an entry, replacing an older one of the same key."""
        content: dict[str, JSON] = {
            "schema_version": 1,
            "key": entry.key,
            "label": entry.label,
            "payload": dict(entry.payload),
            "tries": entry.tries,
            "refused": entry.refused,
            "error": entry.error,
        }
        atomic_write(self._path(entry), to_json(content).encode("utf-8"))

    def remove(self, entry: Entry) -> None:
        """Forget an entry that was taken."""
        try:
            self._path(entry).unlink(missing_ok=True)
        except OSError as err:
            raise InfraError(Reason.RESULTS_UNWRITABLE, f"cannot remove {self._path(entry)}: {err}") from err

    def entries(self) -> Iterator[Entry]:
        """What waits, in a stable order; files that are no entries are left alone."""
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []:
            entry = _read(path)
            if entry is not None and path == self._path(entry):
                yield entry

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.key}.json"


def failed(entry: Entry, *, error: str | None = None, refused: str | None = None) -> Entry:
    """The entry after one more try that did not succeed."""
    return replace(entry, tries=entry.tries + 1, error=error, refused=refused)


def _read(path: Path) -> Entry | None:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("payload"), dict):
        return None
    key, tries = content.get("key"), content.get("tries")
    if not isinstance(key, str) or not isinstance(tries, int):
        return None
    texts = {name: content.get(name) for name in ("refused", "error")}
    return Entry(
        key=key,
        label=str(content.get("label")),
        payload=content["payload"],
        tries=tries,
        **{name: value if isinstance(value, str) else None for name, value in texts.items()},
    )
