"""The plugin's entry point: options and markers. All else is registered once a recipe is selected.

Kept light: a project that does not use the plugin pays for this file and ``options.py`` only.
"""

from __future__ import annotations

import pytest

from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.options import add_options, read_options

__all__ = ["PLATFORMS", "pytest_addoption", "pytest_configure"]

PLATFORMS = ("gb300", "gb200", "b300", "b200", "h200", "h100", "mi300x", "mi325x", "mi355x")

MARKERS = {
    "gpubench": "a benchmark point; keywords recipe, platform, runtime: -m \"gpubench(platform='gb300')\"",
    **{name: f"a benchmark for {name.upper()}" for name in PLATFORMS},
    "slurm": "a benchmark that runs in a Slurm allocation",
    "docker": "a benchmark that runs in docker containers on this host",
    "native": "a benchmark that runs as processes on this host",
    "multinode": "a benchmark whose deployment spans several nodes",
    "disagg": "a benchmark with separate prefill and decode workers",
    "agentic": "a benchmark of the agentic-coding scenario",
    "accuracy": "an accuracy evaluation",
    "nightly": "a benchmark of the nightly set",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers; with recipes selected, set the run up."""
    for name, description in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {description}")
    if config.option.version or config.option.help:
        return
    try:
        options = read_options(config)
        selected = options.workloads or options.inferencex is not None
        selected = selected or any(_is_recipe_argument(argument) for argument in config.args)
        if selected:
            from pytest_gpubench.activation import activate

            activate(config, options)
    except GpubenchError as err:
        raise pytest.UsageError(str(err)) from None


def _is_recipe_argument(argument: str) -> bool:
    return argument.split("::", 1)[0].endswith((".yaml", ".yml"))
