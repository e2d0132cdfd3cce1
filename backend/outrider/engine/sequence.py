"""One running request inside the engine: its tokens, its limits, its counts, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider.core import SpecStats
from outrider.engine.calls import CallReader
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.grammar import Grammar, GrammarState
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.stops import StopStrings
from outrider.engine.tokenizer import Detokenizer
from outrider.policy.plan import Plan
from outrider.speculation.noise import Noise
from outrider.speculation.proposal import NO_DRAFT, Proposal, SampledChain, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw

#: What is assumed of a drafter before its first step, and how many draft tokens that assumption is worth.
PRIOR_ACCEPTANCE, PRIOR_WEIGHT = 0.6, 4.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a caller wants, already tokenised and checked."""

    rid: str
    prompt_ids: tuple[int, ...]
    law: SamplingLaw
    max_new_tokens: int
    plan: Plan
    seed: int
    """Every request has one; a request that gave none got a random one."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    prediction_ids: tuple[int, ...] | None = None
    """The caller's guess of the answer; None when there is none."""
    cache_salt: str = ""
    """Only requests of equal salt reuse each other's cached beginnings; with one, they learn from answers too, unless
    the plan says no."""
    deadline_s: float | None = None
    """On the monotonic clock; the request ends there, waiting or running."""
    grammar: Grammar | None = None
    num_top_logprobs: int | None = None
    """Most probable tokens reported beside each emitted one; None when no log probabilities were asked for."""
    is_seeded: bool = True
    """Whether the caller gave the seed: then the text depends on nothing but it and the target's law."""
    ends_with_call: bool = False
    """Whether the first call of a tool ends the answer."""

    def noise_at(self, position: int) -> Noise:
        """The noise of a step whose first token has this output position."""
        return Noise(self.seed, position, self.is_seeded)

    @property
    def capacity(self) -> int:
        """Cache positions needed at most: drafts never reach past the last token that may be emitted."""
        return len(self.prompt_ids) + self.max_new_tokens


class SequenceState(Enum):
    """Life of a sequence."""

    WAITING = "waiting"  # admitted to the queue, or back in it when blocks ran out; holds nothing
    PREFILLING = "prefilling"  # has a cache, but tokens that it needs in there are still unread
    DECODING = "decoding"  # emits tokens
    FINISHED = "finished"  # ended; its cache is given back


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. `kind` is SGLang's word: stop, length or abort."""

    kind: str
    matched: int | str | None = None
    message: str | None = None
    status: int = 200


