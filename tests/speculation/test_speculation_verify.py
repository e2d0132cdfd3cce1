"""Verification by exact enumeration: the law of what is emitted equals the target's law."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.speculation.proposal import PointMass
from outrider.speculation.target import SamplingLaw, choose, target_probs
from outrider.speculation.verify import Verified, verify

V = 4
LENGTH = 4
Verify = Callable[[torch.Tensor, SamplingLaw, torch.Tensor, PointMass], Verified]
Draft = Callable[[tuple[int, ...]], tuple[int, ...]]


def target_law(logits: torch.Tensor, law: SamplingLaw) -> dict[tuple[int, ...], float]:
    """Law of the first LENGTH tokens of the chain started in state 0, from one-row laws alone."""
    probs = target_probs(logits, law).numpy()
    joint = {}
    for tokens in itertools.product(range(V), repeat=LENGTH):
        states = (0, *tokens)
        joint[tokens] = float(np.prod([probs[a, b] for a, b in itertools.pairwise(states)]))
    return joint


def emitted_law(logits: torch.Tensor, law: SamplingLaw, draft: Draft, rule: Verify) -> dict[tuple[int, ...], float]:
    """Law of the first LENGTH emitted tokens, integrating over all uniforms of all verify steps.

    A row's outcome is constant while its uniform stays between two neighbouring points of the row's distribution
    function, so one uniform from every such cell, weighted with the cell's width, integrates exactly.
    """
    done: dict[tuple[int, ...], float] = defaultdict(float)
    pending = {(): 1.0}
    while pending:
        prefix, weight = pending.popitem()
        if len(prefix) >= LENGTH:
            done[prefix[:LENGTH]] += weight
            continue
        tokens = draft(prefix)
        states = [(0, *prefix)[-1], *tokens]
        rows = logits[states]
        for cell_weight, uniforms in _cells(target_probs(rows, law).numpy()):
            emitted = rule(rows, law, uniforms, PointMass(tokens)).token_ids
            assert emitted, "a verify step must emit something"
            longer = prefix + emitted
            pending[longer] = pending.get(longer, 0.0) + weight * cell_weight
    return done


def _cells(probs: np.ndarray) -> list[tuple[float, torch.Tensor]]:
    per_row = []
    for row in probs:
        edges = np.concatenate([[0.0], np.cumsum(row)])
        per_row.append([(b - a, (a + b) / 2) for a, b in itertools.pairwise(edges) if b > a])
    return [
        (float(np.prod([width for width, _ in cells])), torch.tensor([middle for _, middle in cells]))
        for cells in itertools.product(*per_row)
    ]


def largest_error(logits: torch.Tensor, law: SamplingLaw, draft: Draft, rule: Verify = verify) -> float:
    expected, found = target_law(logits, law), emitted_law(logits, law, draft, rule)
    return max(abs(expected[tokens] - found.get(tokens, 0.0)) for tokens in expected)


def fixed_draft(k: int, seed: int) -> Draft:
    """An arbitrary deterministic drafter: its tokens depend on the prefix only."""

    def draft(prefix: tuple[int, ...]) -> tuple[int, ...]:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        return tuple(int(t) for t in rng.integers(0, V, size=k))

    return draft


def varying_draft(seed: int) -> Draft:
    """A drafter whose number of tokens depends on the prefix, from none to three."""
    return lambda prefix: fixed_draft((sum(prefix) + len(prefix)) % 4, seed)(prefix)


RANDOM = torch.tensor(np.random.default_rng(1).normal(size=(V, V)) * 1.5)
ADVERSARIAL = torch.tensor(
    [[0.0, -1e9, -1e9, 0.0], [5.0, 5.0, 5.0, 5.0], [-1e9, 3.0, -1e9, -1e9], [0.0, 1.0, 2.0, -1e9]],
    dtype=torch.float64,
)
LAWS = [
    SamplingLaw(0.8),
    SamplingLaw(1.2),
    SamplingLaw(0.0),
    SamplingLaw(1.0, top_k=2),
    SamplingLaw(0.9, top_p=0.7),
    SamplingLaw(1.1, top_k=3, top_p=0.8, min_p=0.1),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("logits", [RANDOM, ADVERSARIAL], ids=["random", "adversarial"])
def test_the_emitted_law_is_the_target_law(logits: torch.Tensor, law: SamplingLaw) -> None:
    """For any number of drafts, also a varying one, the joint law of several tokens is exact to 1e-12."""
    drafts = [fixed_draft(0, 0), fixed_draft(1, 1), fixed_draft(2, 2), fixed_draft(3, 3), varying_draft(4)]
    errors = [largest_error(logits, law, draft) for draft in drafts]
    assert max(errors) < 1e-12, errors


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, -1e9]), min_size=V, max_size=V), min_size=V, max_size=V
    ),
    k=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_the_emitted_law_is_exact_for_ties_and_zeros(rows: list[list[float]], k: int, seed: int) -> None:
    """Laws with ties, zeros and disjoint supports are no exception."""
    assert largest_error(torch.tensor(rows, dtype=torch.float64), SamplingLaw(1.0), fixed_draft(k, seed)) < 1e-12


def test_all_accepted_gives_a_bonus_token() -> None:
    """K accepted drafts emit K + 1 tokens."""
    logits = torch.full((3, V), -50.0)
    for row, token in enumerate((1, 2, 3)):
        logits[row, token] = 50.0
    verified = verify(logits, SamplingLaw(1.0), torch.tensor([0.1, 0.5, 0.9]), PointMass((1, 2)))
    assert verified.token_ids == (1, 2, 3)
    assert verified.num_accepted == 2


def test_a_wrong_number_of_rows_is_refused() -> None:
    """Rows and drafts must fit."""
    with pytest.raises(ValueError, match="2 draft tokens need 3 rows, not 2"):
        verify(torch.zeros(2, V), SamplingLaw(), torch.zeros(2), PointMass((0, 1)))


# Mutants: each is a mistake that somebody has shipped; the enumeration must see it.


def redraws_after_rejection(logits: torch.Tensor, law: SamplingLaw, u: torch.Tensor, proposal: PointMass) -> Verified:
    """Accepts with probability p(x), then draws the recovered token from p itself, not from p without x."""
    probs = target_probs(logits, law)
    emitted: list[int] = []
    for i, token in enumerate(proposal.token_ids):
        coin = float(u[i])
        if coin < float(probs[i, token]):
            emitted.append(token)
            continue
        # The rest of the coin is a fresh uniform number, used on the whole law.
        rest = (coin - float(probs[i, token])) / (1 - float(probs[i, token]))
        return Verified((*emitted, int(choose(logits[i : i + 1], law, torch.tensor([rest]))[0])))
    return Verified((*emitted, int(choose(logits[-1:], law, u[-1:])[0])))


def accepts_what_is_likely(logits: torch.Tensor, law: SamplingLaw, u: torch.Tensor, proposal: PointMass) -> Verified:
    """Accepts any draft token whose probability is over a threshold, as lossy acceptance does."""
    probs = target_probs(logits, law)
    drawn = choose(logits, law, u).tolist()
    emitted: list[int] = []
    for i, token in enumerate(proposal.token_ids):
        if float(probs[i, token]) < 0.3 and drawn[i] != token:
            return Verified((*emitted, drawn[i]))
        emitted.append(token)
    return Verified((*emitted, drawn[-1]))


def reads_the_row_before(logits: torch.Tensor, law: SamplingLaw, u: torch.Tensor, proposal: PointMass) -> Verified:
    """Uses each position's law one position too late."""
    return verify(torch.cat([logits[:1], logits[:-1]]), law, u, proposal)


