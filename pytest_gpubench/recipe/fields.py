"""The kinds of value that recipes and profiles are made of, as annotated types.

Each turns what was written into one Python type, or says what it expected and what it got. Where YAML
1.1 would have guessed (``on``, ``010``, ``03:00:00``), the field decides.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pytest_gpubench.recipe.slurm_forms import seconds_of
from pytest_gpubench.recipe.yaml import WrittenInt, written

__all__ = [
    "Count",
    "Counts",
    "EnvName",
    "EnvValue",
    "Finite",
    "Flag",
    "Free",
    "Length",
    "Prompts",
    "Rate",
    "RequestRate",
    "Seconds",
    "Size",
    "Text",
    "Texts",
    "Token",
    "YamlModel",
    "shown",
]


class YamlModel(BaseModel):
    """Base of every model of a file: unknown keys are errors, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def shown(value: object) -> str:
    """A value as it is quoted in a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = written(value) if isinstance(value, (int, float)) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _flag(value: object) -> object:
    if isinstance(value, str):
        word = value.lower()
        if word in ("on", "yes", "y", "true"):
            return True
        if word in ("off", "no", "n", "false"):
            return False
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _text(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return written(value)
    if not isinstance(value, str):
        raise ValueError("expected text")
    if "\x00" in value:
        raise ValueError("text cannot hold NUL")
    return value


def _filled(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text that is not empty")
    return value


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _integer(value: object) -> object:
    if isinstance(value, WrittenInt):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected an integer{_octal_hint(value)}")
    return value


def _octal_hint(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+", value):
        return ", without quotes and leading zeros"
    return ""


def _one_or_many(value: object) -> object:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _not_empty(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value:
        raise ValueError("expected at least one value")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _rate(value: object) -> float:
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
        number = float(match[1]) / 100.0
    else:
        number = _number(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError("expected a share from 0 to 1, or a percentage such as 5%")
    return number


def _request_rate(value: object) -> str:
    """Requests per second as text, one spelling per rate: ``1`` and ``1.0`` are the same."""
    if isinstance(value, str) and value.lower() in ("inf", "infinity"):
        return "inf"
    if isinstance(value, float) and value == math.inf:
        return "inf"
    number = _number(value)
    if number <= 0:
        raise ValueError("expected requests per second above 0, or inf")
    return f"{number:g}"


def _seconds(value: object) -> float:
    if isinstance(value, str):
        return seconds_of(value)
    number = _number(value)
    if number <= 0:
        raise ValueError("expected seconds above 0")
    return number


def _env_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value)  # True and False, as perf-eval exports them
    if value is None:
        raise ValueError('expected a value; write "" to export it empty')
    if not isinstance(value, (str, int, float)):
        raise ValueError("expected text, a number, true or false")
    text = written(value)
    if "\x00" in text or "\n" in text:
        raise ValueError("an environment value cannot hold NUL or a line break")
    return text


def _env_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("expected a name of letters, digits and _")
    return value


def _token(value: object) -> str:
    text = _text(value)
    if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError("expected letters, digits, '.', '_' and '-', starting with a letter or digit")
    return text


Flag = Annotated[bool, BeforeValidator(_flag)]
"""true, false, and YAML 1.1's on, off, yes, no."""

Text = Annotated[str, BeforeValidator(_text), AfterValidator(_filled)]
"""Text as written; a number keeps its spelling."""

Free = Annotated[str, BeforeValidator(_text)]
"""Text that may be empty."""

Token = Annotated[str, BeforeValidator(_token)]
"""A short name that can be part of a point id."""

Texts = Annotated[tuple[Text, ...], BeforeValidator(_texts)]
"""One text or a list of them."""

Count = Annotated[int, BeforeValidator(_integer), Field(ge=1, le=10**9)]
"""An integer from 1."""

Size = Annotated[int, BeforeValidator(_integer), Field(ge=1, le=99_999)]
"""A parallel size, or a number of nodes or workers."""

Length = Annotated[int, BeforeValidator(_integer), Field(ge=0, le=2**63 - 1)]
"""An integer from 0."""

Counts = Annotated[tuple[Count, ...], BeforeValidator(_one_or_many), AfterValidator(_not_empty)]
"""An integer or a list of them."""

Prompts = Counts
"""Numbers of prompts, one or as many as there are concurrencies."""

Finite = Annotated[float, BeforeValidator(_number)]
"""A finite number."""

Rate = Annotated[float, BeforeValidator(_rate)]
"""A share: 0 to 1, or a percentage."""

RequestRate = Annotated[str, BeforeValidator(_request_rate)]
"""Requests per second, or inf."""

Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration: seconds, ``30m``, ``2h``, or Slurm's ``HH:MM:SS``."""

EnvName = Annotated[str, BeforeValidator(_env_name)]
"""The name of an environment variable."""

EnvValue = Annotated[str, BeforeValidator(_env_value)]
"""The value of an environment variable, as the process gets it."""
