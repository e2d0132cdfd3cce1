"""One engine step: schedule, propose, one target forward over all rows, verify, commit, emit. Knows no threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.core import SpecStats
from outrider.cost import CostTable
from outrider.engine.attention import Segment
from outrider.engine.attention.choice import Attention, attention_for
from outrider.engine.cache_pool import CachePool
from outrider.engine.calls import CallReader
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.sources import DEFAULT_OPTIONS, DrafterSources, DraftOptions
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.kv_cache import BLOCK_SIZE, blocks_for
from outrider.engine.logprobs import TokenLogprob, token_logprobs
from outrider.engine.model import LlamaModel
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.sequence import Finish, GenerateRequest, Sequence, SequenceState
from outrider.engine.stops import StopStrings
from outrider.engine.taps import Taps
from outrider.engine.tokenizer import Detokenizer, Tokenizer
from outrider.errors import ContextLengthExceeded, ModelError
from outrider.speculation.proposal import SampledTree, TopKTree
from outrider.speculation.target import History, Target
from outrider.speculation.typical import typical_acceptance
from outrider.speculation.verify import Rule, verify

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of an engine."""

    max_running: int = 16
    max_total_tokens: int = 32768
    context_length: int | None = None
    max_prefill_rows: int = 128
    """Prompt rows per step; keeps a step short enough that others' tokens and cancellations are not held up."""
    max_step_rows: int = 256
    """Drafts fill a step up to here, after one row of each decoding request and the prompt rows."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one step did for one request."""

    rid: str
    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None = None
    stats: SpecStats | None = None
    """On the last output, when speculation was on and at least one step was verified."""
    num_drafter_failures: int = 0
    """On the last output: faults inside the drafter, after the first of which the request had no drafts."""
    num_cached: int = 0
    """Prompt tokens that did not have to be computed."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token, when they were asked for."""
    near_ties: tuple[int, ...] | None = ()
    """Output positions of this step's tokens that rounding could have changed: there, the same seed may part from an
    equal request that ran in other company. None, unknown, for tokens that rejection chose, which promise only a law,
    and where the model does not compute in float32, whose rounding alone was measured."""

    num_accepted: int | None = None
    """Draft tokens that were accepted so far; None when nothing is speculated."""

    def merged(self, later: Output) -> Output:
        """This output and the one that followed it."""
        return replace(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            near_ties=None if self.near_ties is None or later.near_ties is None else self.near_ties + later.near_ties,
        )


