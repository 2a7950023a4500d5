"""YAML file -> pytest items: a recipe is a Module whose functions come from the suite module.

Its points are ordinary Functions, so that -m, -k, node ids, --lf, fixtures and JUnit work as always.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.expand import smoke
from pytest_gpubench.recipe.types import Point, Recipe

__all__ = ["MasterFile", "RecipeCatalog", "RecipeFile", "RejectedPoint", "Source", "kind_of"]

_FUNCTIONS = {"test_serving": "serving", "test_accuracy": "accuracy", "test_slo": "slo"}


def kind_of(function_name: str) -> str | None:
    """The kind of points that a suite function runs."""
    return _FUNCTIONS.get(function_name)


@dataclass(frozen=True)
class Source:
    """Where a recipe comes from: a file, or a key of an InferenceX master file."""

    path: Path
    key: str | None = None


class RecipeCatalog:
    """Loads each recipe once and remembers what went wrong with it."""

    def __init__(self, load: Callable[[Source], Recipe], *, smoke_only: bool = False) -> None:
        self._load = load
        self._smoke_only = smoke_only
        self._recipes: dict[Source, Recipe] = {}
        self._errors: dict[Source, RecipeError] = {}

    def get(self, source: Source) -> Recipe:
        """The recipe; raises RecipeError, the same each time."""
        if source in self._errors:
            raise self._errors[source]
        recipe = self._recipes.get(source)
        if recipe is None:
            try:
                recipe = self._load(source)
            except RecipeError as err:
                self._errors[source] = err
                raise
            self._recipes[source] = recipe
        return recipe

    def named(self, stem: str) -> Recipe:
        """A recipe that was loaded before, by its stem."""
        return next(recipe for recipe in self._recipes.values() if recipe.stem == stem)

    def loaded(self) -> list[Recipe]:
        """Every recipe that was loaded without an error."""
        return list(self._recipes.values())

    def points(self, source: Source) -> Sequence[Point]:
        """The points to collect: all, or the smoke points."""
        points = self.get(source).points
        return (smoke(points) or points) if self._smoke_only else points  # all refused: each says why


class MasterFile(pytest.File):
    """An InferenceX master file: one RecipeFile below it for each selected key."""

    make_recipe: Callable[[pytest.Collector, Source], RecipeFile]
    sources: Sequence[Source]

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The selected keys in the order of the file."""
        for source in self.sources:
            yield self.make_recipe(self, source)


class RecipeFile(pytest.Module):
    """One recipe. ``obj`` is the suite module, so that its functions become this file's tests."""

    source: Source
    catalog: RecipeCatalog
    suite: str
    skip_rejected: bool

    @classmethod
    def make(
        cls,
        parent: pytest.Collector,
        source: Source,
        catalog: RecipeCatalog,
        suite: str,
        *,
        skip_rejected: bool,
    ) -> RecipeFile:
        """The collector of ``source``."""
        node: RecipeFile
        if source.key is None:
            outside = not source.path.is_relative_to(parent.config.rootpath)
            # pytest's own id of such a file is empty, the same for every one.
            node = cls.from_parent(parent, path=source.path, nodeid=str(source.path) if outside else None)
        else:
            nodeid = f"{parent.nodeid}::{source.key}"
            node = cls.from_parent(parent, path=source.path, name=source.key, nodeid=nodeid)
        node.source = source
        node.catalog = catalog
        node.suite = suite
        node.skip_rejected = skip_rejected
        return node

    def _getobj(self) -> ModuleType:
        try:
            return importlib.import_module(self.suite)
        except ImportError as err:
            raise self.CollectError(f"ini gpubench_suite: cannot import {self.suite!r}: {err}") from err

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Functions for the accepted points, an erroring node for each rejected one."""
        try:
            points = self.catalog.points(self.source)
        except RecipeError as err:
            raise self.CollectError(str(err)) from None
        if not points:
            raise self.CollectError(f"{self.path}: the recipe expands to no point")
        recipe = self.catalog.get(self.source)
        for name in _shared_markers(points):
            self.add_marker(name)
        self.add_marker(
            pytest.mark.gpubench(
                recipe=recipe.stem, platform=recipe.profile.platform, runtime=recipe.profile.runtime
            )
        )
        yield from super().collect()
        if not self.skip_rejected:
            for point in points:
                if point.rejected is not None:
                    yield RejectedPoint.make(self, point)

    def istestfunction(self, obj: object, name: str) -> bool:
        """Only suite functions that have points; helpers of the suite are no tests."""
        kind = kind_of(name)
        return kind is not None and bool(self.points_of(kind)) and super().istestfunction(obj, name)

    def points_of(self, kind: str) -> list[Point]:
        """Points of one kind that become items."""
        if self._by_kind is None:
            self._by_kind = {}
            for point in self.catalog.points(self.source):
                if point.rejected is None or self.skip_rejected:
                    self._by_kind.setdefault(point.kind, []).append(point)
        return self._by_kind.get(kind, [])

    _by_kind: dict[str, list[Point]] | None = None  # a recipe may have thousands of points

    def parameters(self, kind: str) -> list[Any]:
        """Parameters with the marks that not all points of the file have."""
        shared = {"gpubench", *_shared_markers(self.catalog.points(self.source))}
        marks: dict[tuple[str, ...], list[Any]] = {}
        parameters: list[Any] = []
        for point in self.points_of(kind):
            own = marks.get(point.markers)
            if own is None:
                own = [getattr(pytest.mark, name) for name in point.markers if name not in shared]
                marks[point.markers] = own
            parameters.append(pytest.param(point, id=point.id, marks=own) if own else point)
        return parameters


class RejectedPoint(pytest.Collector):
    """A point that a constraint or a check refuses: an error at collection, the others still collect."""

    point: Point

    @classmethod
    def make(cls, parent: RecipeFile, point: Point) -> RejectedPoint:
        """The node of ``point``."""
        node: RejectedPoint = cls.from_parent(parent, name=f"test_{point.kind}[{point.id}]")
        node.point = point
        return node

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Never yields: says why."""
        raise self.CollectError(
            f"{self.path}:{self.point.line}:{self.point.column}: point {self.point.id}: {self.point.rejected}"
        )


def _shared_markers(points: Sequence[Point]) -> list[str]:
    sets = {point.markers for point in points}  # few, however many points there are
    shared = set(points[0].markers).intersection(*sets)
    return [name for name in points[0].markers if name in shared and name != "gpubench"]
