"""Nothing leaks: each event in each phase, against the mocked Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest

from .ahead import Ahead
from .matrix import DEATHS, KILLS, NOTICE_SECONDS, NOTICED, Cell, cells
from .play import Outcome, bound, play
from .table import OUTCOMES


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ahead[Outcome]]:
    folder = tmp_path_factory.mktemp("leak")
    asked = [item.callspec.params.get("cell") for item in request.session.items if hasattr(item, "callspec")]
    todo = [cell for cell in asked if isinstance(cell, Cell) and cell.impossible is None]
    ahead = Ahead({cell.id: partial(play, cell, folder / cell.id) for cell in todo})
    yield ahead
    ahead.close()


@pytest.mark.parametrize("cell", list(cells()), ids=lambda cell: cell.id)
def test_nothing_is_left(cell: Cell, outcomes: Ahead[Outcome], pytestconfig: pytest.Config) -> None:
    if cell.impossible is not None:
        pytest.skip(f"cannot exist: {cell.impossible}")
    if cell.event == "disk-full" and os.geteuid() != 0:
        pytest.skip("needs root: a small file system is mounted")
    found = outcomes.result(cell.id)
    check(found)
    pytestconfig.stash[OUTCOMES].append(found)


def check(found: Outcome) -> None:
    """All that must hold, whatever the cell."""
    cell = found.cell
    said = found.output[-5000:]
    # Nothing of ours is left, within the bound; nobody else's job was touched.
    assert found.clean is not None, f"still there: jobs or processes of ours\n{said}"
    assert found.released is not None
    assert found.released < bound(cell), said
    assert found.bystander
    assert all(argv[0] == "scancel" and len(argv) == 2 for argv in found.cancels), found.cancels
    assert {int(argv[1]) for argv in found.cancels} <= set(found.ours)
    if cell.phase != "between" and cell.event != "worker-crash":
        assert found.submissions == 1, "submitted twice"
    # The verdict.
    assert (found.code, found.verdict) in cell.expected, said
    # Results so far are on disk.
    assert found.first_after or not found.first_before
    assert found.open_entries == []
    if cell.event in (*KILLS, "disk-full"):
        assert found.reap_code == 0, found.reap
    else:
        rows = len([line for line in found.ingest if line.startswith("victim")])
        assert rows == (found.verdict is not None) + (cell.phase == "between"), found.ingest
        assert any(line.startswith("first") for line in found.ingest) or not found.first_before
    if cell.event in DEATHS and cell.phase in NOTICED:
        assert found.noticed is not None
        assert found.noticed < NOTICE_SECONDS, said
