"""The report in a real browser: it loads clean, draws what the rows say, obeys the keyboard, turns dark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpubench.results.report import Source, load_sources, write_report
from report.browser import Browser, find_chromium
from report.demo import STEM, demo_folder, demo_rows, demo_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH: .ci/install-system browser"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    sources = load_sources([demo_folder(folder / "results")])
    # The pictures must not show a path of the machine that made them.
    return write_report(folder / "report.html", [replace(source, path="results") for source in sources])


@pytest.fixture
def opened(browser: Browser, one: Path) -> Browser:
    browser.prefer("light")
    browser.open(one)
    browser.evaluate("try { localStorage.clear() } catch (error) {}")
    browser.open(one)
    return browser


def drawn(browser: Browser, chart: str) -> list[list[object]]:
    """The points that Plotly holds: row number, x, y."""
    found = browser.evaluate(
        f"document.getElementById('{chart}').data.filter((trace) => trace.meta === 'points')"
        ".flatMap((trace) => trace.customdata.map((row, i) => [row, trace.x[i], trace.y[i]]))"
    )
    assert isinstance(found, list)
    return found


def column(browser: Browser, title: str) -> list[str]:
    found = browser.evaluate(
        "(() => { const heads = [...document.querySelectorAll('#rows thead th')];"
        f"const at = heads.findIndex((head) => head.textContent === {title!r});"
        "const rows = [...document.querySelectorAll('#rows tbody tr')];"
        "return rows.map((row) => row.children[at].textContent); })()"
    )
    assert isinstance(found, list)
    return found


def choose(browser: Browser, select: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const s = document.getElementById('{select}'); s.value = '{value}';"
        "s.dispatchEvent(new Event('change')); })()"
    )


def focus_head(browser: Browser, title: str) -> None:
    """Tab from the filter on until the column's button has the focus, as a keyboard user would."""
    browser.evaluate("document.getElementById('filter').focus()")
    for _ in range(40):
        browser.tab()
        if browser.evaluate("document.activeElement.textContent") == title:
            return
    raise AssertionError(f"the keyboard does not reach the column {title}")


def test_loads_without_a_console_error_or_a_request(opened: Browser) -> None:
    assert opened.complaints() == []
    assert opened.evaluate("document.title") == f"Serving benchmark: {STEM}"
    assert "measure nothing" in opened.evaluate("document.querySelector('.banner').textContent")


@pytest.mark.parametrize(
    ("chart", "metric"), [("chart-intvty", "median_intvty"), ("chart-ttft", "median_ttft")]
)
def test_the_points_drawn_are_the_rows(opened: Browser, chart: str, metric: str) -> None:
    expected = sorted(
        (float(f"{row[metric]:.6g}"), float(f"{row['tput_per_gpu']:.6g}"))
        for row in demo_rows()
        if row["tput_per_gpu"] is not None
    )
    points = drawn(opened, chart)
    assert len(expected) == 12  # 13 points, one of them dead
    assert sorted((x, y) for _, x, y in points) == expected
    marks = opened.evaluate(f"document.querySelectorAll('#{chart} .scatterlayer path.point').length")
    assert marks == 12
    assert opened.evaluate(f"document.getElementById('{chart}-note').textContent").startswith("12 of 13 rows")


def test_fronts_and_gates_are_drawn(opened: Browser) -> None:
    names = opened.evaluate(
        "document.getElementById('chart-intvty').data.filter((t) => t.meta === 'front').map((t) => t.name)"
    )
    assert sorted(names) == ["dp8", "tp2-dp4", "tp8"]
    lines = (
        "document.getElementById('{}').layout.shapes.map((s) => s.xref === 'x' ? ['x', s.x0] : ['y', s.y0])"
    )
    assert opened.evaluate(lines.format("chart-intvty")) == [["y", 90]]
    assert opened.evaluate(lines.format("chart-ttft")) == [["x", 1], ["y", 90]]
    # The p99 ceiling is far outside the points: named instead of squeezing them into a corner.
    choose(opened, "x-ttft", "p99_ttft")
    assert opened.evaluate(lines.format("chart-ttft")) == [["y", 90]]
    assert "ceiling 60 s" in opened.evaluate("document.getElementById('chart-ttft-note').textContent")


def test_another_metric_can_be_chosen(opened: Browser) -> None:
    choose(opened, "y-metric", "output_tput_per_gpu")
    expected = sorted(
        float(f"{r['output_tput_per_gpu']:.6g}") for r in demo_rows() if r["output_tput_per_gpu"]
    )
    assert sorted(y for _, _, y in drawn(opened, "chart-intvty")) == expected  # type: ignore[type-var]


def test_sorting_by_keyboard(opened: Browser) -> None:
    assert column(opened, "Point")[:3] == [
        "dp8-1k1k-conc16", "dp8-1k1k-conc64", "dp8-1k1k-conc256",
    ]  # fmt: skip
    focus_head(opened, "tok/s/GPU")
    opened.enter()
    sort = "document.activeElement.parentElement.getAttribute('aria-sort')"
    assert opened.evaluate(sort) == "ascending"
    values = column(opened, "tok/s/GPU")
    assert values[-1] == "–"  # unknown goes last
    assert [float(v) for v in values[:-1]] == sorted(float(v) for v in values[:-1])
    opened.enter()
    assert opened.evaluate(sort) == "descending"
    values = column(opened, "tok/s/GPU")
    assert values[-1] == "–"
    assert [float(v) for v in values[:-1]] == sorted((float(v) for v in values[:-1]), reverse=True)
    opened.enter()
    assert opened.evaluate(sort) == "none"


