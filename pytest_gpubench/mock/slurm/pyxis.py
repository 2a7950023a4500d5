"""What Pyxis does to a step, without a container.

There is no second file system: where a mount's destination does not exist on this machine, paths below it are
given back as paths below its source. The image's environment is modelled as seen with Pyxis 0.24: it wins
over the job's unless ``--container-env`` names the variable; the option is no list of what is let through.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..faults import ContainerLocked, FaultBox, ImportFails, ImportSlow
from .model import Job, Step
from .store import Store

__all__ = ["Container", "PyxisError", "apply", "check", "read", "start"]


class PyxisError(Exception):
    """A container that cannot be used; the text is complete lines without the command's name."""


@dataclass(frozen=True)
class Mount:
    """One ``SRC:DST[:FLAGS]``."""

    source: str
    target: str


@dataclass(frozen=True)
class Container:
    """The container of a step."""

    image: str
    name: str = ""
    workdir: str = ""
    mounts: tuple[Mount, ...] = ()
    env: frozenset[str] = field(default_factory=frozenset)


_INIT_FAILED = "spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"
_OPPOSITES = ("container-mount-home", "container-remap-root", "container-entrypoint")
_PROPAGATION = ("bind", "private", "slave", "shared")
_FLAGS = {*_PROPAGATION, *(f"r{name}" for name in _PROPAGATION), "ro", "rw", "nosuid", "nodev", "noexec"}
_FLAGS |= {"x-move", "x-create=dir", "x-create=file", "x-create=auto"}


def check(values: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with Pyxis's options: the option and the words; an option "" for their combination."""
    given = {key: value for key, value in values.items() if "container-" in key}
    for key, value in given.items():
        wrong = _wrong_value(key, value)
        if wrong:
            return key, f"--{key}: {wrong}"
    for key in _OPPOSITES:
        if key in given and f"no-{key}" in given:
            return "", f"--{key}: its opposite was given too"
    if "container-writable" in given and "container-readonly" in given:
        return "", "--container-writable: its opposite was given too"
    if given and not {"container-image", "container-name"}.intersection(given):
        return "", f"--{next(iter(given))}: does nothing without --container-image or --container-name"
    return None


def _wrong_value(key: str, value: str) -> str:
    if key in ("container-image", "container-mounts", "container-workdir", "container-name", "container-env"):
        if not value:
            return "an argument is wanted"
        if key == "container-image" and re.search(r"\s", value):
            return "an image name has no blanks"
        if key == "container-workdir" and not value.startswith("/"):
            return "an absolute path is wanted"
        if key == "container-env" and not re.fullmatch(r"[A-Za-z_]\w*(,[A-Za-z_]\w*)*", value, re.ASCII):
            return "a list of variable names is wanted"
        if key == "container-mounts":
            return next(filter(None, map(_wrong_mount, value.split(","))), "")
    return ""


def _wrong_mount(entry: str) -> str:
    parts = entry.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        return f"a mount is SRC:DST[:FLAGS], got '{entry}'"
    if not (parts[0].startswith("/") and parts[1].startswith("/")):
        return f"both sides of a mount are absolute paths, got '{entry}'"
    for flag in parts[2].split("+") if len(parts) == 3 else ():
        if flag not in _FLAGS:
            return f"unknown mount flag '{flag}' for '{parts[0]}:{parts[1]}'"
    return ""


def read(values: Mapping[str, str]) -> Container | None:
    """The container that well-formed options ask for, None for none."""
    image, name = values.get("container-image", ""), values.get("container-name", "")
    if not image and not name:
        return None
    mounts = []
    for entry in filter(None, values.get("container-mounts", "").split(",")):
        source, target, *_ = entry.split(":")
        mounts.append(Mount(source.rstrip("/") or "/", target.rstrip("/") or "/"))
    names = frozenset(filter(None, values.get("container-env", "").split(",")))
    return Container(image, name, values.get("container-workdir", ""), tuple(mounts), names)


def start(store: Store, job: Job, step: Step, container: Container) -> None:
    """Unpack the image, or fail as the faults in force say."""
    faults = FaultBox(store.folder)
    slow = faults.find(ImportSlow, job.name)
    if slow is not None:
        time.sleep(slow.seconds)
    rank = job.nodes.index(step.nodes[0])
    failure = faults.find(ImportFails, job.name, rank=rank)
    if failure is not None:
        raise PyxisError(
            "pyxis: child failed with error code: 1\npyxis: failed to import docker image\n"
            f"pyxis: printing enroot log file:\npyxis:     {failure.text}"
        )
    lock = faults.find(ContainerLocked, job.name)
    if lock is not None and container.name:
        for node in step.nodes:
            path = store.folder / "containers" / f"{node}.{re.sub(r'[^A-Za-z0-9._-]', '_', container.name)}"
            if path.exists() and time.time() - path.stat().st_mtime < lock.seconds:
                raise PyxisError(
                    "pyxis: container start failed with error code: 1\npyxis: printing enroot log file:\n"
                    "pyxis:     [ERROR] Could not acquire rootfs lock\npyxis: couldn't start container\n"
                    f"{_INIT_FAILED}"
                )
            path.touch()


def _host_path(container: Container, text: str) -> str:
    """Every path below a mount's destination, as the path that this machine has for it."""
    for mount in container.mounts:
        if mount.target == "/" or os.path.exists(mount.target) or not os.path.exists(mount.source):
            continue
        pattern = rf"(?<![\w./-]){re.escape(mount.target)}(?=[/\s'\":;,)&|]|$)"
        text = re.sub(pattern, lambda _match, source=mount.source: source, text)  # type: ignore[misc]
    return text


def apply(
    store: Store, job: Job, step: Step, container: Container, argv: list[str], env: dict[str, str], node: str
) -> tuple[list[str], dict[str, str], str]:
    """The command line, environment and working directory of a task inside; PyxisError where it cannot
    start."""
    image = {"PATH": f"{store.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}", **store.spec.image_env}
    inside = dict(env)
    inside.update({name: value for name, value in image.items() if name not in container.env})
    keep = {"PATH", "HOME"}  # of this machine, whatever they look like
    inside = {name: value if name in keep else _host_path(container, value) for name, value in inside.items()}
    if container.workdir:
        workdir = _host_path(container, container.workdir)
        if not os.path.isdir(workdir):
            missing = f"couldn't chdir to {container.workdir}: No such file or directory"
            raise PyxisError(f"pyxis: --container-workdir: {missing}\n{_INIT_FAILED}")
    else:
        # The image's own directory: what a task leaves there is gone with the container.
        scratch = Path(store.folder / "containers" / f"{job.id}.{step.id}.{node}")
        scratch.mkdir(exist_ok=True)
        workdir = str(scratch)
    inside["PWD"] = workdir
    return [_host_path(container, word) for word in argv], inside, workdir
