"""Noise: uniform, independent, the law it is asked for, and the same for everybody who asks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from outrider.speculation.noise import Noise

PROBS = torch.tensor([0.45, 0.3, 0.0, 0.2, 0.05], dtype=torch.float64)


def g_test(observed: list[int], probs: list[float]) -> float:
    """p-value of counts under a law."""
    expected = np.array(probs) * sum(observed)
    return float(stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue)


def chosen(noise: Noise, depth: int, probs: torch.Tensor) -> int:
    return noise.choose(depth, probs).token_id


def counts(tokens: list[int]) -> list[int]:
    return np.bincount(tokens, minlength=len(PROBS)).tolist()


def law_pvalue(tokens: list[int]) -> float:
    found = counts(tokens)
    assert found[2] == 0, "a token of probability zero was drawn"
    return g_test([found[t] for t in (0, 1, 3, 4)], [0.45, 0.3, 0.2, 0.05])


def test_choices_follow_the_law_over_positions_and_over_seeds() -> None:
    """Neither the positions of one seed nor the seeds of one position deviate from the law."""
    for noises in ([Noise(7, i, True) for i in range(5000)], [Noise(i, 0, True) for i in range(5000)]):
        assert law_pvalue([chosen(noise, 0, PROBS) for noise in noises]) > 1e-4


def test_draws_and_coins_follow_their_probabilities() -> None:
    """One step's coins are as good as those of different steps."""
    noise = Noise(3, 5, False)
    assert law_pvalue([noise.draw(7.0 * PROBS) for _ in range(5000)]) > 1e-4
    heads = sum(noise.accept(0.3) for _ in range(5000))
    assert stats.binomtest(heads, 5000, 0.3).pvalue > 1e-4
    assert all(noise.accept(1.0) and not noise.accept(0.0) for _ in range(200))


@pytest.mark.parametrize("other", [(1, 1, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)], ids=str)
def test_neighbours_are_independent(other: tuple[int, int, int]) -> None:
    """Seed and position and depth next to each other share nothing."""
    flat = torch.full((4,), 0.25, dtype=torch.float64)
    table = np.zeros((4, 4), dtype=int)
    for seed in range(60):
        for position in range(0, 120, 2):
            a = chosen(Noise(seed, position, True), 0, flat)
            b = chosen(Noise(seed + other[0], position + other[1], True), other[2], flat)
            table[a, b] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_a_position_chooses_the_same_from_any_step() -> None:
    """How positions are grouped into steps makes no difference, nor do coins in between."""
    from_five = Noise(3, 5, True)
    from_five.accept(0.5)
    assert [chosen(from_five, d, PROBS) for d in range(20)] == [
        chosen(Noise(3, 5 + d, True), 0, PROBS) for d in range(20)
    ]


def test_tokens_that_the_law_drops_do_not_move_the_others() -> None:
    """A token's noise is its own: filtering away a loser leaves the winner."""
    rng = np.random.default_rng(0)
    for position in range(200):
        probs = torch.tensor(rng.dirichlet(np.ones(50)))
        winner = chosen(Noise(1, position, True), 0, probs)
        kept = probs * torch.tensor(rng.random(50) < 0.5)
        kept[winner] = probs[winner]
        assert chosen(Noise(1, position, True), 0, kept / kept.sum()) == winner


def test_drafts_without_replacement_have_the_law_of_successive_draws() -> None:
    """P(a, b) = q(a) q(b) / (1 - q(a)), seeded or not, and never the same token twice."""
    q = PROBS.tolist()
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b and q[a] * q[b] > 0]
    law = [q[a] * q[b] / (1 - q[a]) for a, b in pairs]
    for is_seeded in (True, False):
        drawn = Counter(tuple(Noise(s, 4, is_seeded).draft(1, PROBS, 2)) for s in range(5000))
        assert set(drawn) <= set(pairs)
        assert g_test([drawn[pair] for pair in pairs], law) > 1e-4
    assert sorted(Noise(0, 0, True).draft(0, PROBS, 9)) == [0, 1, 3, 4]


def test_a_seeded_drafter_with_the_target_s_law_is_always_right() -> None:
    """It draws with the noise of the position."""
    for position in range(50):
        noise = Noise(9, position, True)
        assert noise.draft(2, PROBS)[0] == chosen(Noise(9, position + 2, True), 0, PROBS)


