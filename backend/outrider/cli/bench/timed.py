"""One answer of the engine, token by token, and the seconds inside its drafter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outrider.cli.bench.samples import Case, Sample, Setting

if TYPE_CHECKING:
    from outrider.engine.drafters import Drafter
    from outrider.engine.engine import Engine
    from outrider.engine.sequence import GenerateRequest
    from outrider.speculation.proposal import Proposal


class TimedDrafter:
    """Another drafter, with the seconds that its proposals take; reads features where that one does."""

    def __init__(self, inner: Drafter) -> None:
        self._inner: Any = inner
        self.points: tuple[int, ...] = getattr(inner, "points", ())
        self.seconds = 0.0

    def observe(self, token_id: int) -> None:
        """Handed on; not timed."""
        self._inner.observe(token_id)

    def observe_features(self, start: int, features: Any) -> None:
        """Handed on; not timed."""
        self._inner.observe_features(start, features)

    def propose(self, k: int) -> Proposal:
        """Handed on, and its seconds added."""
        start_s = time.perf_counter()
        proposal: Proposal = self._inner.propose(k)
        self.seconds += time.perf_counter() - start_s
        return proposal

    def free(self) -> None:
        """Handed on; not timed."""
        self._inner.free()


def answer(
    engine: Engine, request: GenerateRequest, drafter: Drafter | None, what: tuple[Setting, Case, int]
) -> Sample:
    """Run a request alone to its end; `what` is its setting, its case and the round."""
    from outrider.engine.drafters.guarded import GuardedDrafter

    timed = None if drafter is None else TimedDrafter(drafter)
    engine.add(request, None if timed is None else GuardedDrafter(lambda: timed, engine.model.config.vocab_size))
    token_ids, counts, times, stats = list[int](), list[int](), list[float](), None
    start_s = time.perf_counter()
    while engine.has_work:
        for output in engine.step():
            times.append(time.perf_counter() - start_s)
            token_ids.extend(output.token_ids)
            counts.append(len(token_ids))
            stats = output.stats
    return Sample(
        *what, tuple(token_ids), tuple(counts), tuple(times), request.plan.drafter, request.plan.k, stats,
        0.0 if timed is None else timed.seconds,
    )  # fmt: skip
