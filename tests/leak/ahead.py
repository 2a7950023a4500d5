"""Runs what later tests will ask for ahead of them: they mostly wait, several at once cost little more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Result = TypeVar("Result")

AT_ONCE = 6
SECONDS = 240.0
"""For one result, including its turn in the pool."""


class Ahead(Generic[Result]):
    """``work`` is in the order in which its results will be asked for."""

    def __init__(self, work: Mapping[str, Callable[[], Result]], *, at_once: int = AT_ONCE) -> None:
        self._work = dict(work)
        self._at_once = at_once
        self._pool = ThreadPoolExecutor(at_once)
        self._begun: dict[str, Future[Result]] = {}

    def result(self, name: str) -> Result:
        """Of one piece of work; begins the following ones, too, unless other processes share them."""
        count = 1 if "PYTEST_XDIST_WORKER" in os.environ else 1 + 2 * self._at_once
        names = list(self._work)
        place = names.index(name)
        for other in names[place : place + count]:
            if other not in self._begun:
                self._begun[other] = self._pool.submit(self._work[other])
        return self._begun[name].result(SECONDS)

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
