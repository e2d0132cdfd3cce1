"""Drafts a chain token by token with a model: a small one, or the target without some of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.kv_cache import SequenceCache
from outrider.speculation.noise import Noise
from outrider.speculation.proposal import NO_DRAFT, PointMass, Proposal, SampledChain
from outrider.speculation.target import SamplingLaw, Target

#: Segments -> logits [rows with logits, V], as `LlamaModel.forward`.
Forward = Callable[[list[Segment]], torch.Tensor]
#: Rows that one proposal may read of a text that the model has not seen: a long prompt is read over several steps, so
#: that no step holds up the others for long.
MAX_CATCH_UP = 256


class ModelChainDrafter:
    """Keeps the model's own cache in step with the text. Greedy for greedy requests, else sampled.

    A sampled draft is drawn from the draft model's law under the request's temperature and filters, by the request's
    own noise: with a seed it is the target's, so that both mostly pick the same token.
    """

    def __init__(
        self,
        forward: Forward,
        memory: DraftMemory,
        max_tokens: int,
        prompt_ids: Sequence[int],
        law: SamplingLaw,
        noise_at: Callable[[int], Noise],
        vocab_size: int,
    ) -> None:
        """`max_tokens` is the longest text that the model can take and the request may have; `noise_at` gives the
        noise of an output position; `vocab_size` is the target's, draft logits are cut or padded to it."""
        self._forward = forward
        self._memory = memory
        self._cache: SequenceCache | None = None
        """None until the first proposal: a request that waits holds no memory."""
        self._max_tokens = max_tokens
        self._tokens = list(prompt_ids)
        self._law = SamplingLaw(law.temperature, law.top_k, law.top_p, law.min_p)
        self._noise_at = noise_at
        self._num_prompt = len(prompt_ids)
        self._vocab_size = vocab_size
        self._drafted: tuple[int, ...] = ()
        """The last proposal; its tokens but the last are in the cache, from `_drafted_at` on."""
        self._drafted_at = 0

    def observe(self, token_id: int) -> None:
        """See `Drafter`; read at the next proposal."""
        self._tokens.append(token_id)

    def propose(self, k: int) -> Proposal:
        """A chain of the draft model; nothing when the text outgrew its context or memory is short."""
        k = min(k, self._max_tokens - len(self._tokens))
        if k < 1:  # the text has outgrown the draft model's context
            return NO_DRAFT
        cache = self._cache = self._cache or self._memory.take(self._max_tokens)
        if cache is None:
            return NO_DRAFT
        self._roll_back(cache)
        pending = self._tokens[cache.length :]
        if len(pending) > MAX_CATCH_UP:
            self._forward([Segment(cache, tuple(pending[:MAX_CATCH_UP]), 0)])
            self._drafted, self._drafted_at = (), cache.length
            return NO_DRAFT
        return self._chain(cache, pending, k)

    def free(self) -> None:
        """Gives back the draft model's cache."""
        if self._cache is not None:
            self._memory.give_back(self._cache)
            self._cache = None

    def _chain(self, cache: SequenceCache, pending: Sequence[int], k: int) -> PointMass | SampledChain:
        logits = self._next_logits(cache, pending)
        noise = self._noise_at(len(self._tokens) - self._num_prompt)
        tokens, laws = [], []
        for depth in range(k):
            token, probs = self._draw(logits, noise, depth)
            tokens.append(token)
            laws.append(probs)
            if len(tokens) < k:
                logits = self._next_logits(cache, [token])
        self._drafted, self._drafted_at = tuple(tokens), len(self._tokens)
        if self._law.is_greedy:
            return PointMass(self._drafted)
        return SampledChain(self._drafted, torch.stack(laws))

    def _roll_back(self, cache: SequenceCache) -> None:
        """Keep of the cached drafts those that were committed; the text's last token is always read again."""
        valid = min(cache.length, self._drafted_at)
        for drafted, token in zip(self._drafted, self._tokens[self._drafted_at :], strict=False):
            if drafted != token:
                break
            valid += 1
        cache.truncate(min(valid, cache.length, len(self._tokens) - 1))

    def _next_logits(self, cache: SequenceCache, tokens: Sequence[int]) -> torch.Tensor:
        """[1, V] of the target's vocabulary, after reading `tokens`; -inf for tokens that the model does not have."""
        logits = self._forward([Segment(cache, tuple(tokens), 1)])[:, : self._vocab_size]
        missing = self._vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits

    def _draw(self, logits: torch.Tensor, noise: Noise, depth: int) -> tuple[int, torch.Tensor]:
        """A token and the law [V] that it was drawn from."""
        probs = Target(logits, self._law).probs(0, ())
        token = int(logits.argmax()) if self._law.is_greedy else noise.draft(depth, probs)[0]
        return token, probs
