"""The reference of recipe and profile keys, written from the models that check them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from pytest_gpubench.recipe.fields import YamlModel
from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.recipe.profiles import ProfileModel

__all__ = ["KINDS", "keys_page", "sections"]

KINDS = {
    "Any": "any value",
    "Count": "integer from 1",
    "Counts": "integer from 1, or a list of them",
    "Env": "mapping: environment variable to value",
    "EnvName": "name of an environment variable",
    "EnvValue": "text or number",
    "Expert": "`true`, `false`, or the expert-parallel size",
    "Finite": "number",
    "Flag": "`true` or `false`",
    "Free": "text, may be empty",
    "Length": "integer from 0",
    "Prompts": "integer from 1, or one per concurrency",
    "Rate": "share from 0 to 1, or a percentage such as `5%`",
    "RequestRate": "requests per second, or `inf`",
    "Seconds": "seconds, or `30m`, `2h`, `01:00:00`",
    "Serve": "text, a list of arguments, or a mapping of options",
    "Size": "integer from 1",
    "SpecDecoding": "`true`, `false`, or a method's name",
    "Text": "text",
    "Texts": "text, or a list of texts",
    "Token": "a name of letters, digits, `.`, `_` and `-`",
    "bool": "`true` or `false`",
    "dict": "mapping",
    "float": "number",
    "int": "integer",
    "str": "text",
}
"""Kinds of value by the names that the models use -> words for people."""

Model = type[YamlModel]


def keys_page() -> list[str]:
    """The parts of ``docs/reference/keys.md``."""
    parts = [
        "# Keys of recipes and profiles",
        "[Recipes](../recipes.md) and [profiles](../profiles.md) say what they are for. A key that is not "
        "listed here, a key given twice, and a value of another kind are errors at collection, with file, "
        "line and column.",
    ]
    for title, root, intro in (
        ("Recipe", RecipeModel, "A file of `workloads/`."),
        ("Profile", ProfileModel, "One entry of `gpu_profiles.yaml`; a recipe names it with `gpu:`."),
    ):
        parts += [f"## {title}", intro]
        found = dict(sections(title.lower(), root))
        homes = {model: path for path, model in reversed(found.items())}
        for path, model in found.items():
            if homes[model] != path:
                continue
            if model is not root:
                parts += [f"### {path}", (model.__doc__ or "").split("\n\n")[0].replace("``", "`")]
            lines = ["| key | value | default |", "|---|---|---|"]
            for name, info in model.model_fields.items():
                kind = _kind(_annotation(model, name), model, homes)
                lines.append(f"| `{name}` | {kind.replace('|', chr(92) + '|')} | {_default(info)} |")
            parts.append("\n".join(lines))
    return parts


def sections(path: str, root: Model) -> Iterator[tuple[str, Model]]:
    """Every mapping below ``root`` with its path, such as ``search_space[].points[]``; breadth first."""
    waiting: list[tuple[str, Model]] = [(path, root)]
    seen: set[Model] = set()
    while waiting:
        here, model = waiting.pop(0)
        yield here, model
        if model in seen:
            continue
        seen.add(model)
        for name in model.model_fields:
            tree = _annotation(model, name)
            for inner, many in _models(tree, model):
                prefix = "" if model is root else f"{here}."
                waiting.append((f"{prefix}{name}{'[]' if many else ''}", inner))


def _annotation(model: Model, name: str) -> ast.expr:
    """The annotation as it is written; the models' modules keep annotations as text."""
    for kind in model.__mro__:
        text = inspect.get_annotations(kind).get(name)
        if text is not None:
            return ast.parse(str(text), mode="eval").body
    raise KeyError(name)


def _resolve(name: str, model: Model) -> object:
    for kind in model.__mro__:
        found = getattr(sys.modules[kind.__module__], name, None)
        if found is not None:
            return found
    return None


def _models(tree: ast.expr, model: Model, many: bool = False) -> Iterator[tuple[Model, bool]]:
    if isinstance(tree, ast.Name):
        found = _resolve(tree.id, model)
        if isinstance(found, type) and issubclass(found, YamlModel):
            yield found, many
    elif isinstance(tree, ast.BinOp):
        yield from _models(tree.left, model, many)
        yield from _models(tree.right, model, many)
    elif isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        inner = _inner(tree)
        if tree.value.id == "Annotated":
            yield from _models(inner[0], model, many)
        elif tree.value.id == "tuple":
            yield from _models(inner[0], model, True)
        elif tree.value.id == "dict":
            yield from _models(inner[1], model, many)


def _inner(tree: ast.Subscript) -> list[ast.expr]:
    return list(tree.slice.elts) if isinstance(tree.slice, ast.Tuple) else [tree.slice]


def _kind(tree: ast.expr, model: Model, homes: dict[Model, str]) -> str:
    """An annotation in words."""
    if isinstance(tree, ast.BinOp):
        sides = [_kind(side, model, homes) for side in (tree.left, tree.right)]
        return " or ".join(side for side in sides if side)
    if isinstance(tree, ast.Constant):
        return "" if tree.value is None else str(tree.value)
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        inner, outer = _inner(tree), tree.value.id
        if outer == "Annotated":
            return _kind(inner[0], model, homes)
        if outer == "Literal":
            return " or ".join(f"`{ast.literal_eval(value)}`" for value in inner)
        if outer == "dict":
            return f"mapping: {_kind(inner[0], model, homes)} to {_kind(inner[1], model, homes)}"
        if outer == "tuple":
            words = _kind(inner[0], model, homes)
            return (
                f"list: {words}" if isinstance(inner[-1], ast.Constant) else f"list of {len(inner)}: {words}"
            )
    if isinstance(tree, ast.Name):
        found = _resolve(tree.id, model)
        if isinstance(found, type) and issubclass(found, YamlModel):
            path = homes[found]
            anchor = "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")
            return f"mapping, see [{path}](#{anchor})"
        return KINDS[tree.id]
    raise TypeError(f"{model.__name__}: no words for {ast.unparse(tree)}")


def _default(info: Any) -> str:
    if info.is_required():
        return "**required**"
    value = info.default
    if value is PydanticUndefined:
        value = info.default_factory()
    if value is None or value in ((), {}) or isinstance(value, YamlModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, tuple) else value}`"
