"""EAGLE drafting: a head that continues the target's own states, in a dynamic tree, a static one, or a chain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from outrider.cost import DRAWN_FROM, MAX_DEPTH
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.eagle_tree import (
    TOP_K,
    USUAL_ACCURACY,
    Nodes,
    Ranks,
    best_shape,
    grow,
    parents_of,
)
from outrider.engine.drafters.model_chain import MAX_CATCH_UP
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.sequence import GenerateRequest
from outrider.speculation.proposal import NO_DRAFT, PointMass, Proposal, SampledChain, TopKTree
from outrider.speculation.target import SamplingLaw

#: An engine drafts in dynamic trees; the others are for `outrider bench heads`, which compares them.
Shape = Literal["dynamic", "static", "chain"]
#: Cache rows beside the text: the frontiers of one tree, or a chain.
EXTRA_ROWS = TOP_K * MAX_DEPTH


@dataclass(frozen=True, slots=True)
class EagleSettings:
    """How a head drafts."""

    shape: Shape = "dynamic"
    accuracy: tuple[tuple[float, ...], ...] = USUAL_ACCURACY
    """What the head usually gets right: shapes the static tree, and says when a growing one ends."""
    min_gain: float = 0.0
    """A draft step's cost in plain rounds: a growing tree ends where a step adds fewer accepted drafts than that."""


