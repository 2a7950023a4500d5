"""The results folder: one folder per recipe, one per point, every file written atomically.

``<results>/<recipe stem>/<point>/{plan.json,bench.json,bench-run-<n>.json,row.json}`` and
``<results>/ingest.json``. A kill at any moment leaves each file whole: the old one or the new one.
Rows are written by whoever ran the point (any xdist worker), the whole is put together from them.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets as random_source
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError, InfraError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.text import clean, encodable, mask

__all__ = ["SCHEMA_VERSION", "ResultsStore", "atomic_write", "read_ingest", "safe_part", "to_json"]

SCHEMA_VERSION = 1
_PART = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MAX_ROW = 16 * 1024 * 1024

Row = dict[str, JSON]
Key = tuple[str, str]
"""(recipe stem, point id): what a row is about."""


class ResultsStore:
    """Reads and writes one results folder; ``secrets`` are masked in everything it writes."""

    def __init__(self, root: Path, *, secrets: Iterable[str] = ()) -> None:
        self.root = root
        self._secrets = tuple(secrets)

    def point_dir(self, stem: str, point: str) -> Path:
        """The folder of one point; it need not exist. Names that leave the folder are refused."""
        return self.root / safe_part(stem) / safe_part(point)

    def make_dir(self, stem: str, name: str) -> Path:
        """Create and return ``<results>/<stem>/<name>``, a point's or a deployment's folder."""
        path = self.point_dir(stem, name)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise _unwritable(path, err) from err
        return path

    def write_plan(self, stem: str, point: str, plan: Mapping[str, JSON]) -> Path:
        """Write ``plan.json`` of a point: arguments stay exactly as the process receives them."""
        return self.write_json(self.make_dir(stem, point) / "plan.json", plan, exact=True)

    def write_row(self, row: Mapping[str, JSON]) -> Path:
        """Write ``row.json`` of the point that the row names.

        An earlier attempt of the same run stays beside it as ``row-attempt-<n>.json``: a repetition
        after an infrastructure failure never hides that failure.
        """
        stem, point = row.get("workload"), row.get("point")
        if not isinstance(stem, str) or not isinstance(point, str):
            raise GpubenchError(f"a row must name its workload and point (got {stem!r}, {point!r})")
        path = self.make_dir(stem, point) / "row.json"
        before = _load_row(path)
        if before is not None and before.get("run_id") == row.get("run_id"):
            attempt = before.get("attempt")
            if isinstance(attempt, int) and attempt != row.get("attempt"):
                self.write_json(path.with_name(f"row-attempt-{attempt}.json"), before)
        return self.write_json(path, dict(row))

    def read_row(self, stem: str, point: str) -> Row | None:
        """The row of a point; None when there is none, or it cannot be read as one."""
        return _load_row(self.point_dir(stem, point) / "row.json")

    def read_rows(self, ignored: list[str] | None = None) -> list[Row]:
        """Every row of the folder, by recipe and point. Torn and foreign files are passed over, and
        named in ``ignored``.
        """
        rows: dict[Key, Row] = {}
        for path in self._row_files():
            row = _load_row(path)
            key = _key(row) if row is not None else None
            # A copied folder holds a row that names another place: counting it would double that point.
            if row is None or key is None or path.parent != self.root / key[0] / key[1]:
                if ignored is not None:
                    ignored.append(f"{path}: not a row of this folder")
                continue
            rows[key] = row
        return [rows[key] for key in sorted(rows)]

    def valid_row(
        self, stem: str, point: str, *, recipe_sha256: str, image: str | None, simulated: bool = False
    ) -> Row | None:
        """The row that makes measuring again unnecessary: passed or failed by its gates, for the same
        recipe and image. Errors and invalid measurements are measured again, and a simulated row never
        stands for a real one.
        """
        row = self.read_row(stem, point)
        if row is None or row.get("recipe_sha256") != recipe_sha256 or row.get("image") != image:
            return None
        if (row.get("simulated") is True) != simulated:
            return None
        judged = row.get("status") == "passed" or row.get("reason") in _JUDGED
        return row if judged and row.get("point") == point and row.get("workload") == stem else None

    def assemble(
        self,
        run: Mapping[str, JSON],
        *,
        run_id: str,
        resumed: Collection[Key] = (),
        path: Path | None = None,
    ) -> Path:
        """Write the ingest file from the point rows: those of ``run_id`` and the ``resumed`` points.

        Rows of earlier runs that were not resumed stay out. Doing it twice gives the same bytes.
        """
        rows = [row for row in self.read_rows() if row.get("run_id") == run_id or _key(row) in resumed]
        content: Row = {"schema_version": SCHEMA_VERSION, "run": dict(run), "rows": list(rows)}
        return self.write_json(path or self.root / "ingest.json", content)

    def write_json(self, path: Path, content: Mapping[str, JSON], *, exact: bool = False) -> Path:
        """Write JSON that every strict reader takes: finite, masked, UTF-8, without control characters.

        ``exact`` keeps control characters (as JSON escapes) where a text is data and not a message.
        """
        presentable = self._presentable(dict(content), encodable if exact else clean)
        atomic_write(path, to_json(presentable).encode("utf-8"))
        return path

    def _presentable(self, value: JSON, tidy: Callable[[str], str]) -> JSON:
        if isinstance(value, str):
            return mask(tidy(value), self._secrets)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {tidy(str(key)): self._presentable(item, tidy) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._presentable(item, tidy) for item in value]
        return value

    def _row_files(self) -> Iterator[Path]:
        try:
            recipes = sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
            for recipe in recipes:
                if recipe.is_dir():
                    yield from sorted(recipe.glob("*/row.json"))
        except FileNotFoundError:
            return
        except OSError as err:
            raise InfraError(Reason.RESULTS_UNWRITABLE, f"{self.root} cannot be read: {err}") from err


# Reasons whose row holds a trusted measurement.
_JUDGED = frozenset(reason.value for reason in Reason if reason.trusted)


def to_json(content: JSON) -> str:
    """Indented JSON text with a final newline; NaN and infinity are refused."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def safe_part(name: str) -> str:
    """``name`` when it is one harmless part of a path; an error otherwise."""
    if not _PART.fullmatch(name) or set(name) == {"."}:
        raise GpubenchError(
            f"{name!r} cannot name a results folder: expected 1 to 200 of letters, digits, '.', '_', '-'"
        )
    return name


