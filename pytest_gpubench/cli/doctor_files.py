"""What the file system of a login node says: results folder, image, model, mounts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pytest_gpubench.plan.paths import Mount, parse_mount
from pytest_gpubench.recipe.images import is_squashfs
from pytest_gpubench.recipe.types import Deployment, Profile
from pytest_gpubench.slurm.doctor import Ask, Finding, clock_finding
from pytest_gpubench.world import Clock

__all__ = ["check_image", "check_model", "check_mounts", "check_results"]

_SHARED = (
    "nfs",
    "lustre",
    "gpfs",
    "fhgfs",
    "beegfs",
    "ceph",
    "wekafs",
    "panfs",
    "glusterfs",
    "smb",
    "cifs",
    "afs",
)
_LOCAL = ("ext", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "ramfs", "squashfs", "f2fs", "bcachefs")


def check_results(ask: Ask, clock: Clock, folder: Path) -> list[Finding]:
    """Writable, on a file system that the nodes can share, whose server's clock agrees with ours."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        before = clock.time()
        with tempfile.NamedTemporaryFile(dir=there, prefix=".gpubench-doctor-") as probe:
            probe.write(b"x")
            probe.flush()
            written = os.fstat(probe.fileno()).st_mtime
        after = clock.time()
    except OSError as err:
        text = f"{there} cannot be written: {err.strerror or err}"
        return [Finding("fail", "results folder", text, "--results (--gpubench-results) on a writable path")]
    findings = [_shared(ask, folder, there)]
    # A file's time may be up to a tick of the kernel before the clock's.
    findings.append(
        clock_finding(f"the file system of {there}", max(before - written - 1.0, written - after, 0.0))
    )
    return findings


def _shared(ask: Ask, folder: Path, there: Path) -> Finding:
    answer = ask(["stat", "--file-system", "--format=%T", str(there)])
    kind = answer.stdout.strip().lower() if answer.ok else ""
    if kind.startswith(_SHARED):
        return Finding("ok", "results folder", f"{folder} is writable, on {kind}")
    advice = "a path that login and compute nodes share; the job writes its logs and state there"
    if kind.startswith(_LOCAL):
        return Finding("warn", "results folder", f"{folder} is on {kind}, which looks local", advice)
    what = kind or "an unknown file system"
    return Finding(
        "warn", "results folder", f"{folder} is on {what}: it cannot be told if it is shared", advice
    )


def check_image(profile: Profile | None, image: str | None) -> Finding:
    """A squashfs file that is here, or an image that a registry must give."""
    if image is None:
        return Finding("ok", "image", "none: vLLM of the nodes themselves")
    if is_squashfs(image):
        return _path("image", image, (), "VLLM_IMAGE or vllm.image: an existing .sqsh")
    if profile is not None and profile.local_images_only:
        text = f"{image} would be pulled, but the profile has local_images_only"
        return Finding("fail", "image", text, "VLLM_IMAGE: a .sqsh on the shared file system")
    if profile is not None and profile.runtime != "slurm":
        return Finding("ok", "image", image)
    return Finding(
        "warn",
        "image",
        f"{image} is pulled from its registry on every cold node",
        "enroot import it once and set VLLM_IMAGE to the .sqsh",
    )


def check_model(deployment: Deployment) -> Finding:
    """A staged path that is here, or a hub id with or without a copy in the profile's cache."""
    profile, model = deployment.profile, deployment.model_path
    mounts = _mounts(profile)
    if model.startswith("/"):
        return _path("model", model, mounts, "models.root or the staged path of the profile")
    if profile.hf_home is None:
        return Finding(
            "warn", "model", f"{model} is downloaded by every job", "hf_home: a cache on the nodes"
        )
    cached = f"{profile.hf_home}/hub/models--{model.replace('/', '--')}"
    found = _path("model", cached, mounts, "")
    if found.level == "ok":
        return Finding("ok", "model", f"{model} is cached in {profile.hf_home}")
    return Finding(
        "warn",
        "model",
        f"no copy of {model} is visible here in {profile.hf_home}",
        "stage it before the first run, or the load deadline must cover its download",
    )


def check_mounts(profile: Profile) -> Iterator[Finding]:
    """The sources of the container's mounts."""
    for mount in _mounts(profile):
        found = _path("mount", str(mount.source), (), "container.mounts: SRC must exist on every node")
        # Sources such as /raid/bench are often the nodes' own disks, also where /raid is here.
        yield replace(found, level="warn") if found.level == "fail" else found


def _mounts(profile: Profile) -> Sequence[Mount]:
    return [parse_mount(text) for text in profile.container.mounts]


def _path(topic: str, name: str, mounts: Sequence[Mount], advice: str) -> Finding:
    """A path as the container or the nodes see it. Missing beside others is a mistake; where nothing of
    it is here it may be on the nodes' own disks.
    """
    path = Path(_host(name, mounts))
    shown = name if str(path) == name else f"{name} ({path} on the host)"
    try:
        if path.exists():
            readable = os.access(path, os.R_OK)
            return (
                Finding("ok", topic, shown)
                if readable
                else Finding("fail", topic, f"{shown} is not readable", advice)
            )
        beside = path.parent.is_dir()
    except OSError as err:
        return Finding("fail", topic, f"{shown}: {err.strerror or err}", advice)
    if beside:
        return Finding("fail", topic, f"{shown} does not exist, but {path.parent} does", advice)
    return Finding("warn", topic, f"{shown} is not on this node; it must be on the compute nodes", advice)


def _host(name: str, mounts: Sequence[Mount]) -> str:
    """The host's path of a container path: by the deepest mount that holds it."""
    path = PurePosixPath(name)
    holding = [mount for mount in mounts if mount.target == path or mount.target in path.parents]
    if not holding:
        return name
    deepest = max(holding, key=lambda mount: len(mount.target.parts))
    return str(deepest.source / path.relative_to(deepest.target))
