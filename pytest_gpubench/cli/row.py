"""``gpubench row``: the row that a raw result file gives, by the same pure code as a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pytest_gpubench.bench.command import read_result
from pytest_gpubench.errors import GpubenchError, OptionError, RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.types import Point, Recipe
from pytest_gpubench.results.outcome import Outcome, RunInfo
from pytest_gpubench.results.row import build_row, format_date
from pytest_gpubench.results.store import to_json
from pytest_gpubench.results.text import encodable

__all__ = ["parser", "run"]

_DATE = "%Y-%m-%d %H:%M:%S"
_TRUE = ("1", "true", "yes", "on")


def parser() -> argparse.ArgumentParser:
    """The command line of ``gpubench row``."""
    made = argparse.ArgumentParser(
        prog="gpubench row", description="Print the row that raw result files give for a point of a recipe."
    )
    made.add_argument("--recipe", type=Path, required=True, metavar="FILE", help="the recipe's YAML file")
    made.add_argument("--point", required=True, metavar="ID", help="point id, as in the pytest node id")
    made.add_argument(
        "--raw",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="result file of the client; repeat it for repetitions, in order",
    )
    made.add_argument("--date", metavar="'YYYY-MM-DD HH:MM:SS'", help="UTC; default: the file's own time")
    return made


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Exit status: 0 the row is printed (whatever its status), 1 an unreadable file, 4 bad usage.

    Figures of a file that measured something else than the point asks for are shown, with the row's
    ``status`` and ``problems`` saying so; a run would leave them null.
    """
    options = parser().parse_args(list(argv))
    environment = os.environ if env is None else env
    try:
        recipe = load_recipe(options.recipe, LoadContext(env=environment))
        point = _find(recipe, options.point)
        if point.kind != "serving":
            raise OptionError(f"--point {point.id}: is of kind {point.kind}; raw files are of serving points")
        date = _date(options.date, options.raw[-1])
        raws = tuple(read_result(point.deployment.client, path) for path in options.raw)
        info = RunInfo(
            run_id="gpubench-row",
            recipe_sha256=recipe.sha256,
            nightly=environment.get("NIGHTLY", "").strip().lower() in _TRUE,
            date=date,
        )
        row = build_row(point, Outcome(raws=raws), info, keep_untrusted=True)
    except (OptionError, RecipeError) as err:
        print(f"gpubench row: {err}", file=sys.stderr)
        return 4
    except GpubenchError as err:
        print(f"gpubench row: {err}", file=sys.stderr)
        return 1
    sys.stdout.write(encodable(to_json(row)))
    return 0


def _find(recipe: Recipe, wanted: str) -> Point:
    """The point of that id; the whole node id, or the text in its brackets, is understood too."""
    name = wanted.rpartition("[")[2].removesuffix("]")
    points = {point.id: point for point in recipe.points}
    if name in points:
        return points[name]
    import difflib

    near = difflib.get_close_matches(name, points, n=3)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(list(points)[:10]) or 'none'}"
    )
    raise OptionError(f"--point {wanted!r}: {recipe.path} has no such point; {hint}")


def _date(text: str | None, raw: Path) -> str | None:
    if text is not None:
        try:
            return datetime.strptime(text, _DATE).strftime(_DATE)
        except ValueError:
            raise OptionError(f"--date {text!r}: expected 'YYYY-MM-DD HH:MM:SS'") from None
    try:
        return format_date(raw.stat().st_mtime)
    except (OSError, ValueError):
        return None  # read_result says what is wrong with the file
