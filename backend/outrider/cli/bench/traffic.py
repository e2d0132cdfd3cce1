"""What one setting did with the traffic of a cell: its requests, and the slices of time that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from outrider.cli.bench.mix import Turn
from outrider.cli.bench.samples import Case, Setting
from outrider.core import SpecStats
from outrider.policy.learning import Feedback
from outrider.policy.plan import Plan

if TYPE_CHECKING:
    from outrider.engine.engine import Output
    from outrider.policy.decision import Decision

#: A slice counts when it had this much of the processor time per second that slices usually have.
USUAL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of it."""

    num_tokens: int
    seconds: float
    cpu_s: float
    """Processor time of all threads: where it is short of the seconds, something else had the processor."""


@dataclass(slots=True)
class Request:
    """One request, and what became of it so far."""

    case: Case
    plan: Plan
    decision: Decision | None = None
    """None for a fixed setting."""
    token_ids: list[int] = field(default_factory=list)
    near_ties: set[int] = field(default_factory=set)
    """Positions at which rounding decides, so that other company may give another text."""
    stats: SpecStats | None = None
    first_s: float = 0.0
    last_s: float = 0.0

    def take(self, output: Output, now_s: float) -> None:
        """Take in what a step gave it, at that time."""
        if not self.token_ids:
            self.first_s = now_s
        self.last_s = now_s
        self.token_ids.extend(output.token_ids)
        self.near_ties.update(output.near_ties or ())
        self.stats = output.stats

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the text."""
        return {
            "case": self.case.name,
            **self.plan.to_wire(),
            "rule": None if self.decision is None else self.decision.rule,
            "stats": None if self.stats is None else asdict(self.stats),
            "decode_s": self.last_s - self.first_s,
            "token_ids": self.token_ids,
            "near_ties": sorted(self.near_ties),
        }

    @property
    def feedback(self) -> Feedback:
        """What the policy learns of it once it has ended."""
        return Feedback(self.stats, len(self.token_ids), self.last_s - self.first_s)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One setting's traffic in one cell and round."""

    setting: Setting
    turn: Turn
    num_tokens: int
    """Of all requests together, in the slices that count."""
    seconds: float
    requests: tuple[Request, ...]
    """In the order in which they started; the last ones were cut off."""
    num_left_out: int = 0
    """Slices that count for no setting, since something else had the processor in one of them."""
    slices: tuple[Slice, ...] = ()
    """All of them, in order; each is as many tokens for every setting."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests over the seconds of the stretch."""
        return self.num_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with its requests."""
        cell = self.turn.cell
        return {
            **self.setting._asdict(),
            "workload": cell.workload,
            "batch": cell.size,
            "no draft accepted": cell.is_hopeless,
            "round": self.turn.round,
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            "slices left out": self.num_left_out,
            "requests": [request.as_dict() for request in self.requests],
        }


def undisturbed(by_setting: Sequence[Sequence[Slice]]) -> list[int]:
    """Numbers of the slices in which every setting had as much of the processor as usual; all when there are none.

    What is left out is left out for all settings, so that the same texts count. A thread that waits for a core holds
    up all others at each barrier, which makes a slice up to ten times as slow.
    """
    usual = median(one.cpu_s / one.seconds for slices in by_setting for one in slices if one.seconds)
    found = [
        number
        for number, slices in enumerate(zip(*by_setting, strict=True))
        if all(one.cpu_s >= USUAL_SHARE * usual * one.seconds for one in slices)
    ]
    # A step that brings many tokens may leave the next slice without any.
    has_tokens = all(any(slices[number].num_tokens for number in found) for slices in by_setting)
    return found if has_tokens else list(range(len(by_setting[0])))