def test_an_unseeded_draft_s_noise_is_never_met_again() -> None:
    """Not by the target's choice at the position, nor by the next step's draft for it, nor on another branch."""
    flat = torch.full((4,), 0.25, dtype=torch.float64)
    tables = np.zeros((3, 4, 4), dtype=int)
    for seed in range(2000):
        drafted = Noise(seed, 5, False).draft(1, flat)[0]
        again = Noise(seed, 6, False)
        tables[0, drafted, chosen(again, 0, flat)] += 1
        tables[1, drafted, again.draft(0, flat)[0]] += 1
        tables[2, drafted, Noise(seed, 5, False).draft(1, flat, branch=1)[0]] += 1
    assert all(stats.chisquare(table.ravel()).pvalue > 1e-4 for table in tables)


def test_another_law_with_the_same_noise_agrees_nearly_as_often_as_possible() -> None:
    """A drafter's race agrees as often as exponential races can, over 90 % of the optimum 1 - TV for related laws.

    The closed form is the sum over x of 1 / sum over y of max(P(y) / P(x), Q(y) / Q(x)) (Moulton, Jiang 2018).
    """
    rng = np.random.default_rng(2)
    num_agreed, expected, optimum = 0, [], []
    for _ in range(20):
        base = rng.normal(size=64) * 1.5
        p, q = (torch.tensor(base + rng.normal(size=64) * 0.5).softmax(0) for _ in range(2))
        expected.append(float((1 / torch.maximum(p[None] / p[:, None], q[None] / q[:, None]).sum(1)).sum()))
        optimum.append(float(torch.minimum(p, q).sum()))
        noises = [Noise(i, 0, True) for i in range(100)]
        num_agreed += sum(chosen(noise, 0, p) == noise.draft(0, q)[0] for noise in noises)
    assert stats.binomtest(num_agreed, 2000, float(np.mean(expected))).pvalue > 1e-4
    assert num_agreed > 0.9 * 2000 * np.mean(optimum)


def test_any_integer_is_a_seed() -> None:
    """Negative and large ones are taken modulo 2**64."""
    assert [chosen(Noise(-1, i, True), 0, PROBS) for i in range(30)] == [
        chosen(Noise(2**64 - 1, i, True), 0, PROBS) for i in range(30)
    ]
    assert chosen(Noise(10**30, 3, True), 0, PROBS) in (0, 1, 3, 4)


def test_the_fastest_of_a_large_vocabulary_is_found() -> None:
    """Skipping logarithms changes no winner: the choice is the token with the smallest of all arrival times.

    The race's times come back from the choices alone: with two tokens left, the faster of the two wins.
    """
    rng = np.random.default_rng(5)
    probs = torch.tensor(rng.dirichlet(np.full(3000, 0.1)))
    for position in range(5):
        noise = Noise(4, position, True)
        winner = chosen(noise, 0, probs)
        for rival in rng.choice(np.flatnonzero(probs.numpy() > 1e-6), size=40, replace=False):
            pair = torch.zeros_like(probs)
            pair[[winner, int(rival)]] = probs[[winner, int(rival)]]
            assert chosen(noise, 0, pair) == winner
        assert noise.draft(0, probs, 5)[0] == winner
        assert noise.draft(0, probs, 5) == noise.draft(0, probs, 20)[:5]


def test_a_near_tie_is_a_race_that_rounding_could_turn() -> None:
    """Scaling every rate at random within the slack changes the winner only where a near tie was reported."""
    rng = np.random.default_rng(8)
    slack, num_flagged, num_turned = 0.05, 0, 0
    for position in range(2000):
        probs = torch.tensor(rng.dirichlet(np.full(20, 0.5)))
        choice = Noise(6, position, True).choose(0, probs, slack)
        moved = probs * torch.tensor(np.exp(rng.uniform(-slack / 2, slack / 2, size=20)))
        is_turned = chosen(Noise(6, position, True), 0, moved) != choice.token_id
        assert choice.is_near_tie or not is_turned
        num_flagged += choice.is_near_tie
        num_turned += is_turned
    assert 0 < num_turned < num_flagged < 0.1 * 2000
    assert not Noise(6, 0, True).choose(0, PROBS).is_near_tie, "without slack there are none"


def test_a_doubtful_token_makes_a_near_tie_where_it_would_win() -> None:
    """A token at a filter's limit matters if it was chosen, or if it would have been had it been let in."""
    probs = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    outside = torch.tensor([0.0, 0.0, 0.4], dtype=torch.float64)
    inside = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    for position in range(50):
        noise = Noise(2, position, True)
        winner = chosen(noise, 0, probs)
        assert noise.choose(0, probs, 1e-9, outside) == (winner, chosen(noise, 0, probs + outside) == 2)
        assert noise.choose(0, probs, 1e-9, inside) == (winner, winner == 1)
