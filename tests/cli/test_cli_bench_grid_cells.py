"""The order of a grid, and the figures of its cells."""

from __future__ import annotations

import pytest

from made_grid import made_answer, made_grid
from outrider.cli.bench.grid_cells import Cells, parse, visits
from outrider.cli.bench.grid_report import grid_plots, grid_rows
from outrider.cli.bench.samples import SETTING_OFF, Case, Setting


def test_any_beginning_spreads_over_tasks_and_temperatures() -> None:
    """First one prompt of each task, each at another temperature; greedy answers are not repeated."""
    cases = [Case(f"{task}-{i}", task, "text") for task in ("a", "b", "c") for i in range(2)]
    order = list(visits(cases, [0.0, 0.5, 1.0], rounds=2))
    assert [(case.group, case.temperature) for _, case in order[:3]] == [("a", 0.0), ("b", 0.5), ("c", 1.0)]
    assert {(case.group, case.temperature) for _, case in order[:9]} == {
        (g, t) for g in "abc" for t in (0.0, 0.5, 1.0)
    }
    assert len(order) == 6 * (3 + 2)
    assert len({(number, case.name, case.temperature) for number, case in order}) == len(order)
    assert not any(number and case.temperature == 0 for number, case in order)


def test_cells_pool_steps_and_not_answers() -> None:
    """Tokens per verify step over all of them; acceptance over proposed drafts; speed on the same prompt."""
    grid = made_grid()
    grid.answers.append(
        made_answer("chat", "chat-one", 0.0, "ngram k=4", num_accepted=8).model_copy(update={"round": 1})
    )
    cells, row, setting = Cells(grid), ("chat", 0.0), Setting("ngram", 4)
    assert cells.num_steps(row, setting) == 30
    assert cells.accept_length(row, setting) == pytest.approx(1 + 16 / 30)
    assert cells.accept_rate(row, setting) == pytest.approx(16 / 120)
    assert cells.speed(row, setting) == pytest.approx(4.0)
    assert cells.same_text(row, setting) == "2 of 2"
    assert cells.same_text(("chat", 0.7), setting) is None
    assert (cells.accept_length(row, SETTING_OFF), cells.accept_rate(row, SETTING_OFF)) == (None, None)


def test_rows_are_those_that_were_measured() -> None:
    """An interrupted grid has holes: a dash on the map, no row in the table."""
    grid = made_grid()
    grid.answers = [one for one in grid.answers if (one.task, one.drafter) != ("code", "suffix")]
    assert len(grid_rows(grid)) == 6 * 7 - 2
    accept, speed = grid_plots(grid)
    assert accept.num_marks == speed.num_marks == 6 * 7 - 2
    assert accept.svg.count(": not measured") == 2


@pytest.mark.parametrize("setting", [SETTING_OFF, Setting("ngram", 4), Setting("layer_skip", 2)])
def test_settings_are_read_as_they_are_written(setting: Setting) -> None:
    """In the scope of a grid."""
    assert parse(str(setting)) == setting
