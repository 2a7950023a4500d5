"""Reference cases and small entries for the InferenceX tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pytest_gpubench.recipe.inferencex.read import read_entry, read_master, read_runners
from pytest_gpubench.recipe.inferencex.schema import Entry

DATA = Path(__file__).parent.parent / "data" / "inferencex"
RUNNERS_FILE = DATA / "runners.yaml"
RUNNERS = read_runners(RUNNERS_FILE)
WORKER = {"num-worker": 1, "tp": 8, "ep": 8, "dp-attn": True}


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of one reference file."""
    loaded: list[dict[str, Any]] = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    return loaded


REAL = cases("inferencex_cases.yaml")
EXAMPLES = cases("expansion_examples.yaml")


def case(name: str) -> dict[str, Any]:
    """The real case of this id."""
    return next(item for item in REAL if item["id"] == name)


def single(*points: dict[str, Any], isl: int = 8192, osl: int = 1024, **top: Any) -> dict[str, Any]:
    """A single-node entry with one pair of lengths."""
    fixed = [{"isl": isl, "osl": osl, "search-space": list(points)}]
    return _entry(multinode=False, scenarios={"fixed-seq-len": fixed}) | _kebab(top)


def multi(*points: dict[str, Any], isl: int = 8192, osl: int = 1024, **top: Any) -> dict[str, Any]:
    """A disaggregated multi-node entry; points without workers get one of each."""
    full = [{"prefill": dict(WORKER), "decode": dict(WORKER)} | point for point in points]
    fixed = [{"isl": isl, "osl": osl, "search-space": full}]
    entry = _entry(multinode=True, disagg=True, scenarios={"fixed-seq-len": fixed})
    return entry | {"kv-p2p-transfer": "nixl"} | _kebab(top)


def agentic(*points: dict[str, Any], scenario: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """A single-node agentic entry."""
    item = {"search-space": list(points)} | (scenario or {})
    return _entry(multinode=False, scenarios={"agentic-coding": [item]}) | _kebab(top)


def _entry(**fields: Any) -> dict[str, Any]:
    common = {"image": "vllm/vllm-openai:v0.25.0", "model": "org/model", "model-prefix": "ex"}
    common |= {"precision": "fp8", "framework": "vllm", "runner": "cluster:b300-nv"}
    return common | fields


def _kebab(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


def write_master(folder: Path, **entries: dict[str, Any]) -> Path:
    """A master file with these entries, keys in kebab case."""
    path = folder / "master.yaml"
    path.write_text(yaml.safe_dump(_kebab(entries), sort_keys=False), encoding="utf-8")
    return path


def parse(folder: Path, entry: dict[str, Any]) -> Entry:
    """The entry read back from a master file, as a user's would be."""
    return read_entry(read_master(write_master(folder, key=entry)), "key")


def holds(actual: object, expected: object) -> bool:
    """True when everything expected is there; mappings may hold more."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            key in actual and holds(actual[key], value) for key, value in expected.items()
        )
    return actual == expected
