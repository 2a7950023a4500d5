"""``gpubench import``: write a recipe from an entry of another harness's file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpubench.errors import GpubenchError, OptionError
from pytest_gpubench.recipe.inferencex import MasterFile, not_expressed, to_recipe_yaml
from pytest_gpubench.recipe.load import LoadContext

__all__ = ["parser", "run"]


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench import``."""
    made = argparse.ArgumentParser(
        prog="gpubench import", description="Write a recipe from an entry of another harness's file."
    )
    made.add_argument("harness", choices=["inferencex"], help="whose file it is")
    made.add_argument("file", type=Path, metavar="FILE", help="a master file, such as nvidia-master.yaml")
    made.add_argument("key", metavar="KEY", help="the config key; * and ? may stand for a part of it")
    made.add_argument("--runners", type=Path, metavar="FILE", help="InferenceX's runners.yaml")
    made.add_argument("--gpu", metavar="PROFILE", help="profile to name instead of the runner's")
    made.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    return made


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 the recipe is written, 4 the file, the key or the options are wrong.

    Warnings, and what a recipe cannot express, go to stderr; the latter stand in the recipe's header too.
    """
    options = parser().parse_args(list(argv))
    try:
        text, remarks = _convert(options.file, options.key, options.runners, options.gpu)
        if options.out is not None:
            _write(options.out, text)
    except GpubenchError as err:
        print(f"gpubench import: {err}", file=sys.stderr)
        return 4
    for remark in remarks:
        print(f"gpubench import: {remark}", file=sys.stderr)
    if options.out is None:
        sys.stdout.write(text)
    return 0


def _convert(file: Path, key: str, runners: Path | None, gpu: str | None) -> tuple[str, list[str]]:
    # An empty environment: an image set for a run has no place in a recipe.
    master = MasterFile.open(file, runners, LoadContext())
    keys = master.select([key])
    if len(keys) > 1:
        raise OptionError(f"KEY {key!r} stands for {len(keys)} config keys, name one: {', '.join(keys)}")
    recipe = master.recipe(keys[0])
    remarks = [*recipe.warnings, *(f"not expressed: {text}" for text in not_expressed(recipe))]
    return to_recipe_yaml(recipe, gpu), remarks


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OptionError(f"--out {path}: the file exists; remove it or name another") from None
    except OSError as err:
        raise OptionError(f"--out {path}: cannot be written: {err.strerror}") from err