class Engine:
    """Weights, cache and sequences of one model. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        folder: Path,
        limits: EngineLimits,
        options: DraftOptions = DEFAULT_OPTIONS,
        cost: CostTable | None = None,
        attention_of: Callable[[ModelConfig], Attention] = attention_for,
    ) -> None:
        """With a cost table, drafts that do not pay for their rows are not verified.

        `attention_of` chooses attention, and with it device and type.
        """
        self.model = LlamaModel(folder, attention_of)
        self.tokenizer = Tokenizer(folder)
        own = self.model.config.context_length
        self.pool = CachePool(self.model.config, limits.max_total_tokens, self.model.placement)
        self.context_length = min(limits.context_length or own, own, self.pool.num_positions)
        if self.tokenizer.vocab_size > self.model.config.vocab_size:
            raise ModelError(
                f"{folder}: the tokenizer has {self.tokenizer.vocab_size} tokens, the model "
                f"{self.model.config.vocab_size}"
            )
        max_positions = limits.max_running * blocks_for(self.context_length) * BLOCK_SIZE
        self.drafters = DrafterSources(self.model, self.tokenizer, options, max_positions, cost)
        config = self.model.config
        self._is_lossy = options.is_lossy
        self.grammars = GrammarCompiler(self.tokenizer, config.vocab_size, config.eos_token_ids)
        self.cost = None if cost is None else _known(cost, self.drafters)
        self.scheduler = Scheduler(self.pool, limits.max_running, limits.max_prefill_rows, limits.max_step_rows, cost)

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return self.scheduler.num_running + self.scheduler.num_waiting > 0

    @property
    def memory(self) -> dict[str, int]:
        """Bytes at most, of the target: its packed weights and the pool. Drafting models' are in `drafters.info`."""
        pool = self.pool.num_positions * self.model.cache_bytes_per_token
        return {"weight_bytes": self.model.packed_bytes, "max_cache_bytes": pool}

    def check(self, request: GenerateRequest, param: str) -> None:
        """ContextLengthExceeded, naming `param`, when prompt and answer do not fit; callable from any thread.

        InvalidRequest when the plan's drafter cannot run here.
        """
        self.drafters.check(request)
        if request.capacity > self.context_length:
            raise ContextLengthExceeded(
                f"the prompt has {len(request.prompt_ids)} tokens and up to {request.max_new_tokens} were asked for, "
                f"but the context holds {self.context_length}",
                param=param,
            )

    def add(self, request: GenerateRequest, drafter: GuardedDrafter | None = None) -> None:
        """Queue a checked request, with its plan's drafter unless another is given."""
        drafter = drafter or self.drafters.make(request)
        grammar = None if request.grammar is None else request.grammar.start()
        stops = StopStrings(request.stop)
        calls = CallReader(is_single=True) if request.ends_with_call else None
        self.scheduler.add(Sequence(request, Detokenizer(self.tokenizer), stops, drafter, grammar, calls))

    def abort(self, rid: str, finish: Finish) -> Output | None:
        """End a request now; its last output, or None when it is not here."""
        sequence = self.scheduler.abort(rid, finish)
        return None if sequence is None else self._output(sequence)

    def expire(self, now_s: float) -> list[Output]:
        """End the requests whose deadline, on the monotonic clock, has passed; their last outputs."""
        return [self._output(sequence) for sequence in self.scheduler.expire(now_s)]

    def step(self) -> list[Output]:
        """Run one step; outputs of the sequences that emitted tokens."""
        work = self.scheduler.schedule()
        if not work:
            return []
        outputs = []
        taps = Taps(point for item in work for point in item.points)
        logits = self.model.forward([self._segment(w) for w in work], taps=taps)
        row = first = 0
        for item in work:
            if item.num_logits:
                outputs.append(self._commit(item, logits[row : row + item.num_logits], taps, first))
                row += item.num_logits
            else:
                self._show_features(item, taps, first)
            first += len(item.token_ids)
        self.scheduler.settle(work)
        return outputs

    @staticmethod
    def _segment(work: Work) -> Segment:
        assert work.sequence.cache is not None
        parents = work.proposal.parents if isinstance(work.proposal, TopKTree | SampledTree) else None
        return Segment(work.sequence.cache, work.token_ids, work.num_logits, parents)

    def _rule(self, request: GenerateRequest) -> Rule:
        """How this request's drafts are verified."""
        is_typical = self._is_lossy and request.plan.drafter == "medusa" and not request.law.is_greedy
        return typical_acceptance if is_typical else verify

    @staticmethod
    def _show_features(work: Work, taps: Taps, first_row: int, path: tuple[int, ...] = ()) -> None:
        """Give the drafter the states of the rows that stay in the cache: of drafts, those in `path`."""
        drafter, cache = work.sequence.drafter, work.sequence.cache
        if drafter is None or not drafter.points:
            return
        assert cache is not None
        num_read = len(work.token_ids) - len(work.proposal)
        rows = [*range(num_read), *(num_read + node for node in path)]
        features = taps.features(drafter.points, [first_row + row for row in rows])
        drafter.observe_features(cache.length - len(rows), features)

    @staticmethod
    def _output(sequence: Sequence, text: str = "", token_ids: tuple[int, ...] = ()) -> Output:
        """What a step did for a sequence; the last one lets its drafter go."""
        rid, num_cached = sequence.request.rid, sequence.num_cached or 0
        if sequence.finish is None:
            return Output(rid, text, token_ids, num_cached=num_cached)
        if sequence.drafter is not None:
            sequence.drafter.free()
        failures = sequence.num_drafter_failures
        return Output(rid, text, token_ids, sequence.finish, sequence.stats, failures, num_cached)

    def _commit(self, work: Work, logits: torch.Tensor, taps: Taps, first_row: int) -> Output:
        """Verify one sequence's rows, roll its cache back to what was accepted, and append the emitted tokens."""
        sequence, request = work.sequence, work.sequence.request
        position = sequence.num_output
        noise = request.noise_at(position)
        history = History(request.prompt_ids, sequence.token_ids[len(request.prompt_ids) :])
        masks = None if sequence.grammar is None else sequence.grammar.masks(work.proposal)
        verified = self._rule(request)(Target(logits, request.law, history, masks), noise, work.proposal)
        is_first = sequence.state is SequenceState.PREFILLING
        sequence.state = SequenceState.DECODING
        assert sequence.cache is not None
        sequence.cache.keep(len(work.proposal), verified.path)
        self._show_features(work, taps, first_row, verified.path)
        before = len(sequence.token_ids)
        text = sequence.append(verified.token_ids)
        emitted = tuple(sequence.token_ids[before:])
        if not is_first:
            sequence.count_verify(work.proposal, verified.path, len(emitted))
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.num_top_logprobs is not None:
            rows = [0, *(node + 1 for node in verified.path)][: len(emitted)]
            logprobs = token_logprobs(logits[rows], emitted, request.num_top_logprobs)
        near_ties: tuple[int, ...] | None = None
        if verified.near_ties is not None and self.model.placement.dtype is torch.float32:
            near_ties = tuple(position + depth for depth in verified.near_ties if depth < len(emitted))
        output = self._output(sequence, text, emitted)
        return replace(output, logprobs=logprobs, near_ties=near_ties, num_accepted=sequence.num_accepted)


def _known(cost: CostTable, drafters: DrafterSources) -> CostTable:
    """Without times of other weights or layers than these drafters have; the log says which."""
    known = cost.with_drafters(drafters.digests)
    if others := sorted((cost.drafters.keys() - known.drafters.keys()) & drafters.makers.keys()):
        log.warning(
            "measured with other weights or layers and left out: %s; outrider profile again", ", ".join(others)
        )
    return known
