"""Which recipe files ``--workload`` and ``WORKLOADS`` mean.

Only names are looked at: a broken recipe cannot stop another one's run.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_gpubench.errors import OptionError

__all__ = ["recipe_files", "select_recipes", "split_names"]

_SUFFIXES = (".yaml", ".yml")
_NOT_RECIPES = ("gpu_profiles.yaml", "gpu_profiles.yml")
_NAME_LINE = re.compile(r"name\s*:\s*(?:'([^'\n]*)'|\"([^\"\n]*)\"|([^#\n]*?))\s*(?:\s#.*)?$")
_NAME_BYTES = 65_536


def split_names(texts: Iterable[str]) -> list[str]:
    """The names in option values or in ``WORKLOADS``: separated by commas or line breaks, blanks dropped."""
    return [name for text in texts for part in re.split(r"[,\n]", text) if (name := part.strip())]


def recipe_files(folder: Path) -> list[Path]:
    """The recipe files below a folder, sorted by name; profiles and hidden files are none."""
    if not folder.is_dir():
        return []
    found = [
        path
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
        and path.name not in _NOT_RECIPES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def select_recipes(
    names: Sequence[str], folders: Sequence[Path], cwd: Path, said: str = "--workload"
) -> list[Path]:
    """The files that ``names`` mean, each once, in the order of the names.

    A name is a file stem, the recipe's ``name:``, a path (relative to ``cwd``), or a glob over stems,
    names and paths below the folders. Raises OptionError when any of them means no file, or a plain
    name means several, with the close matches; ``said`` is where the names stand.
    """
    catalogue = _Catalogue(folders)
    chosen: dict[Path, None] = {}
    for name in names:
        for path in _find(name, catalogue, cwd, said):
            chosen[path] = None
    return list(chosen)


class _Catalogue:
    """The recipes of the folders; their ``name:`` lines are read when a stem does not decide."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.entries: list[tuple[Path, str]] = []  # (file, path below its folder without suffix)
        seen: set[Path] = set()
        for folder in folders:
            for path in recipe_files(folder):
                resolved = path.resolve()
                if resolved not in seen:
                    seen.add(resolved)
                    self.entries.append((path, path.relative_to(folder).with_suffix("").as_posix()))
        self._names: dict[Path, str | None] = {}

    def name_of(self, path: Path) -> str | None:
        """The recipe's ``name:``, found by its line alone; None when there is none or it cannot be read."""
        if path not in self._names:
            self._names[path] = _name_line(path)
        return self._names[path]

    def words(self) -> list[str]:
        """Everything that a plain name could have meant."""
        words: dict[str, None] = {}
        for path, below in self.entries:
            words[path.stem] = None
            words[below] = None
            named = self.name_of(path)
            if named:
                words[named] = None
        return list(words)


def _name_line(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            head = file.read(_NAME_BYTES)
    except OSError:
        return None
    for line in head.decode("utf-8", "replace").splitlines():
        match = _NAME_LINE.match(line)
        if match is not None:
            return next((group for group in match.groups() if group), None)
    return None


def _find(name: str, catalogue: _Catalogue, cwd: Path, said: str) -> list[Path]:
    as_path = Path(name).expanduser()
    if as_path.suffix in _SUFFIXES and (cwd / as_path).is_file():
        return [cwd / as_path]
    if re.search(r"[*?\[]", name):
        found = _glob(name, catalogue, cwd)
    else:
        found = [path for path, below in catalogue.entries if name in (path.stem, below)]
        found = found or [path for path, _ in catalogue.entries if catalogue.name_of(path) == name]
        if len(found) > 1:
            files = ", ".join(str(path) for path in found)
            raise OptionError(f"{said} {name}: several recipes have this name: {files}; give the path")
    if not found:
        raise OptionError(_unknown(name, catalogue, said))
    return found


def _glob(pattern: str, catalogue: _Catalogue, cwd: Path) -> list[Path]:
    found = [
        path
        for path, below in catalogue.entries
        if any(fnmatch.fnmatchcase(word, pattern) for word in (path.stem, below))
        or fnmatch.fnmatchcase(catalogue.name_of(path) or "", pattern)
    ]
    if found or not ("/" in pattern or pattern.endswith(_SUFFIXES)):
        return found
    base, below = (Path("/"), pattern.lstrip("/")) if pattern.startswith("/") else (cwd, pattern)
    try:
        paths = sorted(base.glob(below))
    except (ValueError, OSError, NotImplementedError):
        return []
    return [
        path
        for path in paths
        if path.suffix in _SUFFIXES and path.name not in _NOT_RECIPES and path.is_file()
    ]


def _unknown(name: str, catalogue: _Catalogue, said: str) -> str:
    words = catalogue.words()
    stem = Path(name).stem if name.endswith(_SUFFIXES) else name
    lowered = {word.lower(): word for word in words}
    close = [lowered[word] for word in difflib.get_close_matches(stem.lower(), lowered, n=3, cutoff=0.5)]
    text = f"{said} {name}: no recipe has this file stem, name or path"
    if close:
        return f"{text}; did you mean {' or '.join(close)}?"
    folders = ", ".join(str(folder) for folder in catalogue.folders) or "no folder"
    if not words:
        return f"{text}; there are no recipes in {folders}"
    shown = ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
    return f"{text}; {folders} has {shown}"