@dataclass(slots=True)
class Sequence:
    """State of one request; derived quantities are properties."""

    request: GenerateRequest
    detokenizer: Detokenizer
    stops: StopStrings
    drafter: GuardedDrafter | None
    """None when the plan is off."""
    grammar: GrammarState | None = None
    calls: CallReader | None = None
    """Reads along for the call that ends the answer; None when none does."""
    state: SequenceState = SequenceState.WAITING
    cache: SequenceCache | None = None
    token_ids: list[int] = field(default_factory=list)
    """Prompt and output."""
    num_cached: int | None = None
    """Prompt tokens that were found in the cache; None before the first start."""
    finish: Finish | None = None
    num_proposed: int = 0
    num_rejections: int = 0
    """Draft tokens that were tried and rejected."""
    histogram: list[int] = field(default_factory=list)
    """Entry i counts verify steps that emitted i accepted drafts; empty when the plan is off."""
    by_draft: list[int] = field(default_factory=list)
    """Entry i counts verify steps that emitted the draft which was the i-th likeliest of its proposal."""

    def __post_init__(self) -> None:
        self.token_ids.extend(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be written."""
        return self.request.max_new_tokens - self.num_output

    @property
    def num_unread(self) -> int:
        """Rows before it decodes: the prompt's; after a preemption all but the last token, which is a decode row."""
        assert self.cache is not None
        return len(self.token_ids) - (1 if self.num_output else 0) - self.cache.length

    @property
    def stats(self) -> SpecStats | None:
        """None when no step was verified, as when the plan is off or the first token ended the answer."""
        if not any(self.histogram):
            return None
        return SpecStats(
            num_verify_steps=sum(self.histogram),
            num_accepted=sum(i * n for i, n in enumerate(self.histogram)),
            histogram=tuple(self.histogram),
            num_proposed=self.num_proposed,
            by_draft=tuple(self.by_draft),
        )

    @property
    def num_accepted(self) -> int | None:
        """Draft tokens that were accepted so far; None when the plan is off."""
        return None if self.drafter is None else sum(i * n for i, n in enumerate(self.histogram))

    @property
    def acceptance(self) -> float:
        """Estimated chance that a draft token is accepted when it is tried; from earlier steps only.

        What was not tried says nothing: what follows a rejected token, and siblings after an accepted one.
        """
        num_accepted = sum(i * n for i, n in enumerate(self.histogram))
        seen = num_accepted + self.num_rejections
        return (num_accepted + PRIOR_ACCEPTANCE * PRIOR_WEIGHT) / (seen + PRIOR_WEIGHT)

    @property
    def num_drafter_failures(self) -> int:
        """How often its drafter has failed."""
        return 0 if self.drafter is None else self.drafter.num_failures

    def propose(self) -> Proposal:
        """Draft tokens for the next step, never more than could still be emitted before the last one.

        Of those that the text determines only what fits the grammar. Drawn ones are whole: how many fit depends on
        which were drawn, and what is verified must not, so the step cuts them by their shape first and then `fit`s.
        """
        if self.drafter is None:
            return NO_DRAFT
        proposal = self.drafter.propose(min(self.request.plan.k, self.num_remaining - 1))
        return proposal if isinstance(proposal, SampledChain | SampledTree) else self.fit(proposal)

    def fit(self, proposal: Proposal) -> Proposal:
        """The proposal without what the grammar makes unreachable."""
        return proposal if self.grammar is None else self.grammar.prune(proposal)

    def count_verify(self, proposal: Proposal, path: tuple[int, ...], num_emitted: int) -> None:
        """Count a step in which the nodes in `path` were accepted, from the root on.

        What was accepted behind the end of the answer was not emitted, and counts as any other wasted draft.
        """
        if self.drafter is None:
            return
        accepted_below = dict(zip((-1, *path), path, strict=False))
        self.num_proposed += len(proposal)
        self.num_rejections += sum(
            node < accepted_below.get(parent, len(proposal))
            for node, parent in enumerate(proposal.parents)
            if parent == -1 or parent in path
        )
        num_accepted = min(len(path), num_emitted)
        self.histogram.extend([0] * (num_accepted + 1 - len(self.histogram)))
        self.histogram[num_accepted] += 1
        for rank in _ranks(proposal, path[:num_accepted]):
            self.by_draft.extend([0] * (rank + 1 - len(self.by_draft)))
            self.by_draft[rank] += 1

    def append(self, emitted: tuple[int, ...]) -> str:
        """Take emitted tokens up to the one that ends the answer; returns the text that may be shown."""
        text = ""
        for token_id in emitted:
            if self.grammar is not None and not self.grammar.accept(token_id):
                self._end(Finish("abort", message=f"the grammar cannot go on: {self.grammar.error}", status=500))
                return text + self.stops.flush()
            self.token_ids.append(token_id)
            if self.drafter is not None:
                self.drafter.observe(token_id)
            if token_id in self.request.stop_token_ids:
                self._end(Finish("stop", matched=token_id))
            else:
                piece = self.stops.append(self.detokenizer.append(token_id))
                text += piece
                if self.stops.matched is not None:
                    self._end(Finish("stop", matched=self.stops.matched))
                elif self._is_complete(piece):
                    self._end(Finish("stop"))
                elif self.num_remaining == 0:
                    self._end(Finish("length"))
            if self.finish is not None:
                return text + self.stops.flush()
        return text

    def _is_complete(self, piece: str) -> bool:
        """Whether, with this text, the grammar or the one allowed call has come to its end."""
        if self.calls is not None and self.calls.append(piece)[1]:
            return True
        return self.grammar is not None and self.grammar.is_complete

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        self.state = SequenceState.FINISHED


def _ranks(proposal: Proposal, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Their places when all nodes stand likeliest first, as they do where the drafter gives no chances."""
    chances = proposal.chances if isinstance(proposal, TopKTree) else None
    if chances is None:
        return nodes
    order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
    return tuple(order.index(node) for node in nodes)
