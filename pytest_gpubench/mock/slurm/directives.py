"""``#SBATCH`` lines, read as Slurm reads them: up to the first command; an unquoted, unescaped ``#`` ends a
line."""

from __future__ import annotations

from .command import Command

__all__ = ["read"]


def read(command: Command, script: str, name: str) -> list[str]:
    """The option words of a script's ``#SBATCH`` lines; ends the command at an unmatched quote."""
    words: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith("#SBATCH"):
            words.extend(_words(command, line.removeprefix("#SBATCH"), name, number))
        elif line.strip() and not line.startswith("#"):
            break
    return words


def _words(command: Command, text: str, name: str, number: int) -> list[str]:
    found: list[str] = []
    word, quote, inside = "", "", False
    letters = iter(text.strip())
    for char in letters:
        if quote:
            if char == quote:
                quote = ""
            else:
                word += char
            continue
        if char in "\"'":
            quote, inside = char, True
        elif char == "\\":
            word, inside = word + next(letters, ""), True
        elif char == "#":
            break
        elif char.isspace():
            if inside:
                found.append(word)
            word, inside = "", False
        else:
            word, inside = word + char, True
    if quote:
        command.fail(
            f"{name}: line {number}: Unmatched `{quote}` in [{text.strip()}]", prefix="sbatch: fatal: "
        )
    if inside:
        found.append(word)
    return found
