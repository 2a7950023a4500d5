"""Command lines read as glibc's getopt_long does: abbreviations, clusters of short options, and its own
words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Arg", "Option", "Parsed", "Parser", "UsageError"]


class Arg(Enum):
    """Whether an option takes a value."""

    NO = 0
    OPTIONAL = 1
    REQUIRED = 2


@dataclass(frozen=True)
class Option:
    """One option; ``key`` is the long name that several spellings share."""

    key: str
    arg: Arg


@dataclass
class Parsed:
    """Options in the order given (later ones win in ``values``) and what is left."""

    values: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    def get(self, key: str) -> str | None:
        """The last value of an option; "" for one without value; None when absent."""
        return self.values.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self.values


class UsageError(Exception):
    """A command line that the command refuses; the text is complete, with the hint."""


class Parser:
    """Parser of one command.

    ``table`` has lines such as ``nodes N required``: long name, optional short letter, arity
    (``-`` none, ``?`` optional, ``=`` required), optional other long names for the same thing.
    """

    def __init__(
        self, command: str, table: str, *, permute: bool = False, extra: Mapping[str, Arg] | None = None
    ):
        self.command = command
        self.permute = permute
        self.long: dict[str, Option] = {}
        self.short: dict[str, Option] = {}
        for word in table.split():
            names, sign = word[:-1], word[-1]
            option_names = names.split(",")
            option = Option(option_names[0], {"-": Arg.NO, "?": Arg.OPTIONAL, "=": Arg.REQUIRED}[sign])
            for name in option_names:
                if len(name) == 1:
                    self.short[name] = option
                else:
                    self.long[name] = option
        for name, arg in (extra or {}).items():
            self.long[name] = Option(name, arg)

    def _fail(self, text: str) -> UsageError:
        return UsageError(f'{self.command}: {text}\nTry "{self.command} --help" for more information')

    def parse(self, argv: list[str]) -> Parsed:
        """Read ``argv`` (without the command's name); UsageError in the command's own words."""
        found = Parsed()
        words = list(argv)
        while words:
            word = words.pop(0)
            if word == "--":
                found.rest.extend(words)
                break
            if word.startswith("--"):
                self._long(word, words, found)
            elif word.startswith("-") and len(word) > 1:
                self._short(word, words, found)
            else:
                found.rest.append(word)
                if not self.permute:
                    found.rest.extend(words)
                    break
        return found

    def _long(self, word: str, words: list[str], found: Parsed) -> None:
        name, equals, value = word[2:].partition("=")
        option = self.long.get(name)
        if option is None:
            near = [known for known in self.long if known.startswith(name)]
            if len({self.long[known] for known in near}) > 1:
                listed = " ".join(f"'--{known}'" for known in sorted(near))
                raise self._fail(f"option '{word}' is ambiguous; possibilities: {listed}")
            if not near:
                raise self._fail(f"unrecognized option '{word}'")
            name, option = near[0], self.long[near[0]]
        if option.arg is Arg.NO and equals:
            raise self._fail(f"option '--{name}' doesn't allow an argument")
        if option.arg is Arg.REQUIRED and not equals:
            if not words:
                raise self._fail(f"option '--{name}' requires an argument")
            value = words.pop(0)
        self._enter(found, option, value)

    def _short(self, word: str, words: list[str], found: Parsed) -> None:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            option = self.short.get(letter)
            if option is None:
                raise self._fail(f"invalid option -- '{letter}'")
            if option.arg is Arg.NO:
                self._enter(found, option, "")
                continue
            if not letters and option.arg is Arg.REQUIRED:
                if not words:
                    raise self._fail(f"option requires an argument -- '{letter}'")
                letters = words.pop(0)
            self._enter(found, option, letters)
            return

    @staticmethod
    def _enter(found: Parsed, option: Option, value: str) -> None:
        found.values.pop(option.key, None)  # keep the order of the last mention
        found.values[option.key] = value
