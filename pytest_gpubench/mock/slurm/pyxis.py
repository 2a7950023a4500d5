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

__all__ = ["Container", "PyxisError", "read"]


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


def read(values: Mapping[str, str]) -> Container | None:
    """The container that options ask for; PyxisError for a malformed one, None for none."""
    image, name = values.get("container-image", ""), values.get("container-name", "")
    if not image and not name:
        return None
    mounts = []
    for entry in filter(None, values.get("container-mounts", "").split(",")):
        source, colon, rest = entry.partition(":")
        target = rest.split(":")[0] if colon else source
        if not source.startswith("/") or not target.startswith("/"):
            raise PyxisError(f"pyxis: --container-mounts: not an absolute path in: {entry}")
        mounts.append(Mount(source.rstrip("/") or "/", target.rstrip("/") or "/"))
    workdir = values.get("container-workdir", "")
    if workdir and not workdir.startswith("/"):
        raise PyxisError(f"pyxis: --container-workdir: not an absolute path: {workdir}")
    names = frozenset(filter(None, values.get("container-env", "").split(",")))
    return Container(image, name, workdir, tuple(mounts), names)


def _failed(*lines: str) -> PyxisError:
    text = ["pyxis: container start failed with error code: 1", "pyxis: printing enroot log file:"]
    text += [f"pyxis:     {line}" for line in lines]
    text += [
        "pyxis: couldn't start container",
        "spank: required plugin spank_pyxis.so: task_init() failed with rc=-1",
    ]
    return PyxisError("\n".join(text))


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
                raise _failed("[ERROR] Could not acquire rootfs lock")
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
            missing = f"{container.workdir}: No such file or directory"
            raise _failed(f"enroot-nsenter: failed to change directory: {missing}")
    else:
        # The image's own directory: what a task leaves there is gone with the container.
        scratch = Path(store.folder / "containers" / f"{job.id}.{step.id}.{node}")
        scratch.mkdir(exist_ok=True)
        workdir = str(scratch)
    inside["PWD"] = workdir
    return [_host_path(container, word) for word in argv], inside, workdir
