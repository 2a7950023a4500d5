"""The environment of server and client: one list that serves Pyxis, docker and native alike.

Values travel in the environment of the submitting process, never in a script or an option: Slurm
splits ``--export`` at commas, and a script on a shared disk must not hold a token. Only the *names*
are written, in ``--container-env`` (Pyxis: an image's own ENV beats the job's unless a variable is
named there, NVIDIA/pyxis#124) or as ``docker run -e NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_gpubench.recipe.types import Deployment, Pairs

__all__ = ["DEFAULT_FROM_HOST", "forwarded_names", "is_secret", "masked", "process_environment"]

DEFAULT_FROM_HOST = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Taken along when the caller has them: gated models need them."""

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|PASSWORD", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """True when a variable of this name may hold a secret, so that its value is never written."""
    return bool(_SECRET.search(name))


def process_environment(deployment: Deployment, caller: Mapping[str, str]) -> dict[str, str]:
    """Name -> value of all that the recipe, the profile and the caller's tokens give to every process."""
    values = {name: caller[name] for name in _from_host(deployment) if name in caller}
    values.update(deployment.env)
    return values


def forwarded_names(
    deployment: Deployment, caller: Mapping[str, str], role_env: Pairs = ()
) -> tuple[str, ...]:
    """The names to write in ``--container-env`` or ``docker -e``, in a stable order, none twice."""
    names = [*dict(deployment.env), *(n for n in _from_host(deployment) if n in caller), *dict(role_env)]
    return tuple(dict.fromkeys(names))


def masked(pairs: Mapping[str, str]) -> dict[str, str]:
    """For plan.json: the values of secret names replaced."""
    return {name: "***" if is_secret(name) else value for name, value in pairs.items()}


def _from_host(deployment: Deployment) -> tuple[str, ...]:
    return (*DEFAULT_FROM_HOST, *deployment.env_from_host)
