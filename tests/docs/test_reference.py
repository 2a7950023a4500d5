"""The reference pages are what the code gives; ``GPUBENCH_DOCS=write`` writes them."""

from __future__ import annotations

import os
import re

import pytest

from pytest_gpubench.cli.main import COMMANDS
from pytest_gpubench.docgen import ENVIRONMENT, PAGES, declared_options, options_page, row_page
from pytest_gpubench.docgen_keys import keys_page, sections
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.results.metrics import known_metric

from .pages import REPOSITORY


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_what_the_code_gives(name: str) -> None:
    path = REPOSITORY / name
    text = PAGES[name]()
    if os.environ.get("GPUBENCH_DOCS") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{name}: GPUBENCH_DOCS=write pytest tests/docs"
    assert path.read_text(encoding="utf-8") == text, (
        f"{name}: GPUBENCH_DOCS=write pytest tests/docs, then look"
    )


def test_every_option_and_ini_value_of_pytest_is_in_the_reference(pytester: pytest.Pytester) -> None:
    out = pytester.runpytest_inprocess("--help").stdout.str()
    real = set(re.findall(r"--(?:gpubench-[\w-]+|workload|mock-slurm)\b", out))
    real |= set(re.findall(r"^  (gpubench_\w+)", out, re.MULTILINE))
    options, ini = declared_options()
    assert real == {one.name for one in (*options, *ini)}
    page = options_page()
    assert all(f"`{name}" in page for name in real)


def test_every_variable_that_is_read_is_in_the_reference() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "pytest_gpubench").rglob("*.py")
        if "mock" not in path.parts and not path.name.startswith("docgen")
    )
    for name in ENVIRONMENT:
        assert f'"{name}"' in source, f"{name} is not read any more"


def test_every_command_is_in_the_reference() -> None:
    page = PAGES["docs/reference/commands.md"]()
    for name in COMMANDS:
        assert f"## gpubench {name}\n" in page


def test_every_field_of_the_schema_is_described() -> None:
    page = row_page()
    assert "| `tput_per_gpu` | number or null | tok/s/GPU |" in page
    assert "| `ttft` | s | time to first token |" in page
    assert all(known_metric(f"median_{name}") for name in ("ttft", "tpot", "itl", "e2el", "intvty"))


def test_every_mapping_of_a_recipe_has_its_keys_listed() -> None:
    paths = [path for path, _ in sections("recipe", RecipeModel)]
    assert {"vllm_bench.configs[]", "search_space[].points[]", "gates"} <= set(paths)
    text = "\n".join(keys_page())
    assert "| `conc` | integer from 1, or a list of them |  |" in text
    assert "| `model` | text | **required** |" in text


def test_troubleshooting_knows_every_reason_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`([a-z]+(?:_[a-z]+)+|cancelled|preempted|requeued|interrupted|regression)`", text)
    )
    codes = {reason.value for reason in Reason}
    assert not codes - named
    assert named - codes <= {"known_issue", "gpubench_reason", "gpubench_workloads", "gpubench_heartbeat"}
