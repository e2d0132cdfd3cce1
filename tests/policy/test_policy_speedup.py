"""The published formula against the values and the table of best k that it must give."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.policy.speedup import best_k, expected_tokens, speedup

#: Acceptance -> for draft costs .02, .05, .1 and .2: best k and its speed-up.
TABLE = {
    0.5: [(4, 1.79), (3, 1.63), (2, 1.46), (1, 1.25)],
    0.6: [(6, 2.17), (4, 1.92), (3, 1.67), (2, 1.40)],
    0.7: [(8, 2.76), (6, 2.35), (4, 1.98), (3, 1.58)],
    0.8: [(11, 3.82), (8, 3.09), (6, 2.47), (4, 1.87)],
    0.9: [(19, 6.37), (13, 4.67), (10, 3.43), (7, 2.37)],
}
COSTS = (0.02, 0.05, 0.10, 0.20)


def test_known_values() -> None:
    """The bonus counts, and each draft step costs: 1.98 and 3.75, where dropping a factor would give 2.5 or 1.69."""
    assert round(speedup(0.7, 4, 0.1), 2) == 1.98
    assert round(speedup(0.9, 5, 0.05), 2) == 3.75
    assert round(speedup(0.8, 4, 0.1), 3) == 2.401


@pytest.mark.parametrize(("alpha", "k", "gain"), [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 5, 3.69), (0.9, 10, 6.86)])
def test_free_drafts_gain_the_expected_tokens(alpha: float, k: int, gain: float) -> None:
    """At no draft cost the speed-up is the tokens per pass, as the paper tabulates them."""
    assert round(speedup(alpha, k, 0.0), 2) == gain
    assert expected_tokens(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


@pytest.mark.parametrize("alpha", TABLE)
def test_the_table_of_best_k(alpha: float) -> None:
    """Best k and its gain, for five acceptances and four draft costs."""
    found = [(best_k(alpha, c), round(speedup(alpha, best_k(alpha, c), c), 2)) for c in COSTS]
    assert found == TABLE[alpha]


@pytest.mark.parametrize(("c", "verify_cost", "best"), [(0.5, 1.0, 0), (0.3, 1.0, 0), (0.05, 2.0, 0), (0.05, 1.2, 2)])
def test_when_nothing_gains_the_best_is_no_draft(c: float, verify_cost: float, best: int) -> None:
    """Drafts dearer than their acceptance, or a verification dearer than they save, leave plain decoding."""
    assert best_k(0.3, c, verify_cost) == best


def test_certain_acceptance_has_no_pole() -> None:
    """alpha = 1 emits k + 1 tokens per pass, and alpha next to 1 nearly as many."""
    assert speedup(1.0, 4, 0.25) == 2.5
    assert speedup(1.0 - 1e-12, 4, 0.25) == pytest.approx(2.5)
    assert best_k(1.0, 0.1, max_k=20) == 20


@pytest.mark.parametrize(("alpha", "k", "c", "verify_cost"), [(1.1, 1, 0, 1), (-0.1, 1, 0, 1), (0.5, -1, 0, 1),
                                                              (0.5, 1, -1, 1), (0.5, 1, 0, 0)])  # fmt: skip
def test_impossible_values_are_refused(alpha: float, k: int, c: float, verify_cost: float) -> None:
    """Each argument has its range."""
    with pytest.raises(ValueError, match="must"):
        speedup(alpha, k, c, verify_cost)


def test_the_command_prints_tokens_cost_gain_and_best_k() -> None:
    """One line each, with the values of the formula."""
    result = CliRunner().invoke(app, ["speedup", "--alpha", "0.9", "--k", "5", "--c", "0.05"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "tokens per pass  4.69",
        "cost per pass    1.25 plain decode steps",
        "speed-up         3.75",
        "best k           13 (speed-up 4.67)",
    ]
    dear = ["speedup", "--alpha", "0.3", "--k", "1", "--c", "0.05", "--verify-cost", "2"]
    assert "best k           0 (no k gains)" in CliRunner().invoke(app, dear).output
    assert CliRunner().invoke(app, ["speedup", "--alpha", "2", "--k", "1", "--c", "0"]).exit_code == 2
