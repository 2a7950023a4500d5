"""A ``docker`` that runs its containers as local processes, as far as ``run``, ``exec`` and ``rm`` go.

What it is strict about is what a real one is strict about: a container has the image's environment and the
variables that were named, nothing else; a container outlives a killed ``docker run``; ``docker exec`` passes
no signal on; a container is removed by its id.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, pathlib, secrets, signal, subprocess, sys

HOME = pathlib.Path({home!r})
IMAGE = json.loads((HOME / "image.json").read_text())


def environment(names, base):
    found = dict(base)
    for name in names:
        name, equals, value = name.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def options(words, known):
    given = {{}}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word not in known:
            sys.exit(f"unknown flag: {{word}}")
        given.setdefault(word, []).append(words.pop(0) if known[word] else "")
    return given


def run(words):
    flags = dict.fromkeys(("--network", "--ipc", "--cidfile", "--gpus", "--entrypoint", "-e", "-v", "-w",
                           "--device", "--group-add", "--shm-size"), True)
    given = options(words, flags | {{"--rm": False, "--init": False}})
    image, command = words[0], words[1:]
    cidfile = pathlib.Path(given["--cidfile"][0])
    if cidfile.exists():
        sys.exit(f"container ID file found, make sure the other container isn't running: {{cidfile}}")
    name = secrets.token_hex(32)
    cidfile.write_text(name)
    env = environment(given.get("-e", ()), IMAGE["env"])
    for mount in given.get("-v", ()):
        source = mount.split(":")[0]
        pathlib.Path(source).mkdir(parents=True, exist_ok=True)
    shim = os.fork()  # what keeps the container when the command that started it is killed
    if not shim:
        os.setsid()
        child = subprocess.Popen([given["--entrypoint"][0], *command], env=env, start_new_session=True,
                                 cwd=given.get("-w", [None])[0])
        record = {{"id": name, "image": image, "given": given, "env": env, "command": command,
                  "pid": child.pid}}
        part = HOME / f"part-{{name}}"
        part.write_text(json.dumps(record))
        part.rename(HOME / f"container-{{name}}.json")
        code = child.wait()
        kill(name)  # nothing outlives the first process of a container
        os._exit(code % 256)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.killpg(pids(name)[0], number))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(shim, 0)[1]) % 256)


def pids(name):
    path, execs = HOME / f"container-{{name}}.json", HOME / f"execs-{{name}}"
    found = [json.loads(path.read_text())["pid"]]
    return found + [int(line) for line in (execs.read_text().split() if execs.exists() else ())]


def kill(name):
    for pid in pids(name):
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def execute(words):
    given = options(words, {{"-e": True, "-w": True, "-i": False}})
    record = json.loads((HOME / f"container-{{words[0]}}.json").read_text())
    env = environment(given.get("-e", ()), record["env"])
    child = subprocess.Popen(words[1:], env=env, start_new_session=True)
    with open(HOME / f"execs-{{words[0]}}", "a") as sink:
        sink.write(f"{{child.pid}}\\n")
    sys.exit(child.wait() % 256)


def remove(words):
    given = options(words, {{"--force": False}})
    for name in words:
        path = HOME / f"container-{{name}}.json"
        if not path.exists():
            sys.exit(f"Error: No such container: {{name}}")
        kill(name)
        (HOME / "removed").open("a").write(name + "\\n")


with open(HOME / "calls.jsonl", "a") as sink:
    sink.write(json.dumps(sys.argv[1:]) + "\\n")
{{"run": run, "exec": execute, "rm": remove}}[sys.argv[1]](sys.argv[2:])
"""


@dataclass
class DockerStub:
    """``bin`` goes in front of PATH; ``image_env`` is the environment that the image sets."""

    home: Path
    image_env: dict[str, str]

    def __post_init__(self) -> None:
        (self.home / "bin").mkdir(parents=True)
        (self.home / "image.json").write_text(json.dumps({"env": self.image_env}))
        program = self.bin / "docker"
        program.write_text(f"#!{sys.executable} -IS\n{PROGRAM.format(home=str(self.home))}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    @property
    def bin(self) -> Path:
        """The folder with the command."""
        return self.home / "bin"

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of every call of a subcommand."""
        path = self.home / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words for words in map(json.loads, lines) if words[0] == name]

    def containers(self) -> list[dict[str, Any]]:
        """Every container that was ever started."""
        return [json.loads(path.read_text()) for path in self.home.glob("container-*.json")]

    def sessions(self) -> list[int]:
        """The process groups of everything that ran in a container."""
        found = [container["pid"] for container in self.containers()]
        for path in self.home.glob("execs-*"):
            found += map(int, path.read_text().split())
        return found

    def alive(self) -> list[int]:
        """Those that still have processes; zombies that nobody reaps are none."""
        living = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                living.add(int(fields[2]))
        return [pgid for pgid in self.sessions() if pgid in living]

    def close(self) -> None:
        """End what is left."""
        for pgid in self.alive():
            os.killpg(pgid, signal.SIGKILL)
