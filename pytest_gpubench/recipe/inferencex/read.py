"""Master files and ``runners.yaml`` from disk: which keys are meant, and what is wrong with them, where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_gpubench.errors import OptionError
from pytest_gpubench.recipe.inferencex.schema import Entry, MultiNodeEntry, RunnersFile, SingleNodeEntry
from pytest_gpubench.recipe.inferencex.sense import senseless
from pytest_gpubench.recipe.problems import Problems, near, validate
from pytest_gpubench.recipe.yaml import YamlFile, load_yaml

__all__ = ["read_entry", "read_master", "read_runners", "select_keys"]

MAX_SHOWN = 8


def read_master(config: Path) -> YamlFile:
    """A master file; only its outer shape is checked, entries are when they are asked for."""
    file = load_yaml(config)
    if not isinstance(file.value, dict):
        raise file.error((), "expected config keys with their entries")
    for key in file.value:
        if "*" in key or "?" in key:
            raise file.error((key,), "a config key cannot hold * or ?, which select keys", key=True)
    return file


def read_runners(path: Path) -> RunnersFile:
    """``runners.yaml``; the earlier form without ``labels`` and ``hardware`` is a plain table of labels."""
    file = load_yaml(path)
    data = file.value
    if isinstance(data, dict) and data and not {"labels", "hardware"} & data.keys():
        for label, nodes in data.items():
            if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
                raise file.error((label,), "expected a list of node names")
        data = {"labels": data}
    return validate(RunnersFile, file, data)


def select_keys(file: YamlFile, patterns: Sequence[str]) -> list[str]:
    """The config keys that match, in the file's order. Raises OptionError for a pattern without a match."""
    keys = list(file.value)
    chosen: set[str] = set()
    for pattern in patterns:
        matched = [key for key in keys if _matches(pattern, key)]
        if not matched:
            raise OptionError(f"{file.path} has no config key {pattern!r}{_nearest(pattern, keys)}")
        chosen.update(matched)
    return [key for key in keys if key in chosen]


def _matches(pattern: str, key: str) -> bool:
    parts = {"*": ".*", "?": "."}
    return re.fullmatch("".join(parts.get(char, re.escape(char)) for char in pattern), key) is not None


def _nearest(pattern: str, keys: Iterable[str]) -> str:
    names = list(keys)
    hint = near(pattern, names)
    if hint:
        return hint
    if len(names) <= MAX_SHOWN:
        return f"; it has {', '.join(names) or 'none'}"
    return f"; it has {len(names)}, among them {', '.join(names[:MAX_SHOWN])}"


def read_entry(file: YamlFile, key: str) -> Entry:
    """One entry, held to upstream's rules and then to ours. Raises RecipeError with every problem."""
    data = file.value[key]
    model: type[SingleNodeEntry] | type[MultiNodeEntry] = SingleNodeEntry
    if isinstance(data, dict) and data.get("multinode") is True:
        model = MultiNodeEntry
    entry: Entry = validate(model, file, data, (key,))
    problems = Problems(file)
    for where, text in senseless(entry):
        problems.add((key, *where), text)
    problems.finish()
    return entry