def ignores_temperature(logits: torch.Tensor, law: SamplingLaw, u: torch.Tensor, proposal: PointMass) -> Verified:
    """Verifies by argmax whatever the temperature, as one runtime does on a CPU."""
    return verify(logits, SamplingLaw(0.0), u, proposal)


@pytest.mark.parametrize(
    "mutant", [redraws_after_rejection, accepts_what_is_likely, reads_the_row_before, ignores_temperature]
)
def test_mutants_are_caught(mutant: Verify) -> None:
    """A wrong rule shows as an error far above the tolerance."""
    assert largest_error(RANDOM, SamplingLaw(0.8), fixed_draft(2, 2), mutant) > 1e-3


def test_a_dropped_bonus_is_caught() -> None:
    """Forgetting the bonus token does not bend the law, so its loss is counted: fewer tokens per step."""

    def drops_bonus(logits: torch.Tensor, law: SamplingLaw, u: torch.Tensor, proposal: PointMass) -> Verified:
        verified = verify(logits, law, u, proposal)
        is_all = verified.num_accepted == len(proposal) > 0
        return Verified(verified.token_ids[:-1]) if is_all else verified

    logits = torch.zeros(3, V)
    emitted = [rule(logits, SamplingLaw(0.0), torch.zeros(3), PointMass((0, 0))) for rule in (verify, drops_bonus)]
    assert [len(e.token_ids) for e in emitted] == [3, 2]