def atomic_write(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` as a whole, on disk before it appears. ``InfraError`` names the path.

    The temporary file lies beside it (a rename works within one file system only) and is removed when
    anything fails; one that a kill leaves behind starts with a dot and is never read.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{random_source.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(temporary, path)
        _sync_dir(path.parent)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, err) from err
    except BaseException:  # Ctrl-C between two steps: leave nothing behind
        temporary.unlink(missing_ok=True)
        raise


def read_ingest(path: Path) -> tuple[Row, list[Row]]:
    """The run block and the rows of an ingest file; ``GpubenchError`` says what is wrong with it."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise GpubenchError(f"{path}: no such ingest file") from None
    except (OSError, ValueError, RecursionError) as err:
        raise GpubenchError(f"{path}: cannot be read as an ingest file: {err}") from None
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise GpubenchError(f'{path}: not an ingest file: expected {{"schema_version", "run", "rows"}}')
    if content.get("schema_version") != SCHEMA_VERSION:
        found = content.get("schema_version")
        raise GpubenchError(f"{path}: schema_version {found!r}, this version reads {SCHEMA_VERSION}")
    run, rows = content.get("run"), content["rows"]
    if not all(isinstance(row, dict) for row in rows):
        raise GpubenchError(f"{path}: a row is not an object")
    return run if isinstance(run, dict) else {}, rows


def _load_row(path: Path) -> Row | None:
    try:
        if path.stat().st_size > _MAX_ROW:
            return None
        row = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _key(row) is not None and "status" in row else None


def _key(row: Mapping[str, JSON]) -> Key | None:
    stem, point = row.get("workload"), row.get("point")
    return (stem, point) if isinstance(stem, str) and isinstance(point, str) else None


def _sync_dir(path: Path) -> None:
    """Make the rename itself durable; some file systems refuse to sync a folder, which loses nothing else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _unwritable(path: Path, err: OSError) -> InfraError:
    return InfraError(
        Reason.RESULTS_UNWRITABLE,
        f"cannot write {path}: {err.strerror or err}; free space or --gpubench-results",
    )
