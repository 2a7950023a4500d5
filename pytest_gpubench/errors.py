"""Every error that pytest_gpubench raises on purpose.

::

    GpubenchError
     ├── OptionError          bad command line or ini value (pytest exit 4)
     ├── RecipeError          a recipe or profile is wrong: file, line, column, path (collection error)
     ├── ResultError          a result file cannot be read as what it claims to be
     └── InfraError           the world failed, not the measured system: carries a Reason and a phase
          ├── SlurmError      a Slurm command refused, or answered what cannot be understood
          ├── ServerError     a rank died, or the server never became ready
          └── ClientError     the benchmark client hung, or left no result file

A missed gate is not an error: it is a violation (``gates.py``) and a FAILED test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpubench.reasons import Phase, Reason

__all__ = [
    "ClientError",
    "GpubenchError",
    "InfraError",
    "OptionError",
    "Position",
    "RecipeError",
    "ResultError",
    "ServerError",
    "SlurmError",
]


class GpubenchError(Exception):
    """Base of every deliberate error; its text is complete on its own, without a traceback."""


class OptionError(GpubenchError):
    """A command line option or ini value is wrong; the text names the option and the valid values."""


@dataclass(frozen=True)
class Position:
    """A place in a YAML file; ``line`` and ``column`` count from 1."""

    file: Path | str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class RecipeError(GpubenchError):
    """One or more problems of a recipe, profile or search space, each ``file:line:col: path: text``."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))

    @classmethod
    def at(cls, position: Position, path: str, text: str) -> RecipeError:
        """One problem at one place; ``path`` is the dotted key path, empty for the whole file."""
        return cls(f"{position}: {path}: {text}" if path else f"{position}: {text}")


class ResultError(GpubenchError):
    """A raw result file cannot be read: the text names the file and what is wrong with it."""


@dataclass(frozen=True)
class LogTail:
    """The last lines of one process's log, cleaned of control characters, for a failure report."""

    title: str
    path: str
    text: str


@dataclass(eq=False)
class InfraError(GpubenchError):
    """Infrastructure failed. ``reason`` is the row's code; ``message`` its first line, complete alone."""

    reason: Reason
    message: str
    phase: Phase | None = None
    details: str = ""
    tails: list[LogTail] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"infrastructure error [{self.reason.value}]"
        if self.phase is not None:
            head += f" while {self.phase.doing}"
        text = f"{head}: {self.message}"
        return f"{text}\n{self.details}" if self.details else text


class SlurmError(InfraError):
    """A Slurm command refused, or gave an answer that cannot be acted on."""


class ServerError(InfraError):
    """A rank ended, or the server did not become ready in time, or serves another model."""


class ClientError(InfraError):
    """The benchmark client hung, was killed, or left no result file."""
