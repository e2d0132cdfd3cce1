"""Which sequences run in a step, and with how many rows. Owns the queues and who holds cache blocks; no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.cost import CostTable
from outrider.engine.cache_pool import CachePool
from outrider.engine.sequence import Finish, Sequence, SequenceState
from outrider.engine.trim import trim
from outrider.speculation.proposal import NO_DRAFT, PointMass, Proposal, TopKTree


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's part of a step: prompt rows, or the last committed token and its drafts."""

    sequence: Sequence
    token_ids: tuple[int, ...]
    proposal: Proposal
    num_logits: int

    @property
    def points(self) -> tuple[int, ...]:
        """Hidden states that the sequence's drafter wants of these rows."""
        return () if self.sequence.drafter is None else self.sequence.drafter.points


class Scheduler:
    """First come, first served: running and then waiting sequences are always in order of arrival.

    A sequence starts when a slot and the blocks of its text are free; it takes more blocks as it grows. When they run
    out, the newest running sequence goes back to the front of the queue and is computed again later.
    """

    def __init__(
        self,
        pool: CachePool,
        max_running: int,
        max_prefill_rows: int,
        max_step_rows: int,
        cost: CostTable | None = None,
    ) -> None:
        self._pool = pool
        self._max_running = max_running
        self._max_prefill_rows = max_prefill_rows
        self._max_step_rows = max_step_rows
        self._cost = cost
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place or for memory."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Behind those that wait."""
        self._waiting.append(sequence)

    def schedule(self) -> list[Work]:
        """Work of the next step: a row of every decoding sequence, then prompt rows, and drafts in what is left."""
        if not self._preempt_for_decode_rows():
            self._start_waiting()
        prefill = self._prefill_work()
        decoding = [s for s in self._running if s.state is SequenceState.DECODING]
        return self._decode_work(decoding, sum(len(work.token_ids) for work in prefill)) + prefill

    def settle(self, work: list[Work]) -> None:
        """After a step: what it committed may be reused, and finished sequences give back what they hold."""
        for sequence in (item.sequence for item in work):
            assert sequence.cache is not None
            self._pool.remember(sequence.cache, sequence.token_ids)
            if sequence.state is SequenceState.FINISHED:
                self._free(sequence)
            elif sequence.state is SequenceState.PREFILLING and not sequence.num_unread:
                sequence.state = SequenceState.DECODING  # read again after a preemption
        self._running = [s for s in self._running if s.state is not SequenceState.FINISHED]

    def abort(self, rid: str, finish: Finish) -> Sequence | None:
        """End the sequence with exactly this id, waiting or running, and free it at once; None when there is none."""
        found = next((s for s in self if s.request.rid == rid), None)
        if found is not None:
            self._end(found, finish)
        return found

    def expire(self, now_s: float) -> list[Sequence]:
        """End and give the sequences whose deadline has passed, waiting or running."""
        expired = [s for s in self if s.request.deadline_s is not None and s.request.deadline_s <= now_s]
        for sequence in expired:
            self._end(sequence, Finish("abort", message="the request's deadline has passed", status=408))
        return expired

    def _end(self, sequence: Sequence, finish: Finish) -> None:
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._free(sequence)
        sequence.finish = finish
        sequence.state = SequenceState.FINISHED

    def _preempt_for_decode_rows(self) -> bool:
        """Make room for one more position of every decoding sequence; whether that took a preemption."""
        before = self.num_preemptions
        for sequence in list(self._running):
            while sequence.state is SequenceState.DECODING and not self._has_grown(sequence, 1):
                self._preempt_newest()
        return self.num_preemptions > before

    def _has_grown(self, sequence: Sequence, num_rows: int) -> bool:
        assert sequence.cache is not None
        return self._pool.grow(sequence.cache, sequence.cache.length + num_rows)

    def _preempt_newest(self) -> None:
        sequence = self._running.pop()
        self._free(sequence)
        sequence.state = SequenceState.WAITING
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            # One spare block for each running sequence keeps a newcomer from being preempted at once.
            cache = self._pool.allocate(
                sequence.token_ids,
                salt=sequence.request.cache_salt,
                num_expected=sequence.request.capacity,
                num_spare=len(self._running),
            )
            if cache is None:
                return
            self._running.append(self._waiting.popleft())
            sequence.cache = cache
            if sequence.num_cached is None:
                sequence.num_cached = cache.length
            sequence.state = SequenceState.PREFILLING if sequence.num_unread else SequenceState.DECODING

    def _prefill_work(self) -> list[Work]:
        work: list[Work] = []
        budget = self._max_prefill_rows
        for sequence in self._running:
            if sequence.state is SequenceState.PREFILLING and budget > 0:
                work.append(self._prefill(sequence, budget))
                budget -= len(work[-1].token_ids)
        return work

    @staticmethod
    def _prefill(sequence: Sequence, budget: int) -> Work:
        assert sequence.cache is not None
        start, count = sequence.cache.length, min(sequence.num_unread, budget)
        is_last = start + count == len(sequence.token_ids)
        return Work(sequence, tuple(sequence.token_ids[start : start + count]), NO_DRAFT, 1 if is_last else 0)

    def _decode_work(self, decoding: list[Sequence], num_prompt_rows: int) -> list[Work]:
        """Drafts are cut by their number and shape alone, and by chances where nothing was drawn: which tokens were
        drawn has no say in what is verified."""
        proposals = [sequence.propose() for sequence in decoding]
        budget = max(0, self._max_step_rows - len(decoding) - num_prompt_rows)
        counts = shares([len(p) for p in proposals], budget)
        drafts = [p.only(range(count)) for p, count in zip(proposals, counts, strict=True)]
        work = []
        for sequence, proposal, nodes in zip(
            decoding, drafts, self._worthwhile(decoding, drafts, num_prompt_rows), strict=True
        ):
            assert sequence.cache is not None
            room = self._pool.largest(sequence.cache) - sequence.cache.length - 1
            kept = sequence.fit(proposal.only(nodes[:room]))
            has_grown = self._has_grown(sequence, len(kept) + 1)
            assert has_grown, (sequence.request.rid, len(kept), room)
            work.append(Work(sequence, (sequence.token_ids[-1], *kept.token_ids), kept, len(kept) + 1))
        return work

    def _worthwhile(self, decoding: list[Sequence], drafts: list[Proposal], num_prompt_rows: int) -> list[list[int]]:
        """The draft nodes that are expected to pay for their rows, by the measured cost of a round."""
        cost = self._cost
        if cost is None or not any(map(len, drafts)):
            return [list(range(len(proposal))) for proposal in drafts]
        context = sum(len(sequence.token_ids) for sequence in decoding) / len(decoding)
        shapes = [proposal.parents for proposal in drafts]
        acceptance = [
            proposal.chances
            if isinstance(proposal, PointMass | TopKTree) and proposal.chances is not None
            else sequence.acceptance
            for sequence, proposal in zip(decoding, drafts, strict=True)
        ]
        return trim(shapes, acceptance, lambda rows: cost.at(len(decoding), rows, context), num_prompt_rows)

    def _free(self, sequence: Sequence) -> None:
        assert sequence.cache is not None
        self._pool.free(sequence.cache)
        sequence.cache = None


def shares(wanted: list[int], budget: int) -> list[int]:
    """Each gets what it wants up to a common level, as high as the budget allows; leftovers go to the first."""
    given = [0] * len(wanted)
    unserved = [i for i, count in enumerate(wanted) if count]
    while unserved and budget:
        level = max(1, budget // len(unserved))
        for i in unserved:
            more = min(level, wanted[i] - given[i], budget)
            given[i] += more
            budget -= more
        unserved = [i for i in unserved if given[i] < wanted[i]]
    return given