class EagleDrafter:
    """Keeps the head's cache in step with the text; rows of drafts, made of guessed states, are dropped each time.

    Position t of the head is the pair of the target's state at t and the token at t + 1. What a cached beginning
    holds has no states here, so the head starts to see the text after it.
    """

    def __init__(
        self, head: EagleHead, memory: DraftMemory, request: GenerateRequest, settings: EagleSettings
    ) -> None:
        self.points = head.points
        self._head = head
        self._memory = memory
        self._request = request
        self._settings = settings
        law = request.law
        self._law = SamplingLaw(law.temperature, law.top_k, law.top_p, law.min_p)
        self._tokens = list(request.prompt_ids)
        self._cache: SequenceCache | None = None
        self._first = 0
        """Position of the cache's first row."""
        self._num_read = 0
        """Rows of the cache that are of the text."""
        self._pending: list[torch.Tensor] = []
        """Features of the positions after those read, as they came."""
        self._last: torch.Tensor | None = None
        """[1, hidden]: the state after the last pair that was read."""

    def observe(self, token_id: int) -> None:
        """See `Drafter`."""
        self._tokens.append(token_id)

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """See `FeatureDrafter`; kept until the next proposal reads them."""
        end = self._end
        if len(self._tokens) >= self._memory.context_length:
            self._pending.clear()  # the text has outgrown the head, which is not asked again
        elif start > end:
            self._first, self._num_read, self._pending = start, 0, [features]
        elif start + features.shape[0] > end:
            self._pending.append(features[end - start :])

    @property
    def _end(self) -> int:
        """The first position without features."""
        return self._first + self._num_read + sum(features.shape[0] for features in self._pending)

    def propose(self, k: int) -> Proposal:
        """A chain or a tree of the head's; nothing while features are missing or memory is short."""
        k = min(k, self._memory.context_length - len(self._tokens))
        if k < 1 or self._end != len(self._tokens) - 1:
            return NO_DRAFT
        cache = self._cache = self._cache or self._memory.take(self._request.capacity + EXTRA_ROWS)
        if cache is None or not self._has_caught_up(cache):
            return NO_DRAFT
        assert self._last is not None
        if self._law.temperature >= DRAWN_FROM:
            return self._drawn_chain(cache, k)
        if self._settings.shape == "chain" or k == 1:
            return self._likeliest_chain(cache, k)
        return self._dynamic_tree(cache, k) if self._settings.shape == "dynamic" else self._static_tree(cache, k)

    def free(self) -> None:
        """Gives back the head's cache."""
        if self._cache is not None:
            self._memory.give_back(self._cache)
            self._cache = None

    def _has_caught_up(self, cache: SequenceCache) -> bool:
        """Read pairs of the text, of a long one a part."""
        cache.truncate(self._num_read)
        if self._pending:
            unread = self._pending[0] if len(self._pending) == 1 else torch.cat(self._pending)
            features, rest = unread[:MAX_CATCH_UP], unread[MAX_CATCH_UP:]
            start, count = self._first + self._num_read + 1, features.shape[0]
            self._last = self._head.read(cache, self._tokens[start : start + count], features)[-1:]
            self._num_read += count
            self._pending = [rest] if rest.shape[0] else []
        return not self._pending

    def _next(self, cache: SequenceCache, token_id: int, states: torch.Tensor) -> torch.Tensor:
        """The state after one more token of a chain."""
        visible = torch.ones(1, cache.length + 1, dtype=torch.bool)
        return self._head.step(cache, [token_id], states, [cache.length], visible)

    def _likeliest_chain(self, cache: SequenceCache, k: int) -> PointMass:
        states, tokens = self._last, list[int]()
        assert states is not None
        while True:
            tokens += self._head.vocabulary.tokens([int(self._head.logits(states).argmax())])
            if len(tokens) == k:
                return PointMass(tuple(tokens))
            states = self._next(cache, tokens[-1], states)

    def _drawn_chain(self, cache: SequenceCache, k: int) -> SampledChain:
        """From the request's law, by its own noise; how many are drawn does not depend on which."""
        noise = self._request.noise_at(len(self._tokens) - len(self._request.prompt_ids))
        vocabulary, states = self._head.vocabulary, self._last
        assert states is not None
        tokens, laws = list[int](), list[torch.Tensor]()
        while True:
            laws.append(vocabulary.law(self._head.logits(states)[0], self._law))
            tokens.append(noise.draft(len(tokens), laws[-1])[0])
            if len(tokens) == k:
                return SampledChain(tuple(tokens), torch.stack(laws))
            states = self._next(cache, tokens[-1], states)

    def _dynamic_tree(self, cache: SequenceCache, k: int) -> TopKTree:
        rows = _TreeRows(self._head, cache, self._num_read, self._last)
        assert self._last is not None
        settings = self._settings
        nodes = grow(self._head.logits(self._last)[0], rows.expand, k, settings.accuracy, settings.min_gain)
        kept = nodes.best(k)
        place = {-1: -1} | {node: i for i, node in enumerate(kept)}
        return TopKTree(
            tuple(self._head.vocabulary.tokens([nodes.tokens[node] for node in kept])),
            tuple(place[nodes.parents[node]] for node in kept),
            tuple(math.exp(nodes.scores[node]) for node in kept),
        )

    def _static_tree(self, cache: SequenceCache, k: int) -> TopKTree:
        """For the bench, one shape for all texts: at each depth the head ranks the children of nodes with some."""
        paths = best_shape(self._settings.accuracy, k)
        parents, nodes = parents_of(paths), Nodes()
        rows = _TreeRows(self._head, cache, self._num_read, self._last)
        assert self._last is not None
        number: dict[Ranks, int] = {(): -1}
        for depth in range(max(map(len, paths))):
            wanted = sorted({path[:-1] for path in paths if len(path) == depth + 1})
            above = [number[path] for path in wanted]
            logits = rows.expand(above, nodes) if depth else self._head.logits(self._last)
            values, ids = logits.log_softmax(dim=-1).topk(min(TOP_K, logits.shape[-1]), dim=-1)
            for i, path in enumerate(wanted):
                count = sum(other[:-1] == path for other in paths)
                for rank, node in enumerate(nodes.add(above[i], ids[i, :count].tolist(), values[i, :count].tolist())):
                    number[*path, rank] = node
        ids_of = self._head.vocabulary.tokens([nodes.tokens[number[path]] for path in paths])
        return TopKTree(tuple(ids_of), tuple(parents))


class _TreeRows:
    """Rows of a tree in the head's cache: each sees the text and its own ancestors."""

    def __init__(self, head: EagleHead, cache: SequenceCache, num_text: int, last: torch.Tensor | None) -> None:
        assert last is not None
        self._head, self._cache = head, cache
        self._row = {-1: 0}
        """Of a node that was expanded last, its place among these."""
        self._states = last
        self._visible = torch.ones(1, num_text, dtype=torch.bool)
        """[expanded last, cache.length]: which cached rows each sees."""
        self._position = num_text

    def expand(self, frontier: list[int], nodes: Nodes) -> torch.Tensor:
        """Logits [n, D] after each of these nodes of one depth, whose parents were expanded just before."""
        above, count = [self._row[nodes.parents[node]] for node in frontier], len(frontier)
        tokens = self._head.vocabulary.tokens([nodes.tokens[node] for node in frontier])
        self._visible = torch.cat([self._visible[above], torch.eye(count, dtype=torch.bool)], dim=1)
        positions = [self._position] * count
        self._states = self._head.step(self._cache, tokens, self._states[above], positions, self._visible)
        self._row = {node: row for row, node in enumerate(frontier)}
        self._position += 1
        return self._head.logits(self._states)
