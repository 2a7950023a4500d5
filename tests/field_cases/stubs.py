"""Stub programs for the front of a mocked cluster's PATH."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpubench.mock import MockCluster

_DUMP = """\
#!{python} -IS
import json, os, sys, time
path = "{folder}/%d-%d.json" % (time.time_ns(), os.getpid())
with open(path + ".part", "w") as sink:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, sink)
os.rename(path + ".part", path)
os.execv("{real}", ["{real}", *sys.argv[1:]])
"""
_RESULTS = """\
#!{python} -IS
import json, os, sys
words = sys.argv[1:]
if words[:2] != ["bench", "serve"]:
    os.execv("{real}", ["{real}", *words])
folder, name = (words[words.index(option) + 1] for option in ("--result-dir", "--result-filename"))
with open("{folder}/files.json") as source:
    files = json.load(source)
point = os.path.basename(folder.rstrip("/"))
content = next((text for part, text in files.items() if part in point), None)
if content is None:
    os.execv("{real}", ["{real}", *words])
with open(os.path.join(folder, name), "w") as sink:
    sink.write(content)
"""


@dataclass(frozen=True)
class Dump:
    """What one start of ``vllm`` was given."""

    argv: list[str]
    env: dict[str, str]


def _replace(cluster: MockCluster, folder: Path, text: str) -> Path:
    folder = folder / "stub"
    folder.mkdir()
    path = cluster.bin / "vllm"
    real = path.with_name("simulated-vllm")
    path.rename(real)
    path.write_text(text.format(python=sys.executable, folder=folder, real=real), encoding="utf-8")
    path.chmod(0o755)
    return folder


def dumping_vllm(cluster: MockCluster, folder: Path) -> Callable[[], list[Dump]]:
    """``vllm`` writes its arguments and its environment, then becomes the simulated one."""
    place = _replace(cluster, folder, _DUMP)

    def dumps() -> list[Dump]:
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
        return [Dump(one["argv"], one["env"]) for one in found]

    return dumps


def vllm_with_results(cluster: MockCluster, folder: Path, files: Mapping[str, str]) -> None:
    """``vllm bench serve`` leaves one of ``files`` (part of a point's id -> text) and exits 0."""
    place = _replace(cluster, folder, _RESULTS)
    (place / "files.json").write_text(json.dumps(dict(files)), encoding="utf-8")
