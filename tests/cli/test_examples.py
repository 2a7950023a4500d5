"""The examples of the documentation: legal files, whose commands the command line takes."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE
from pytest_gpubench.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples"
SCHEMA = json.loads((ROOT / "tests" / "data" / "buildkite" / "schema.json").read_text("utf-8"))


def github() -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    loaded: dict[Any, Any] = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text("utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def commands(text: str) -> list[list[str]]:
    """Every ``gpubench`` command line of a shell text, as words."""
    joined = text.replace("\\\n", " ")
    found = re.findall(r"(?:\.venv/bin/)?\bgpubench ([a-z]+)([^|;&\n]*)", joined)
    return [[name, *shlex.split(rest)] for name, rest in found]


def example_commands() -> list[list[str]]:
    return [
        words
        for path in sorted(EXAMPLES.glob("*.yml"))
        for text in _shell_texts(yaml.safe_load(path.read_text("utf-8")))
        for words in commands(text)
    ]


def _shell_texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value[key] for key in ("run", "command") if isinstance(value.get(key), str)]
        return own + [text for item in value.values() for text in _shell_texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _shell_texts(item)]
    return []


@pytest.mark.parametrize("words", example_commands(), ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    assert words[0] in COMMANDS
    if words[0] == "ci":  # pytest's own arguments
        return
    module = importlib.import_module(f"pytest_gpubench.cli.{COMMANDS[words[0]][0]}")
    module.parser().parse_args(words[1:])


def test_the_examples_hold_what_they_are_for() -> None:
    used = {words[0] for words in example_commands()}
    assert used == {"ci", "compare", "doctor", "pipeline", "reap", "report"}


def test_the_buildkite_example_is_legal() -> None:
    made = yaml.safe_load((EXAMPLES / "buildkite-pipeline.yml").read_text("utf-8"))
    jsonschema.Draft7Validator(SCHEMA).validate(made)


def test_the_github_example_always_gives_the_nodes_back() -> None:
    job = github()["jobs"]["benchmark"]
    steps = {step["name"]: step for step in job["steps"] if "name" in step}
    assert steps["Give back what is left"]["if"] == "always()"
    assert "gpubench reap" in steps["Give back what is left"]["run"]
    assert f'"$code" -eq {EXIT_INFRASTRUCTURE}' in steps["Benchmark"]["run"]
    assert github()["concurrency"]["cancel-in-progress"] is False
    # --force is right only in a folder that no other run uses.
    assert "github.run_id" in job["env"]["RESULTS"]
