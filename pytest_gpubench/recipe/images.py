"""Which image serves, where that was decided, and whether it can be used. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "DEFAULT_REPOSITORY",
    "Image",
    "commit_in_tag",
    "docker_form",
    "image_allowed",
    "image_problem",
    "is_nightly",
    "is_squashfs",
    "pyxis_form",
    "resolve_image",
]

DEFAULT_REPOSITORY = "vllm/vllm-openai"


@dataclass(frozen=True)
class Image:
    """A resolved image; ``source`` is VLLM_IMAGE, VLLM_COMMIT, recipe or default."""

    name: str
    commit: str | None
    source: str


def resolve_image(env: Mapping[str, str], recipe_image: str | None, repository: str | None) -> Image:
    """Decide as perf-eval does: ``VLLM_IMAGE``, ``VLLM_COMMIT``, the recipe, the nightly default.

    A profile with its own ``repository`` (ROCm) does not take a ``VLLM_IMAGE`` that is no ROCm image:
    the commit in that image's tag, if any, is served from the profile's repository instead.
    """
    override = env.get("VLLM_IMAGE", "").strip()
    commit = env.get("VLLM_COMMIT", "").strip()
    own_repository = (repository or "").strip()
    if override and (not own_repository or "rocm" in override.lower()):
        name = _as_path(override)
        return Image(name, commit or commit_in_tag(name), "VLLM_IMAGE")
    commit = commit or commit_in_tag(override) or ""
    base = own_repository or DEFAULT_REPOSITORY
    if commit:
        return Image(f"{base}:nightly-{commit}", commit, "VLLM_COMMIT")
    if recipe_image:
        name = _as_path(recipe_image)
        return Image(name, commit_in_tag(name), "recipe")
    return Image(f"{base}:nightly", None, "default")


def is_nightly(env: Mapping[str, str]) -> bool:
    """Whether ``NIGHTLY`` says that this is the nightly run."""
    return env.get("NIGHTLY", "").strip().lower() in ("1", "true", "yes", "on")


def _as_path(image: str) -> str:
    """A bare ``x.sqsh`` is a file: without ``./`` Pyxis would look it up in a registry."""
    if is_squashfs(image) and not image.startswith(("/", "./", "../", "~")):
        return f"./{image}"
    return image


def is_squashfs(image: str) -> bool:
    """True for a path to a squashfs file rather than a registry image."""
    return image.endswith((".sqsh", ".squashfs")) or image.startswith(("/", "./", "../"))


def commit_in_tag(image: str) -> str | None:
    """The commit that an image's tag names: ``nightly-<7 to 40 hex>``, or 12 to 40 hex as one word."""
    if is_squashfs(image):
        return None
    tag = _split(image)[2]
    if tag is None:
        return None
    match = re.match(r"nightly-([0-9a-f]{7,40})(?:[-_.].*)?\Z", tag, re.IGNORECASE)
    match = match or re.search(r"(?:\A|[-_.])([0-9a-f]{12,40})(?:\Z|[-_.])", tag, re.IGNORECASE)
    return match[1] if match else None


def _split(image: str) -> tuple[str | None, str, str | None, str | None]:
    """(registry or None, repository, tag or None, digest or None) of a registry image."""
    name = re.sub(r"\A[a-z]+://", "", image)
    name, at, digest = name.partition("@")
    registry, sharp, rest = name.partition("#")
    if not sharp:
        first, slash, rest = name.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry = first
        else:
            registry, rest = "", name
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, ""
    return registry or None, repository, tag if colon else None, digest if at else None


def image_problem(image: str) -> str | None:
    """Why the text is no image that Pyxis or Docker could use; None when it is one."""
    if re.search(r"[\s\x00-\x1f'\"`\\]", image):
        return "an image holds no blanks, quotes or backslashes"
    if "$" in image or "{" in image:
        return "an image is not expanded: write the name out, or set VLLM_IMAGE"
    if is_squashfs(image):
        return None if not image.startswith("~") else "write the path out, ~ is not expanded on the nodes"
    scheme = re.match(r"\A([A-Za-z]+)://", image)
    if scheme is not None and scheme[1] not in ("docker", "dockerd", "podman"):
        return f"the scheme {scheme[1]}:// is not known; use docker://, a registry image or a .sqsh path"
    _, repository, tag, digest = _split(image)
    part = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    if not re.fullmatch(rf"{part}(?:/{part})*", repository):
        return f"{repository!r} is no repository: lower-case names joined with /"
    if tag is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", tag):
        return f"{tag!r} is no tag"
    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return f"{digest!r} is no digest: sha256: and 64 hexadecimal digits"
    return None


def pyxis_form(image: str) -> str:
    """The image as ``srun --container-image`` wants it: a registry is set off with ``#``."""
    if is_squashfs(image):
        return image
    scheme = re.match(r"\A[a-z]+://", image)
    registry, repository, tag, digest = _split(image)
    name = repository + (f":{tag}" if tag is not None else "") + (f"@{digest}" if digest is not None else "")
    return (scheme[0] if scheme else "") + (f"{registry}#{name}" if registry else name)


def docker_form(image: str) -> str:
    """The image as ``docker run`` wants it: no scheme, the registry set off with ``/``."""
    return re.sub(r"\A[a-z]+://", "", image).replace("#", "/", 1)


def image_allowed(image: str, patterns: Sequence[str]) -> bool:
    """True when no pattern is given or one matches (shell patterns, upper and lower case differ)."""
    return not patterns or any(fnmatch.fnmatchcase(image, pattern) for pattern in patterns)
