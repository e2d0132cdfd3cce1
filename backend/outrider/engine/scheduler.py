"""Which sequences run in a step, and with how many rows. Owns the queues and the cache budget, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.engine.kv_cache import CachePool
from outrider.engine.sequence import Finish, Sequence, SequenceState
from outrider.speculation.proposal import NO_DRAFT, Proposal


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's part of a step: prompt rows, or the last committed token and its drafts."""

    sequence: Sequence
    token_ids: tuple[int, ...]
    proposal: Proposal
    num_logits: int


class Scheduler:
    """First come, first served: a waiting sequence starts when a slot and its whole cache reservation are free."""

    def __init__(self, pool: CachePool, max_running: int, max_prefill_rows: int) -> None:
        self._pool = pool
        self._max_running = max_running
        self._max_prefill_rows = max_prefill_rows
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def schedule(self) -> list[Work]:
        """Work of the next step: every decoding sequence, then prompt rows up to the step's limit."""
        self._start_waiting()
        work = [self._decode_work(s) for s in self._running if s.state is SequenceState.DECODING]
        budget = self._max_prefill_rows
        for sequence in self._running:
            if sequence.state is SequenceState.PREFILLING and budget > 0:
                work.append(self._prefill_work(sequence, budget))
                budget -= len(work[-1].token_ids)
        return work

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            capacity = self._waiting[0].request.capacity
            if not self._pool.can_allocate(capacity):
                return
            sequence = self._waiting.popleft()
            sequence.cache = self._pool.allocate(capacity)
            sequence.state = SequenceState.PREFILLING
            self._running.append(sequence)

    @staticmethod
    def _decode_work(sequence: Sequence) -> Work:
        proposal = sequence.propose()
        return Work(sequence, (sequence.token_ids[-1], *proposal.token_ids), proposal, len(proposal) + 1)

    @staticmethod
    def _prefill_work(sequence: Sequence, budget: int) -> Work:
        assert sequence.cache is not None
        start = sequence.cache.length
        rows = tuple(sequence.token_ids[start : start + budget])
        is_last = start + len(rows) == len(sequence.token_ids)
        return Work(sequence, rows, NO_DRAFT, 1 if is_last else 0)

    def remove_finished(self) -> None:
        """Give back what finished sequences hold."""
        for sequence in self._running:
            if sequence.state is SequenceState.FINISHED:
                self._free(sequence)
        self._running = [s for s in self._running if s.state is not SequenceState.FINISHED]

    def abort(self, rid: str, finish: Finish) -> Sequence | None:
        """End the sequence with exactly this id, waiting or running, and free it at once; None when there is none."""
        found = next((s for s in self if s.request.rid == rid), None)
        if found is None:
            return None
        if found.state is SequenceState.WAITING:
            self._waiting.remove(found)
        else:
            self._running.remove(found)
            self._free(found)
        found.finish = finish
        found.state = SequenceState.FINISHED
        return found

    def _free(self, sequence: Sequence) -> None:
        assert sequence.cache is not None
        self._pool.free(sequence.cache)
        sequence.cache = None
