"""The reports as a person sees them: opened in a real browser, on a desk and on a phone, light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from browser import DESK, PHONE, Opened, chromium, opened
from made_grid import made_grid
from made_result import made_result
from outrider.cli.bench.grid_report import write_grid_report
from outrider.workloads.report import write_report
from outrider.workloads.results import read_result, write_result
from outrider.workloads.tables import shown

pytestmark = pytest.mark.browser

Scheme = Literal["light", "dark"]
WINDOWS = [(DESK, "light"), (PHONE, "light"), (DESK, "dark"), (PHONE, "dark")]
#: Smallest type that is read without effort, in pixels.
LEAST_TYPE = 9.0
#: Least contrast of text, as WCAG 2.2 asks for.
LEAST_CONTRAST = 4.5

MARKS = "[...document.querySelectorAll('svg.plot')].map(s => s.querySelectorAll('.mark').length)"
SEEN = """[...document.querySelectorAll('svg.plot .mark')].filter(m => {
    const box = m.getBoundingClientRect(); return box.width + box.height > 0 }).length"""
TYPE = """Math.min(...[...document.querySelectorAll('svg.plot text')].map(t =>
    Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b) * parseFloat(getComputedStyle(t).fontSize)))"""
CELLS = """[...document.querySelectorAll('table')].map(table => {
    const names = [...table.querySelectorAll('thead th')].map(th => th.textContent);
    return [...table.querySelectorAll('tbody tr')].map(tr => Object.fromEntries([...tr.children].map((cell, i) => {
        const data = cell.querySelector('data');
        return [names[i], data ? [Number(data.value), data.textContent] : cell.textContent];
    })));
})"""
#: Of all text, the least ratio of its brightness to that of what it stands on.
CONTRAST = """(() => {
    const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const paper = e => { for (; e; e = e.parentElement) {
        const found = parse(getComputedStyle(e).backgroundColor);
        if (found.length === 3 || found[3] > 0) return found.slice(0, 3); } return [255, 255, 255]; };
    const inked = [...document.querySelectorAll('h1, h2, p, li, dt, dd, th, td, .interval, figcaption')]
        .map(e => [getComputedStyle(e).color, paper(e)]);
    const drawn = [...document.querySelectorAll('svg.plot text')].map(e => {
        const cell = e.previousElementSibling, inside = e.matches('.on-dark, .on-light');
        return [getComputedStyle(e).fill, inside ? parse(getComputedStyle(cell).fill) : paper(e)]; });
    return Math.min(...[...inked, ...drawn].map(([ink, paper]) => {
        const [a, b] = [light(parse(ink).slice(0, 3)), light(paper)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    result = made_result()
    write_result(result, folder)
    write_report(result, folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    write_grid_report(made_grid(), folder)
    return folder / "grid.html"


def check_sight(seen: Opened, width: int, num_plots: int) -> None:
    marks = seen.see(MARKS)
    assert len(marks) == num_plots
    assert all(marks)
    assert seen.see(SEEN) >= 0.8 * sum(marks)  # bars of nothing have no height
    assert seen.see("document.documentElement.scrollWidth") <= width
    assert seen.see(TYPE) >= LEAST_TYPE
    assert seen.see(CONTRAST) >= LEAST_CONTRAST
    assert seen.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in seen.requests)


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_a_report_is_readable(browser: Browser, report: Path, width: int, scheme: Scheme, tmp_path: Path) -> None:
    """No complaint, nothing from elsewhere, every plot has marks, no overflow, type and contrast that can be read."""
    with opened(browser, report, width, scheme) as seen:
        check_sight(seen, width, num_plots=6)
        seen.shoot(tmp_path / f"report-{scheme}-{width}.png")


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_a_grid_is_readable(browser: Browser, grid: Path, width: int, scheme: Scheme, tmp_path: Path) -> None:
    """The same; its heat maps are wider than a phone and scroll in their own box."""
    with opened(browser, grid, width, scheme) as seen:
        check_sight(seen, width, num_plots=2)
        seen.shoot(tmp_path / f"grid-{scheme}-{width}.png")


def test_the_tables_show_what_the_file_holds(browser: Browser, report: Path) -> None:
    """Each figure as its exact value and as a rounding of it, by arm and by task."""
    result = read_result(report.parent)
    with opened(browser, report) as seen:
        glance, tasks, waits, errors = seen.see(CELLS)
    assert [row["arm"] for row in glance] == [arm.name for arm in result.arms]
    for row in glance:
        cell = result.cell(row["arm"])
        assert cell is not None
        assert row["requests"] == [cell.num_requests, str(cell.num_requests)]
        assert row["failed"] == [cell.num_failed, str(cell.num_failed)]
        speed = cell.metrics["tokens_per_s"].p50.value
        assert row["tokens/s of each"] == [speed, shown(speed)]
    for row in tasks:
        cell = result.cell(row["arm"], row["task"], float(row["T"]))
        assert cell is not None
        speed = cell.metrics["tokens_per_s"].p50.value
        assert row["tokens/s of each"] == [speed, shown(speed)]
        length = cell.accept_length
        assert row["accept length"] == ("-" if length is None else [length.value, shown(length.value)])
    assert len(tasks) == len(result.cells) - len(result.arms)
    assert len(waits) == len(result.cells)
    for row in waits:
        cell = result.cell(row["arm"], *((row["task"], float(row["T"])) if row["T"] else ()))
        assert cell is not None
        for metric, name in (("ttft_ms", "first token ms"), ("gap_ms", "pause ms")):
            for percentile in ("p50", "p90", "p99"):
                figure = getattr(cell.metrics[metric], percentile).value
                assert row[f"{name} {percentile}"] == [figure, shown(figure)]
    assert [row["times"][0] for row in errors] == [1]


def test_the_table_of_a_grid_shows_what_its_heat_maps_show(browser: Browser, grid: Path) -> None:
    """The same numbers, in the order of rows and columns."""
    with opened(browser, grid) as seen:
        ((*rows,),) = seen.see(CELLS)
        drawn = seen.see(
            "[...document.querySelectorAll('svg[aria-labelledby^=accept] rect.mark title')].map(t => t.textContent)"
        )
    told = [f"{r['task']}, T {r['T']}, {r['drafter']} k={r['k'][1]}: {r['accept length'][0]:.3g}" for r in rows]
    assert drawn == told


def test_markup_in_a_result_is_text_in_the_page(browser: Browser, report: Path) -> None:
    """Names, errors, notes and the command may hold tags: none becomes one, and all can be read."""
    with opened(browser, report) as seen:
        assert seen.see("document.querySelectorAll('script, img, iframe').length") == 0
        words = seen.see("document.body.innerText")
        assert words.count("onerror=alert(1)") >= 6
        assert seen.complaints == []


def test_those_who_cannot_see_are_told(browser: Browser, report: Path) -> None:
    """Plots have a title and a description, headings a scope, ids are unique, boxes that scroll take the focus."""
    with opened(browser, report) as seen:
        named = seen.see(
            "[...document.querySelectorAll('svg.plot')].map(s => s.getAttribute('aria-labelledby').split(' ')"
            ".map(id => document.getElementById(id).textContent.length))"
        )
        assert all(all(pair) for pair in named)
        assert seen.see("document.querySelectorAll('th:not([scope])').length") == 0
        ids = seen.see("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids)), json.dumps(ids)
        assert seen.see("[...document.querySelectorAll('.table, .box')].every(e => e.tabIndex === 0)")
        assert seen.see("document.documentElement.lang") == "en"