def test_filtering_by_keyboard(opened: Browser) -> None:
    opened.evaluate("document.getElementById('filter').focus()")
    opened.type("tp2 conc4")
    opened.settle()
    assert column(opened, "Point") == ["tp2-dp4-1k1k-conc4"]
    assert opened.evaluate("document.getElementById('shown').textContent") == (
        "Rows 1 to 1 of 1 that match, of 13 in all."
    )
    opened.type("zzz")
    opened.settle()
    assert column(opened, "Point") == []
    assert opened.evaluate("document.getElementById('shown').textContent") == "No row matches the filter."


def test_dark_mode_follows_the_system_and_the_button(opened: Browser) -> None:
    page = "getComputedStyle(document.body).backgroundColor"
    light = opened.evaluate(page)
    opened.prefer("dark")
    assert opened.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = opened.evaluate(page)
    assert dark != light
    opened.evaluate("document.getElementById('theme').focus()")
    opened.enter()
    assert opened.evaluate(page) == light
    assert opened.evaluate("document.getElementById('theme').textContent") == "Dark mode"
    opened.prefer("light")
    assert opened.complaints() == []


def test_failures_show_the_log_tails_as_text(opened: Browser) -> None:
    text = opened.evaluate("document.querySelector('[aria-labelledby=failures-title]').textContent")
    assert "rank 1 on gb300-07 ended with exit code 1" in text
    assert "ERROR NCCL <error> & timeout" in text
    assert "\x1b" not in text
    assert "Loading weights: 10%" not in text


def test_every_control_has_a_name(opened: Browser) -> None:
    nameless = opened.evaluate(
        "[...document.querySelectorAll('button, select, input')]"
        ".filter((element) => !element.closest('.plotly') && !element.labels?.length)"
        ".filter((element) => !element.textContent.trim()).length"
    )
    assert nameless == 0


def test_two_runs_overlay(browser: Browser, tmp_path: Path) -> None:
    sources = load_sources(
        [demo_folder(tmp_path / "a"), demo_folder(tmp_path / "b", "demo-2", speed=1.1, failing=False)]
    )
    browser.open(write_report(tmp_path / "two.html", sources))
    assert browser.complaints() == []
    assert len(drawn(browser, "chart-intvty")) == 25
    symbols = browser.evaluate(
        "document.getElementById('chart-intvty').data"
        ".filter((t) => t.meta === 'points' && t.name.startsWith('dp8'))"
        ".map((t) => [t.marker.color, t.marker.symbol[0]])"
    )
    assert symbols[0][0] == symbols[1][0]  # one deployment, one hue; the run is told by the symbol
    assert symbols[0][1] != symbols[1][1]
    assert set(column(browser, "Run")) == {"demo-1", "demo-2"}


def test_a_run_in_which_nothing_was_measured(browser: Browser, tmp_path: Path) -> None:
    rows = [row for row in demo_rows() if row["status"] == "error"]
    browser.open(write_report(tmp_path / "none.html", [Source("none", demo_run(), rows)]))
    assert browser.complaints() == []
    assert browser.evaluate("document.getElementById('chart-ttft').hidden") is True
    assert "nothing to draw" in browser.evaluate("document.getElementById('chart-ttft-note').textContent")
    assert column(browser, "Verdict") == ["error (server exited)"]


@pytest.mark.slow
def test_many_rows_stay_usable(browser: Browser, tmp_path: Path) -> None:
    rows = [row for row in demo_rows() if row["status"] != "error"]
    many = [{**rows[n % 12], "point": f"{rows[n % 12]['point']}-{n}", "conc": n} for n in range(50_000)]
    path = write_report(tmp_path / "many.html", [Source("many", demo_run(), many)])
    assert path.stat().st_size < 30_000_000
    browser.open(path, timeout=60)
    assert browser.evaluate("document.querySelectorAll('#rows tbody tr').length") == 200
    assert len(browser.evaluate("document.getElementById('chart-ttft').data.map((t) => t.type)")) == 6
    assert set(browser.evaluate("document.getElementById('chart-ttft').data.map((t) => t.type)")) == {
        "scattergl"
    }
    assert browser.complaints() == []


def test_screenshots(opened: Browser, tmp_path: Path) -> None:
    """The pictures of the documentation; GPUBENCH_SCREENSHOTS names a folder to keep them in."""
    folder = Path(os.environ.get("GPUBENCH_SCREENSHOTS") or tmp_path)
    for scheme in ("light", "dark"):
        opened.prefer(scheme)
        picture = folder / f"report-{scheme}.png"
        opened.screenshot(picture)
        assert picture.stat().st_size > 50_000
    opened.prefer("light")
