"""The order of the rows in the table at the end."""

from __future__ import annotations

from pytest_gpubench.summary import Row, in_order


def test_rows_are_in_the_order_of_their_numbers() -> None:
    points = ["tp2-conc16", "tp2-conc4", "tp1-dp2-conc8", "tp2-conc1", "tp10-conc1"]
    rows: list[Row] = [{"workload": name, "point": point} for name in ("b10", "b9") for point in points]
    ordered = [(str(row["workload"]), str(row["point"])) for row in in_order(rows)]
    assert [point for name, point in ordered if name == "b9"] == [
        "tp1-dp2-conc8",
        "tp2-conc1",
        "tp2-conc4",
        "tp2-conc16",
        "tp10-conc1",
    ]
    assert [name for name, _ in ordered] == ["b9"] * 5 + ["b10"] * 5
