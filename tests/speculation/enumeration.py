"""Exact integration over the random choices of a verification rule: every choice becomes a branch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from outrider.speculation.noise import Choice, Coins
from outrider.speculation.outcome import Verified
from outrider.speculation.proposal import PointMass, Proposal, SampledChain, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw, Target

V = 3
LENGTH = 3
T = TypeVar("T")
Prefix = tuple[int, ...]
Rule = Callable[[Target, Coins, Proposal], Verified]
Draft = Callable[["Branches", Prefix], Proposal]
Step = Callable[["Branches", Prefix], Verified]


@dataclass
class Branches:
    """Stands in for the noise: follows `script`, then takes first branches and notes the others in `others`."""

    script: tuple[int, ...] = ()
    is_seeded: bool = False
    weight: float = 1.0
    taken: list[int] = field(default_factory=list)
    others: list[tuple[int, ...]] = field(default_factory=list)
    depths: set[int] = field(default_factory=set)

    def choose(
        self, depth: int, probs: torch.Tensor, slack: float = 0.0, doubtful: torch.Tensor | None = None
    ) -> Choice:
        assert depth not in self.depths, "a position's noise decides one token"
        self.depths.add(depth)
        return Choice(self._branch(probs.tolist()))

    def accept(self, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0
        return bool(self._branch([1.0 - probability, probability]))

    def draw(self, weights: torch.Tensor) -> int:
        values = weights.tolist()
        total = sum(values)
        return self._branch([value / total for value in values])

    def _branch(self, probs: list[float]) -> int:
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice, *rest = [i for i, p in enumerate(probs) if p > 0.0]
            self.others += [(*self.taken, other) for other in rest]
        self.taken.append(choice)
        self.weight *= probs[choice]
        return choice


def integrate(run: Callable[[Branches], T], is_seeded: bool = False) -> Iterator[tuple[float, T]]:
    """Every outcome of `run` with its probability."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        coins = Branches(pending.pop(), is_seeded)
        outcome = run(coins)
        pending += coins.others
        yield coins.weight, outcome


def last_token(prefix: Prefix) -> Prefix:
    return prefix[-1:]


def whole_prefix(prefix: Prefix) -> Prefix:
    return prefix


def emitted_law(
    step: Step, state_of: Callable[[Prefix], Prefix] = last_token, is_seeded: bool = False
) -> dict[Prefix, float]:
    """Joint law of the first LENGTH tokens after state 0; `state_of` says what of the prefix a step depends on."""
    steps: dict[Prefix, dict[Prefix, float]] = {}
    done: dict[Prefix, float] = defaultdict(float)
    pending: list[tuple[Prefix, float]] = [((0,), 1.0)]
    while pending:
        prefix, weight = pending.pop()
        if len(prefix) > LENGTH:
            done[prefix[1 : LENGTH + 1]] += weight
            continue
        state = state_of(prefix)
        if state not in steps:
            law: dict[Prefix, float] = defaultdict(float)
            for probability, verified in integrate(lambda coins, p=prefix: step(coins, p), is_seeded):
                law[verified.token_ids] += probability
            steps[state] = law
        pending += [(prefix + tokens, weight * p) for tokens, p in steps[state].items()]
    return done


def plain_law(probs_after: Callable[[Prefix], torch.Tensor]) -> dict[Prefix, float]:
    """The same law when each token is drawn from the target's law after its prefix."""
    joint = {}
    for tokens in itertools.product(range(V), repeat=LENGTH):
        prefixes = [(0, *tokens[:i]) for i in range(LENGTH)]
        joint[tokens] = float(np.prod([float(probs_after(p)[t]) for p, t in zip(prefixes, tokens, strict=True)]))
    return joint


def largest_error(expected: dict[Prefix, float], found: dict[Prefix, float]) -> float:
    assert abs(sum(found.values()) - 1.0) < 1e-12
    return max(abs(expected[tokens] - found.get(tokens, 0.0)) for tokens in expected)


