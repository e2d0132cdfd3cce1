"""The cost table: exact at its points, linear between them, and picky about its form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from outrider.cost import VERSION, CostTable


def table(**changes: Any) -> CostTable:
    fields: dict[str, Any] = {
        "version": VERSION,
        "key": {"cpu": "x"},
        "num_sequences": (1, 4),
        "widths": (1, 6),
        "contexts": (100, 1100),
        "round_s": [[[10, 20], [15, 25]], [[20, 60], [80, 120]]],
        "bytes_per_token": 46080,
        "weight_bytes": 269_000_000,
        "read_s": 0.013,
    }
    return CostTable.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("num_sequences", "num_rows", "context", "expected"),
    [
        (1, 1, 100, 10),
        (1, 6, 1100, 25),
        (4, 24, 100, 80),
        (4, 4, 600, 40),
        (1, 3.5, 100, 12.5),
        (1, 1, 5, 10),
        (7, 7, 100, 30),
        (1, 11, 100, 20),
        (1, 1, 2100, 30),
    ],
)
def test_points_between_and_beyond(num_sequences: int, num_rows: float, context: float, expected: float) -> None:
    """Exact at a point, linear between two, below the first the first, beyond the last by the last slope."""
    assert table().at(num_sequences, num_rows, context) == pytest.approx(expected)


@given(st.integers(1, 20), st.integers(0, 200), st.floats(0, 1e5))
def test_more_rows_and_context_never_cost_less(num_sequences: int, extra: int, context: float) -> None:
    """A table that ascends along its axes gives costs that do."""
    costs = table()
    rows = num_sequences + extra
    assert costs.at(num_sequences, rows + 1, context) >= costs.at(num_sequences, rows, context)
    assert costs.at(num_sequences, rows, context + 10) >= costs.at(num_sequences, rows, context)


cells = st.floats(1e-3, 1.0)
noisy = st.lists(
    st.lists(st.lists(cells, min_size=2, max_size=2), min_size=3, max_size=3), min_size=2, max_size=2
).map(lambda round_s: table(widths=(1, 4, 6), round_s=round_s))


@given(noisy, st.integers(1, 12), st.floats(1, 40), st.floats(0, 1e5), st.floats(0, 10), st.floats(0, 1e4))
def test_a_noisy_table_ascends_all_the_same(
    costs: CostTable, count: int, width: float, context: float, wider: float, longer: float
) -> None:
    """Whatever was measured, more of anything never costs less, within the points and beyond them."""
    seconds = costs.at(count, count * width, context)
    for more in ((count, count * (width + wider), context), (count, count * width, context + longer)):
        assert costs.at(*more) >= seconds * (1 - 1e-9)
    assert costs.at(count + 1, (count + 1) * width, context) >= seconds * (1 - 1e-9)
    assert seconds >= costs.round_s[0][0][0] * (1 - 1e-9)


@given(noisy)
def test_no_point_is_taken_for_cheaper_than_it_was_measured(costs: CostTable) -> None:
    """Noise is corrected upwards, and what was measured stands in the table still."""
    for i, count in enumerate(costs.num_sequences):
        for j, width in enumerate(costs.widths):
            for k, context in enumerate(costs.contexts):
                assert costs.at(count, count * width, context) >= costs.round_s[i][j][k] * (1 - 1e-9)


def test_the_json_form_comes_back() -> None:
    """Written and read, it is the same table."""
    assert CostTable.model_validate_json(table().model_dump_json()) == table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"widths": (6, 1)}, "widths must ascend"),
        ({"round_s": [[[1, 2]]]}, "shape"),
        ({"round_s": [[[10, 20], [15, 25]], [[0, 60], [80, 120]]]}, "greater than 0"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_table_of_another_form_is_refused(changes: dict[str, Any], message: str) -> None:
    """The message names what is wrong."""
    with pytest.raises(ValidationError, match=message):
        table(**changes)
