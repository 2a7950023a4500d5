"""Host paths against container paths: Pyxis mounts, and the workdir inferred from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

__all__ = ["Mount", "container_path", "container_workdir", "parse_mount"]


@dataclass(frozen=True)
class Mount:
    """``SRC:DST[:FLAGS]``; source and target are absolute."""

    source: PurePosixPath
    target: PurePosixPath
    flags: str = ""

    def __str__(self) -> str:
        text = f"{self.source}:{self.target}"
        return f"{text}:{self.flags}" if self.flags else text


def parse_mount(text: str) -> Mount:
    """Read one mount; the forms were checked at collection, so this only splits."""
    parts = text.split(":")
    target = parts[1] if len(parts) > 1 else parts[0]
    return Mount(PurePosixPath(parts[0]), PurePosixPath(target), parts[2] if len(parts) > 2 else "")


def container_path(host: str | PurePosixPath, mounts: Sequence[Mount]) -> PurePosixPath | None:
    """Where ``host`` is seen in the container: the deepest mount that holds it, or None."""
    path = PurePosixPath(host)
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.source or mount.source in path.parents
        if inside and (best is None or len(mount.source.parts) > len(best.source.parts)):
            best = mount
    return None if best is None else best.target / path.relative_to(best.source)


def container_workdir(
    explicit: str | None, checkout: str | PurePosixPath, mounts: Sequence[Mount]
) -> PurePosixPath | None:
    """The profile's workdir, else the checkout as the container sees it, else None (the image's own)."""
    if explicit is not None:
        return PurePosixPath(explicit)
    return container_path(checkout, mounts)
