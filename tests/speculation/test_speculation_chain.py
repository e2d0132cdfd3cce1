"""Chain rules: exact for any law, block verification never accepts less, and known mistakes show."""

from __future__ import annotations

import pytest
import torch
from enumeration import WORLDS, Branches, Prefix, World, integrate, random_rows

from outrider.speculation.chain import block_verification, token_rejection
from outrider.speculation.noise import Coins
from outrider.speculation.outcome import Verified, likelihood_ratio
from outrider.speculation.proposal import PointMass, SampledChain
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.tree import sample_and_match

RULES = [token_rejection, block_verification, sample_and_match]
RANDOM = WORLDS["random"]
#: How many tokens a chain has, given the last committed token and what was drafted so far.
LENGTHS = {
    "none": lambda _: 0,
    "one": lambda _: 1,
    "two": lambda _: 2,
    "three": lambda _: 3,
    "by state": lambda drafted: drafted[0],
    "early stop": lambda drafted: 1 if drafted[-1] == 0 and len(drafted) > 1 else 3,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_chains_are_exact(world: World, rule) -> None:
    """To 1e-12, for no draft up to three, a varying number, and a stop that looks at earlier tokens only."""
    errors = {name: world.error(world.sampled_chain(length), rule) for name, length in LENGTHS.items()}
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("rule", RULES)
def test_filters_change_the_target_only(rule) -> None:
    """The draft law needs no filter: a token that the target's filter drops is rejected."""
    for law in (SamplingLaw(0.7, top_k=2), SamplingLaw(1.2, top_p=0.8, min_p=0.1), SamplingLaw(0.0)):
        assert RANDOM.error(RANDOM.sampled_chain(LENGTHS["two"]), rule, law) < 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_block_verification_accepts_at_least_as_much(seed: int) -> None:
    """In the mean over all draws, and strictly more somewhere."""
    world = World(random_rows(seed), random_rows(100 + seed))
    draft = world.sampled_chain(LENGTHS["three"])
    by_token, by_block = (world.mean_accepted(draft, rule) for rule in (token_rejection, block_verification))
    assert by_block >= by_token - 1e-12
    if seed == 0:
        assert by_block > by_token + 1e-3


def test_two_token_example_of_the_paper() -> None:
    """Target (1/3, 2/3), draft (2/3, 1/3), two drafts: 10/9 accepted token by token, 11/9 as a block."""
    world = World(
        torch.tensor([[1 / 3, 2 / 3, 0.0]] * 3, dtype=torch.float64),
        torch.tensor([[2 / 3, 1 / 3, 0.0]] * 3, dtype=torch.float64),
    )
    draft = world.sampled_chain(LENGTHS["two"])
    assert world.mean_accepted(draft, token_rejection) == pytest.approx(10 / 9, abs=1e-12)
    assert world.mean_accepted(draft, block_verification) == pytest.approx(11 / 9, abs=1e-12)


def test_for_deterministic_drafts_all_rules_accept_the_same() -> None:
    """With point masses as draft laws, blocks gain nothing over tokens, and both equal sample-and-match."""
    tokens = (1, 0, 2)
    one_hot = torch.eye(3, dtype=torch.float64)[list(tokens)]

    def accepted_law(rule) -> dict[int, float]:
        proposal = SampledChain(tokens, one_hot)
        law = dict.fromkeys(range(4), 0.0)
        for weight, verified in integrate(lambda coins: rule(RANDOM.rows((0,), proposal), coins, proposal)):
            law[verified.num_accepted] += weight
        return law

    by_token, by_block, by_match = (accepted_law(rule) for rule in RULES)
    assert by_block == pytest.approx(by_token, abs=1e-12)
    assert by_match == pytest.approx(by_token, abs=1e-12)


def test_rows_behind_an_impossible_token_are_not_read() -> None:
    """A token that the grammar forbids ends the chain; its row, where nothing is allowed, stays unread."""
    masks = torch.tensor([[True, False, True], [False] * 3, [False] * 3])
    proposal = SampledChain((1, 0), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    target = Target(torch.zeros(3, 3), SamplingLaw(), masks=masks)
    for rule in RULES:
        outcomes = {verified.token_ids for _, verified in integrate(lambda c, r=rule: r(target, c, proposal))}
        assert outcomes == {(0,), (2,)}


def test_a_draft_that_its_law_cannot_have_drawn_is_refused() -> None:
    """It would be accepted with certainty, and bend the law in silence."""
    with pytest.raises(ValueError, match="token 1 cannot have been drawn"):
        likelihood_ratio(torch.ones(3) / 3, torch.tensor([1.0, 0.0, 0.0]), 1)


# Mutants: each is a mistake that somebody has shipped; the enumeration must see it.


def recovers_from_the_target(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Draws the recovered token from the target's law, not from what the draft leaves of it."""
    tokens = proposal.token_ids
    for i, token in enumerate(tokens):
        probs = target.probs(i, tokens[:i])
        if not coins.accept(min(1.0, likelihood_ratio(probs, proposal.draft_probs[i], token))):
            return Verified((*tokens[:i], coins.draw(probs)), tuple(range(i)))
    return Verified((*tokens, coins.draw(target.probs(len(tokens), tokens))), tuple(range(len(tokens))))


def ignores_temperature(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Verifies by argmax whatever the temperature, as one runtime does on a CPU."""
    return sample_and_match(Target(target.logits, SamplingLaw(0.0)), coins, proposal)


def reads_the_row_before(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Uses each position's law one position too late."""
    late = torch.cat([target.logits[:1], target.logits[:-1]])
    return block_verification(Target(late, target.law), coins, proposal)


def accepts_what_is_likely(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Accepts any draft token over a threshold, as lossy acceptance does."""
    tokens = proposal.token_ids
    for i, token in enumerate(tokens):
        probs = target.probs(i, tokens[:i])
        if float(probs[token]) < 0.3 and (drawn := coins.draw(probs)) != token:
            return Verified((*tokens[:i], drawn), tuple(range(i)))
    return Verified((*tokens, coins.draw(target.probs(len(tokens), tokens))), tuple(range(len(tokens))))


@pytest.mark.parametrize(
    "mutant", [recovers_from_the_target, ignores_temperature, reads_the_row_before, accepts_what_is_likely]
)
def test_wrong_rules_are_caught(mutant) -> None:
    """A wrong rule shows as an error far above the tolerance."""
    assert RANDOM.error(RANDOM.sampled_chain(LENGTHS["two"]), mutant) > 1e-3


@pytest.mark.parametrize("rule", [token_rejection, block_verification])
def test_a_soft_law_for_an_argmax_draft_is_caught(rule) -> None:
    """A drafter that takes its argmax but hands over its softmax is wrong; as a point mass it is right."""

    def soft(_: Branches, prefix: Prefix) -> SampledChain:
        return SampledChain((int(RANDOM.draft[prefix[-1]].argmax()),), RANDOM.draft[[prefix[-1]]])

    def honest(coins: Branches, prefix: Prefix) -> PointMass:
        return PointMass(soft(coins, prefix).token_ids)

    assert RANDOM.error(soft, rule) > 1e-2
    assert RANDOM.error(honest, sample_and_match) < 1e-12


@pytest.mark.parametrize("rule", [token_rejection, block_verification])
def test_a_retrospective_k_is_caught(rule) -> None:
    """Whether a token is submitted may not depend on its value: a (0.70, 0.30) target becomes (0.85, 0.15)."""
    target = torch.tensor([[0.7, 0.3, 0.0]] * 3, dtype=torch.float64)
    world = World(target, torch.tensor([[0.5, 0.5, 0.0]] * 3, dtype=torch.float64))
    sampled = world.sampled_chain(LENGTHS["one"])

    def retrospective(coins: Branches, prefix: Prefix) -> SampledChain:
        proposal = sampled(coins, prefix)
        return proposal.only(range(1 if proposal.token_ids == (0,) else 0))

    def first_token(coins: Branches) -> int:
        proposal = retrospective(coins, (0,))
        return rule(world.rows((0,), proposal), coins, proposal).token_ids[0]

    law = [0.0, 0.0]
    for weight, token in integrate(first_token):
        law[token] += weight
    assert law == pytest.approx([0.85, 0.15], abs=1e-12)
    assert world.error(retrospective, rule) > 0.05
    assert world.error(retrospective, sample_and_match) < 1e-12, "the target's own choice is immune"


@pytest.mark.parametrize("rule", [token_rejection, block_verification])
def test_pruning_by_the_draft_s_own_probability_is_caught(rule) -> None:
    """Dropping sampled tokens of low draft probability bends the law."""
    sampled = RANDOM.sampled_chain(LENGTHS["two"])

    def pruned(coins: Branches, prefix: Prefix) -> SampledChain:
        proposal = sampled(coins, prefix)
        own = [float(row[token]) for row, token in zip(proposal.draft_probs, proposal.token_ids, strict=True)]
        return proposal.only(range(next((i for i, p in enumerate(own) if p < 0.4), 2)))

    assert RANDOM.error(pruned, rule) > 1e-3
