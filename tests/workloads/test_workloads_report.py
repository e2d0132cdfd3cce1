"""The files of a report, and the warnings in it."""

from __future__ import annotations

import re
from pathlib import Path

from made_result import NASTY, made_result
from outrider.plots.png import can_draw
from outrider.workloads.report import write_report
from outrider.workloads.results import Generator


def written(folder: Path, **changed: object) -> tuple[str, str, list[str]]:
    """The page, the Markdown, and the names of all files."""
    paths = write_report(made_result().model_copy(update=changed), folder / "new")
    assert all(path.is_file() for path in paths)
    html, markdown, *pictures = paths
    return html.read_text("utf-8"), markdown.read_text("utf-8"), [path.name for path in pictures]


def test_a_report_is_a_page_a_table_and_pictures(tmp_path: Path) -> None:
    """One picture for each plot, which the Markdown shows, where they can be drawn."""
    html, markdown, pictures = written(tmp_path)
    keys = re.findall(r'aria-labelledby="([\w-]+)-title', html)
    assert keys == ["speed", "first-token", "pauses", "tokens-per-step", "throughput", "accepted"]
    assert pictures == ([f"{key}.png" for key in keys] if can_draw() else [])
    assert all(f"]({name})" in markdown for name in pictures)
    assert ("No PNGs were written" in html) is not can_draw()


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """No address but names of markup, no script."""
    html, _, _ = written(tmp_path)
    assert set(re.findall(r'https?://[^"\s]+', html)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in html
    assert "url(" not in html and "@import" not in html


def test_what_spoils_the_figures_stands_first(tmp_path: Path) -> None:
    """Interruption, a generator that was too slow, and failures; a clean run has no warning."""
    slow = Generator(lag_p99_ms=90.0, late_p99_ms=1.0, cpu_share=1.0, is_bottleneck=True, reasons=["it was late"])
    html, markdown, _ = written(tmp_path, is_complete=False, generator=slow)
    for text in (html, markdown):
        words = ("was interrupted", "was the bottleneck", "it was late", "1 of 109 requests failed")
        assert all(0 < text.index(word) < text.index("At a glance") for word in words)
    done = made_result(with_error=False)
    clean = write_report(done, tmp_path / "clean")[0].read_text("utf-8")
    assert 'class="warning"' not in clean.partition("<body>")[2]
    assert "The load generator was not the bottleneck" in clean


def test_markup_in_a_result_is_escaped(tmp_path: Path) -> None:
    """In tables, plots, notes and conditions."""
    html, markdown, _ = written(tmp_path)
    assert NASTY not in html and NASTY not in markdown
    assert html.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;") >= 6


def test_conditions_are_told(tmp_path: Path) -> None:
    """Machine, command, seed, arms with their hints, what a good request is."""
    _, markdown, _ = written(tmp_path)
    told = markdown.partition("## Conditions")[2]
    assert all(words in told for words in ("cpu: Some CPU", "seed: 7", "embedded, k 4", "ttft\\_ms 150.0", "a1b2c3"))


def test_a_run_that_has_nothing_yet_makes_a_report(tmp_path: Path) -> None:
    """Interrupted before the first answer: no plot, no row, no failure."""
    empty = {"records": [], "cells": [], "stretches": [], "against": [], "is_complete": False}
    html, markdown, pictures = written(tmp_path, **empty)
    assert pictures == []
    assert "was interrupted" in html and "was interrupted" in markdown
    assert "<svg" not in html


def test_one_arm_is_held_against_none(tmp_path: Path) -> None:
    """There is no ratio then, and no legend."""
    html = write_report(made_result(("policy",), with_error=False), tmp_path)[0].read_text("utf-8")
    assert "/ policy" not in html
    assert 'class="legend"' not in html
