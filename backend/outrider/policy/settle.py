"""From what is possible to what is taken: gain over plain, drafters that do not pay, hysteresis, and tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.policy.acceptance import LOOK_UPS, temperature_bucket
from outrider.policy.choose import Option, Question, Refusal, Survey, rates_of
from outrider.policy.learning import Gate, Learner, Ledger

#: Speculation must be expected to gain this much over plain decoding: below it, it is noise.
MIN_GAIN = 1.03
#: Another plan must be this much better than the one that was taken last, for so many decisions in a row, and the one
#: taken last must have been held for so many. Fewer drafts are taken at once when they are that much better, since
#: load is shed first by shortening drafts.
_SWITCH_GAIN, _STREAK, _DWELL = 1.05, 3, 8
#: Measurements that a drafter must have when its workload is overdrawn.
_PROVEN = 3


class Settled(NamedTuple):
    """The option that is taken, and the code of why."""

    option: Option
    rule: str


@dataclass(slots=True)
class Incumbent:
    """The plan that was taken last for one kind of request."""

    drafter: str
    k: int
    num_held: int = 0
    num_beaten: int = 0

    def settle(self, best: Option, held: Option | None) -> Option:
        """The best plan, or the held one while it is not beaten clearly and for long enough."""
        self.num_held += 1
        if held is None:
            # The held plan is not possible for this request; for others it may be again.
            self.num_beaten += 1
            return self._switch(best) if self.num_beaten >= _STREAK else best
        if best[1:3] == held[1:3] or best.rate < held.rate * _SWITCH_GAIN:
            self.num_beaten = 0
            return held
        self.num_beaten += 1
        if best.k < self.k or (self.num_beaten >= _STREAK and self.num_held >= _DWELL):
            return self._switch(best)
        return held

    def _switch(self, best: Option) -> Option:
        self.drafter, self.k, self.num_held, self.num_beaten = best.drafter, best.k, 0, 0
        return best


class Settler:
    """Remembers per kind of request what was taken last."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._incumbents: dict[tuple[object, ...], Incumbent] = {}

    def settle(self, question: Question, found: Survey) -> Settled | None:
        """None when no lane can serve the request at all, or as it wants to be served."""
        plain = max(found.plains, key=_order, default=None)
        if question.is_fixed:
            best = max(found.options, key=_order, default=None)
            return None if best is None else Settled(best, "request")
        ledger = self.learner.ledger(question.policy.workload)
        ledger.num_decided += 1
        if plain is None:
            best = max(found.options, key=_order, default=None)
            return None if best is None else Settled(best, "no-plain")
        gated = self._gated(question, found, ledger)
        target = question.target_rate()
        if target is not None and (enough := [o for o in (plain, *gated) if o.rate >= target]):
            return Settled(min(enough, key=lambda option: (option.k, -option.rate)), "objective")
        best = self._held(question, found, plain, gated)
        tried = self._try(question, found, best, ledger)
        return tried or Settled(best, "best-rate" if best.k else "plain")

    def _gated(self, question: Question, found: Survey, ledger: Ledger) -> list[Option]:
        """The options whose drafters pay as far as is known."""
        gates = {option.drafter: self._gate(question, option.drafter) for option in found.options}
        is_overdrawn = ledger.is_overdrawn
        shut = {
            name
            for name, gate in gates.items()
            if gate.is_closed or (is_overdrawn and not (gate.num >= _PROVEN and gate.utility >= 1.0))
        }
        if not shut:
            return found.options
        found.refused += [
            Refusal(o.lane.ability.name, o.drafter, "gated") for o in found.options if o.drafter in shut
        ]
        return [option for option in found.options if option.drafter not in shut]

    def _gate(self, question: Question, drafter: str) -> Gate:
        features = question.features
        return self.learner.gate(drafter, features.task, temperature_bucket(features.temperature))

    def _held(self, question: Question, found: Survey, plain: Option, options: Sequence[Option]) -> Option:
        """The best option, unless the one taken last is nearly as good."""
        best = max(options, key=_order, default=plain)
        if best.rate < plain.rate * MIN_GAIN:
            best = plain
        if not best.seen.is_known:
            return best
        features = question.features
        bucket = temperature_bucket(features.temperature)
        kind = (question.policy.workload, features.task, bucket, found.floor, features.has_prediction)
        incumbent = self._incumbents.get(kind)
        if incumbent is None:
            self._incumbents[kind] = Incumbent(best.drafter, best.k)
            return best
        if incumbent.drafter == best.drafter and incumbent.k == best.k:
            return incumbent.settle(best, best)
        return incumbent.settle(best, self._same_plan(incumbent, found, plain, options))

    def _same_plan(
        self, incumbent: Incumbent, found: Survey, plain: Option, options: Sequence[Option]
    ) -> Option | None:
        """The incumbent's plan where it does best now; None when no lane can run it."""
        if not incumbent.k:
            return plain
        same = (self._with_k(o, incumbent.k, found) for o in options if o.drafter == incumbent.drafter)
        return max((option for option in same if option is not None), key=_order, default=None)

    def _with_k(self, option: Option, k: int, found: Survey) -> Option | None:
        ability = option.lane.ability
        can_run = any(d.drafter == option.drafter and k in d.ks for d in ability.drafters)
        if not can_run or not option.bounds[0] <= k <= option.bounds[1]:
            return None
        curve = found.curves[option.key]
        rates = rates_of(curve, self.learner, ability, option.drafter, (option.seen.num_running, found.context))
        return option._replace(k=k, rate=option.rate * rates[k] / rates[option.k])

    def _try(self, question: Question, found: Survey, best: Option, ledger: Ledger) -> Settled | None:
        """Now and then plain instead of speculation, or a drafter that is not the best known; within the limits."""
        limits = question.policy.exploration
        if best.k and ledger.num_control + 1 <= limits.control * ledger.num_decided:
            ledger.num_control += 1
            return Settled(max(found.plains, key=_order), "control")
        if ledger.num_tried + 1 > limits.share * ledger.num_decided or not ledger.may_try:
            return None
        gates = {option.drafter: self._gate(question, option.drafter) for option in found.options}
        # What a look-up would have had accepted is known from finished texts; only its gate needs a try.
        due = [
            option
            for option in found.options
            if option.drafter != best.drafter
            and gates[option.drafter].due <= ledger.num_decided
            and (option.drafter not in LOOK_UPS or gates[option.drafter].is_closed)
        ]
        if not due:
            return None
        taken = max(due, key=lambda option: self._sampled_rate(option, found))
        gates[taken.drafter].tried(ledger.num_decided)
        ledger.num_tried += 1
        return Settled(taken, "explore")

    def _sampled_rate(self, option: Option, found: Survey) -> float:
        """Thompson sampling: the rate with hazards drawn from what is believed of them."""
        curve = found.curves[option.key]
        return option.rate * curve.sampled(self.learner.random).tokens[option.k] / curve.tokens[option.k]


def _order(option: Option) -> tuple[float, int]:
    """More tokens per second first; of equals the emptier lane."""
    return option.rate, -option.seen.num_others