@dataclass(frozen=True)
class World:
    """A Markov target and a Markov drafter: row s of each [V, V] is the law after token s."""

    target: torch.Tensor
    draft: torch.Tensor

    @cached_property
    def logits(self) -> torch.Tensor:
        return self.target.log()

    def rows(self, prefix: Prefix, proposal: Proposal, law: SamplingLaw | None = None) -> Target:
        states = [prefix[-1], *proposal.token_ids]
        return Target(self.logits[states], law or SamplingLaw())

    def error(self, draft: Draft, rule: Rule, law: SamplingLaw | None = None, is_seeded: bool = False) -> float:
        """Largest difference between the law of what the whole algorithm emits and the target's."""

        def step(coins: Branches, prefix: Prefix) -> Verified:
            proposal = draft(coins, prefix)
            return rule(self.rows(prefix, proposal, law), coins, proposal)

        expected = plain_law(lambda prefix: self.rows(prefix, PointMass(()), law).probs(0, ()))
        return largest_error(expected, emitted_law(step, is_seeded=is_seeded))

    def mean_accepted(self, draft: Draft, rule: Rule, state: int = 0) -> float:
        def step(coins: Branches) -> int:
            proposal = draft(coins, (state,))
            return rule(self.rows((state,), proposal), coins, proposal).num_accepted

        return sum(weight * accepted for weight, accepted in integrate(step))

    def sampled_chain(self, length_after: Callable[[Prefix], int]) -> Draft:
        """Draws while fewer tokens are drafted than `length_after` says of the prefix and the drafted tokens."""

        def draft(coins: Branches, prefix: Prefix) -> SampledChain:
            tokens: Prefix = ()
            while len(tokens) < length_after(prefix[-1:] + tokens):
                tokens += (coins.draw(self.draft[(prefix[-1:] + tokens)[-1]]),)
            return SampledChain(tokens, self.draft[[*prefix[-1:], *tokens[:-1]][: len(tokens)]])

        return draft

    def sampled_tree(self, *widths: int, is_replaced: bool = False) -> Draft:
        """`widths[d]` children of every node of depth d, fewer where the law has not so many tokens."""

        def draft(coins: Branches, prefix: Prefix) -> SampledTree:
            def children(token: int, width: int) -> list[int]:
                found: list[int] = []
                weights = self.draft[token].clone()
                for _ in range(min(width, int(weights.count_nonzero()))):
                    found.append(coins.draw(weights))
                    if not is_replaced:
                        weights[found[-1]] = 0.0
                return found

            tokens, parents = grown(prefix[-1], widths, children)
            return SampledTree(tokens, parents, self.draft[[prefix[-1], *tokens]])

        return draft

    def top_tree(self, *widths: int) -> Draft:
        """The drafter's most probable tokens, `widths[d]` for every node of depth d."""

        def draft(_: Branches, prefix: Prefix) -> TopKTree:
            def children(token: int, width: int) -> list[int]:
                return [int(one) for one in self.draft[token].topk(width).indices]

            return TopKTree(*grown(prefix[-1], widths, children))

        return draft


def grown(root: int, widths: Sequence[int], children: Callable[[int, int], list[int]]) -> tuple[Prefix, Prefix]:
    """Tokens and parents of a tree, level by level: `children` gives those of a token, at most so many."""
    tokens: list[int] = []
    parents: list[int] = []
    level = [-1]
    for width in widths:
        start = len(tokens)
        for node in level:
            found = children(tokens[node] if node >= 0 else root, width)
            tokens += found
            parents += [node] * len(found)
        level = list(range(start, len(tokens)))
    return tuple(tokens), tuple(parents)


def point_mass(k: int, seed: int) -> Draft:
    """An arbitrary chain that depends on the last token only."""

    def draft(_: Branches, prefix: Prefix) -> PointMass:
        return PointMass(tuple(np.random.default_rng([seed, prefix[-1]]).integers(0, V, size=k).tolist()))

    return draft


def random_rows(seed: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).dirichlet([0.8] * V, size=V))


def _rows(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


_SPARSE = _rows([0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.25, 0.75])
_OTHER = _rows([0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0])
_FLAT = torch.full((V, V), 1.0 / V, dtype=torch.float64)
WORLDS = {
    "random": World(random_rows(1), random_rows(2)),
    "other random": World(random_rows(3), random_rows(4)),
    "identical": World(random_rows(5), random_rows(5)),
    "disjoint": World(_SPARSE, _OTHER),
    "zeros in target": World(_SPARSE, random_rows(6)),
    "zeros in draft": World(random_rows(7), _SPARSE),
    "ties": World(_FLAT, random_rows(8)),
    "flat both": World(_FLAT, _FLAT),
    "almost identical": World(random_rows(9), random_rows(9) * (1 - 1e-13) + 1e-13 / V),
}
