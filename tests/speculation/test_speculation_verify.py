"""The dispatch on a proposal's kind, and the production path with its real noise."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from enumeration import WORLDS, Branches, Prefix, World, integrate, point_mass, random_rows
from scipy import stats

from outrider.speculation.noise import Noise
from outrider.speculation.proposal import NO_DRAFT, PointMass, Proposal, SampledChain, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.verify import Verified, verify

RANDOM = WORLDS["random"]
NoisyDraft = Callable[[World, Noise, Prefix], Proposal]


def chain(world: World, noise: Noise, prefix: Prefix, k: int = 2) -> SampledChain:
    """A drafter's own loop, with the noise that it is given."""
    tokens: Prefix = ()
    for depth in range(k):
        tokens += (noise.draft(depth, world.draft[(prefix + tokens)[-1]])[0],)
    return SampledChain(tokens, world.draft[[prefix[-1], *tokens[:-1]]])


def tree(world: World, noise: Noise, prefix: Prefix) -> SampledTree:
    """Two children of the root, and one of each."""
    first = noise.draft(0, world.draft[prefix[-1]], 2)
    below = [noise.draft(1, world.draft[token], branch=i)[0] for i, token in enumerate(first)]
    tokens = (*first, *below)
    return SampledTree(tokens, (-1, -1, 0, 1)[: len(tokens)], world.draft[[prefix[-1], *tokens]])


def lookup(world: World, noise: Noise, prefix: Prefix) -> PointMass:
    return PointMass((prefix[0], prefix[-1]))


def top(world: World, noise: Noise, prefix: Prefix) -> TopKTree:
    proposal = world.top_tree(2, 1)(Branches(), prefix)
    assert isinstance(proposal, TopKTree)
    return proposal


def nothing(world: World, noise: Noise, prefix: Prefix) -> PointMass:
    return NO_DRAFT


DRAFTS = [chain, tree, lookup, top, nothing]


def generate(world: World, draft: NoisyDraft, seed: int, is_seeded: bool, num_tokens: int) -> Prefix:
    """Tokens after state 0, by as many verify steps as it takes."""
    prefix: Prefix = (0,)
    while len(prefix) <= num_tokens:
        noise = Noise(seed, len(prefix) - 1, is_seeded)
        proposal = draft(world, noise, prefix)
        prefix += verify(world.rows(prefix, proposal), noise, proposal).token_ids
    return prefix[1 : num_tokens + 1]


@pytest.mark.parametrize("is_seeded", [True, False], ids=["seeded", "unseeded"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_joint_law_with_real_noise(draft: NoisyDraft, is_seeded: bool) -> None:
    """G-test of three successive tokens; bounds hold for ten cases together."""
    num_samples = 2000
    counts = Counter(generate(RANDOM, draft, seed, is_seeded, 3) for seed in range(num_samples))
    cells = list(itertools.product(range(3), repeat=3))
    p = RANDOM.target
    expected = [float(p[0, a] * p[a, b] * p[b, c]) * num_samples for a, b, c in cells]
    result = stats.power_divergence([counts[cell] for cell in cells], expected, lambda_="log-likelihood")
    assert result.pvalue > 1e-3 / 10, result


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_seed_s_tokens_do_not_depend_on_the_drafter(draft: NoisyDraft) -> None:
    """With a seed, every kind of proposal gives plain decoding's own tokens."""
    for seed in range(20):
        assert generate(RANDOM, draft, seed, True, 30) == generate(RANDOM, nothing, seed, True, 30)


def test_not_even_a_drafter_that_knows_the_noise_changes_a_seed_s_tokens() -> None:
    """Choosing drafts and their number by what the target will choose changes the speed only."""

    def clairvoyant(world: World, noise: Noise, prefix: Prefix) -> PointMass:
        token = noise.choose(0, world.target[prefix[-1]]).token_id
        return PointMass((token, (token + 1) % 3) if token else ())

    for seed in range(20):
        assert generate(RANDOM, clairvoyant, seed, True, 30) == generate(RANDOM, nothing, seed, True, 30)


@pytest.mark.parametrize("name", ["random", "disjoint", "zeros in draft"])
def test_every_kind_is_exact_through_the_dispatch(name: str) -> None:
    """To 1e-12, seeded or not. Seeded, a draft is independent of the noise here; the tests above share it."""
    world = WORLDS[name]
    drafts = [world.sampled_chain(lambda _: 2), world.sampled_tree(2), world.top_tree(2, 1), point_mass(2, 1)]
    for is_seeded in (True, False):
        errors = [world.error(draft, verify, is_seeded=is_seeded) for draft in drafts]
        assert max(errors) < 1e-12, errors


@pytest.mark.parametrize("seed", range(3))
def test_unseeded_sampled_drafts_are_accepted_more_often_than_by_matching(seed: int) -> None:
    """What the rejection rules are for: the dispatch uses them where no seed forbids it."""
    world = World(random_rows(seed), random_rows(seed + 50))
    for draft in (world.sampled_chain(lambda _: 2), world.sampled_tree(2)):
        means = []
        for is_seeded in (False, True):

            def step(coins: Branches, draft=draft) -> int:
                proposal = draft(coins, (0,))
                return verify(world.rows((0,), proposal), coins, proposal).num_accepted

            means.append(sum(weight * accepted for weight, accepted in integrate(step, is_seeded)))
        assert means[0] > means[1] + 0.01, "an independent draft matches less often than it is accepted"


def test_greedy_matches_the_argmax_and_draws_nothing() -> None:
    """At temperature 0 a sampled chain is matched with the argmax, without a coin."""
    logits = torch.full((3, 4), -50.0)
    for row, token in enumerate((1, 2, 3)):
        logits[row, token] = 50.0
    flat = torch.full((2, 4), 0.25, dtype=torch.float64)
    for proposal in (PointMass((1, 2)), SampledChain((1, 2), flat), TopKTree((1, 2), (-1, 0))):
        coins = Branches()
        verified = verify(Target(logits, SamplingLaw(0.0)), coins, proposal)
        assert (verified.token_ids, verified.path, verified.num_accepted) == ((1, 2, 3), (0, 1), 2)
        assert coins.taken == []


def test_a_wrong_number_of_rows_is_refused() -> None:
    """Rows and drafts must fit."""
    with pytest.raises(ValueError, match="2 draft tokens need 3 rows, not 2"):
        verify(Target(torch.zeros(2, 3), SamplingLaw()), Noise(0, 0, True), PointMass((0, 1)))


def test_a_dropped_bonus_is_caught() -> None:
    """An outcome without the recovered or bonus token cannot be made; the tokens per step are accepted + 1."""
    with pytest.raises(AssertionError):
        Verified((1, 2), (0, 1))
    proposal = PointMass((1, 2))
    for _, verified in integrate(lambda coins: verify(RANDOM.rows((0,), proposal), coins, proposal)):
        assert len(verified.token_ids) == verified.num_accepted + 1


def test_neither_large_vocabularies_nor_the_rules_change_types() -> None:
    """Tokens are plain ints, as the engine's lists and JSON need them."""
    logits = torch.tensor(np.random.default_rng(0).normal(size=(3, 5000)), dtype=torch.float32)
    law = Target(logits, SamplingLaw(1.0, top_p=0.9))
    draft_probs = torch.stack([law.probs(0, ()), law.probs(1, (7,))])
    for proposal in (PointMass((7, 8)), SampledChain((int(draft_probs[0].argmax()), 7), draft_probs.clamp(min=1e-9))):
        verified = verify(law, Noise(1, 2, False), proposal)
        assert all(type(token) is int for token in verified.token_ids)
