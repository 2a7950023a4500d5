"""From a wrong file to a message: every problem with its position, in the order of the file."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.fields import shown
from pytest_gpubench.recipe.types import ForeignImage, Profile
from pytest_gpubench.recipe.yaml import KeyPath, YamlFile, dotted

__all__ = ["Problems", "near", "validate"]

ModelT = TypeVar("ModelT", bound=BaseModel)

_EXPECTED = {
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "dict_type": "expected a mapping",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "string_type": "expected text",
    "int_type": "expected an integer",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
}


# Keys of other harnesses and of perf-eval's branches that are no recipe's here, and what to do instead.
_ELSEWHERE = {
    "custom_script": "a script of that repository runs in place of a benchmark; run it there",
    "custom_group": "it belongs to custom_script, which runs a script in place of a benchmark",
    "host_runtime": "it belongs to custom_script, which runs a script in place of a benchmark",
    "sglang": "only vLLM is served here; describe the model in a vllm block",
    "sglang_bench": "only vLLM is served here; the loads of a vllm block are vllm_bench",
    "aiperf": "other clients are described by client: {kind: command, command: …, parser: …}",
}


class Problems:
    """Collects what is wrong (and what is only odd) in one file, to be told all at once."""

    def __init__(self, file: YamlFile) -> None:
        self.file = file
        self.warnings: list[str] = []
        self.foreign_images: list[ForeignImage] = []
        self._found: list[tuple[int, int, str]] = []

    def add(self, where: KeyPath, text: str, *, key: bool = False, file: YamlFile | None = None) -> None:
        """An error at ``where``; in another file (a profile) when ``file`` is given."""
        source = file or self.file
        position = source.at(where, key=key)
        line = position.line if source is self.file else 0
        path = dotted(where)
        self._found.append(
            (line, position.column, f"{position}: {path}: {text}" if path else f"{position}: {text}")
        )

    def warn(self, where: KeyPath, text: str, *, file: YamlFile | None = None) -> None:
        """Something that runs, but probably not as meant."""
        source = file or self.file
        path = dotted(where)
        place = source.at(where)
        self.warnings.append(f"{place}: {path}: {text}" if path else f"{place}: {text}")

    def foreign_image(
        self, where: KeyPath, image: str, profile: Profile, origin: str = "", *, error: bool
    ) -> None:
        """An image that the profile does not allow: an error, or noted for one warning about all recipes."""
        if error:
            allowed = ", ".join(profile.allowed_images)
            self.add(
                where,
                f"the image {image!r}{origin} matches none of the patterns that profile {profile.name} "
                f"allows: {allowed}",
            )
            return
        place = f"{self.file.at(where)}: {dotted(where)}"
        note = ForeignImage(place, f"{image}{origin}", profile.name, profile.allowed_images)
        self.foreign_images.append(note)

    def __bool__(self) -> bool:
        return bool(self._found)

    def finish(self) -> None:
        """Raise one RecipeError with everything that was found, in the order of the file."""
        if self._found:
            unique = dict.fromkeys(text for _, _, text in sorted(self._found, key=lambda item: item[:2]))
            raise RecipeError(list(unique))


def close_words(word: str, known: Iterable[str]) -> list[str]:
    """At most two known words close to ``word``, the closest first."""
    lowered = {name.lower(): name for name in known}
    return [lowered[name] for name in difflib.get_close_matches(word.lower(), lowered, n=2, cutoff=0.6)]


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the known words closest to ``word``, or nothing."""
    close = close_words(word, known)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def validate(model: type[ModelT], file: YamlFile, data: object, where: KeyPath = ()) -> ModelT:
    """``data``, found at ``where`` in ``file``, as ``model``; a RecipeError with all problems otherwise."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = Problems(file)
        items = error.errors(include_url=False)
        suggested = {
            (tuple(item["loc"][:-1]), name)
            for item in items
            if item["type"] == "extra_forbidden"
            for name in close_words(str(item["loc"][-1]), _fields_at(model, tuple(item["loc"][:-1])))
        }
        for item in items:
            # A mistyped key is also a missing one; the near key says it all.
            if item["type"] != "missing" or (tuple(item["loc"][:-1]), item["loc"][-1]) not in suggested:
                _report(problems, model, where, item)
        problems.finish()
        raise RecipeError(f"{file.path}: {error}") from error


def _report(problems: Problems, model: type[BaseModel], base: KeyPath, item: Any) -> None:
    location: KeyPath = tuple(item["loc"])
    kind: str = item["type"]
    if kind == "extra_forbidden":
        fields = _fields_at(model, location[:-1])
        name = str(location[-1])
        text = f"unknown key {name!r}{near(name, fields)}"
        if name in _ELSEWHERE:
            text = f"unknown key {name!r}; {_ELSEWHERE[name]}"
        elif "did you mean" not in text and fields:
            text += f"; the keys here are {', '.join(sorted(fields))}"
        problems.add(base + location, text, key=True)
        return
    if kind == "missing":
        problems.add(base + location, "is required and missing")
        return
    of_key = bool(location) and location[-1] == "[key]"
    location = location[:-1] if of_key else location
    while location and not problems.file.holds(base + location):
        location = location[:-1]
    text = _EXPECTED.get(kind) or item["msg"].removeprefix("Value error, ")
    if not text.startswith(("expected", "the", "a ", "an ")):
        text = text[:1].lower() + text[1:]
    given = item["input"]
    if kind != "gpubench" and not isinstance(given, (Mapping, BaseModel)) and "(got " not in text:
        text += f" (got {shown(given)})"
    problems.add(base + location, text, key=of_key)


def _fields_at(model: type[BaseModel], location: KeyPath) -> list[str]:
    """The keys that the model at ``location`` below ``model`` knows, by their names in the file."""
    current: Any = model
    for step in location:
        current = _inside(current, step)
        if current is None:
            return []
    found = _model_of(current)
    if found is None:
        return []
    return [info.alias or name for name, info in found.model_fields.items()]


def _inside(annotation: Any, step: str | int) -> Any:
    found = _model_of(annotation)
    if found is not None and isinstance(step, str):
        for name, info in found.model_fields.items():
            if step in (name, info.alias):
                return info.annotation
        return None
    for part in _alternatives(annotation):
        arguments = typing.get_args(part)
        if arguments and typing.get_origin(part) in (tuple, list) and isinstance(step, int):
            return arguments[0]
        if arguments and typing.get_origin(part) is dict:
            return arguments[1]
    return None


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _alternatives(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [part for item in typing.get_args(annotation) for part in _alternatives(item)]
    return [annotation]
