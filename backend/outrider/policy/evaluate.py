"""Recorded requests decided anew: what another policy, drafter or k would have made of them, and what to change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, stdev
from typing import Any

from pydantic import TypeAdapter, ValidationError

from outrider.core import MAX_K, DrafterAbility, Hints, LaneAbility, LaneLoad, LaneView, SpecStats
from outrider.errors import ConfigError
from outrider.policy.acceptance import Curve, expected_tokens
from outrider.policy.counts import depth_counts
from outrider.policy.decide import PolicySet
from outrider.policy.features import Features
from outrider.policy.learning import Learner
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.priors import LOOK_UPS, Cell, length_bucket, steps_at_most, temperature_bucket
from outrider.policy.rounds import Occupancy, context_bucket

#: Trials of a depth from which on its hazard is taken from the record.
_MIN_TRIALS = 3
#: Tokens of an answer, where nothing tells them.
_USUAL_TOKENS = 256
_FEATURES = TypeAdapter(Features)


@dataclass(frozen=True, slots=True)
class Record:
    """One request as it was recorded."""

    features: Features
    plan: Plan
    workload: str
    num_running: int | None
    stats: SpecStats | None
    num_tokens: int
    """Of the answer; where the record does not say, those that its rounds wrote, or the usual number."""
    lane: str
    """On which it ran."""
    ability: LaneAbility | None = None
    """What that lane could do then; None where the record does not say."""

    @classmethod
    def from_wire(cls, data: dict[str, Any], ability: LaneAbility | None = None) -> Record:
        """ConfigError names what is wrong."""
        try:
            histogram = data["histogram"]
            stats = None
            if histogram is not None:
                accepted = sum(i * n for i, n in enumerate(histogram))
                by_draft = data.get("by_draft")
                counts = tuple(histogram), data.get("num_proposed"), None if by_draft is None else tuple(by_draft)
                stats = SpecStats(sum(histogram), accepted, *counts)
            features = _FEATURES.validate_python(data["features"])
            written = _USUAL_TOKENS if stats is None else stats.num_accepted + stats.num_verify_steps + 1
            num_tokens = data.get("num_tokens") or written
            plan = Plan.from_wire(data["plan"])
            ran = data["workload"], data["num_running"], stats, num_tokens, data["lane"]
            return cls(features, plan, *ran, ability)
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise ConfigError(f"not a recorded request: {error}") from error


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record under another plan. Rates are expected tokens per second, from the same costs."""

    record: Record
    plan: Plan
    recorded_rate: float
    new_rate: float
    plain_rate: float


class Evaluator:
    """Expected speeds of recorded requests on the lanes that they ran on. Acceptance comes from a request's own
    histogram as far as its k reached, else from what all records have shown."""

    def __init__(self, lanes: Sequence[LaneAbility], records: Sequence[Record]) -> None:
        """What ran on a lane of none of their names counts as run on the first. Without `lanes` the records say what
        theirs could do, else it was one embedded engine.

        ConfigError when a drafter ran that its lane does not have: its costs would be made up.
        """
        self._lanes = {lane.name: lane for lane in lanes}
        self._first = lanes[0] if lanes else LaneAbility.embedded("embedded")
        self.learner = Learner()
        acceptance = self.learner.acceptance
        drafters = [one for lane in map(self.lane_of, records) for one in lane.drafters if one.accuracy]
        acceptance.accuracy = {one.drafter: one.accuracy for one in drafters}
        for number, record in enumerate(records, 1):
            plan, lane = record.plan, self.lane_of(record)
            if not plan.is_off and _able(lane, plan.drafter) is None:
                ran = f"record {number} ran {plan.drafter} on lane {record.lane}"
                raise ConfigError(f"{ran}, which lane {lane.name} does not have; --lanes says what lanes could do")
            if not plan.is_off and record.stats is not None:
                acceptance.update(_cell(record, plan.drafter, lane), record.stats, plan.k)

    def lane_of(self, record: Record) -> LaneAbility:
        """Where it is taken to have run."""
        if self._lanes:
            return self._lanes.get(record.lane, self._first)
        return record.ability or self._first

    def rate(self, record: Record, plan: Plan, *, is_foreseen: bool = False) -> float:
        """Expected tokens per second of a record under a plan; `is_foreseen` does without the record's own counts."""
        lane = self.lane_of(record)
        running = lane.max_running if record.num_running is None else record.num_running
        scene = (Occupancy(running, 0, True).batch, context_bucket(record.features.num_prompt_tokens))
        if plan.is_off:
            return 1 / self.learner.rounds.plain_s(lane, *scene)
        cell, able = _cell(record, plan.drafter, lane), _able(lane, plan.drafter)
        curve = self.learner.acceptance.curve(cell)
        depth = MAX_K if able is None else steps_at_most(able, cell)
        seconds = self.learner.rounds.round_s(lane, plan.drafter, scene, curve.fill, depth)
        tokens = curve.tokens[plan.k] if is_foreseen else _tokens(record, plan, curve)
        return tokens / seconds[plan.k]

    def replay(self, records: Sequence[Record], policies: PolicySet, fixed: Plan | None = None) -> Iterator[Replayed]:
        """Decide every record anew for its lane, since how busy others were is not known, or give all one plan."""
        for record in records:
            lane, load = self.lane_of(record), None
            if record.num_running is not None:
                load = LaneLoad(record.num_running - 1, 0, lane.max_running, 0.0)
            plan = fixed or policies.decide(record.features, Hints(), [LaneView(lane, load)], 0.0).plan
            yield Replayed(
                record, plan, self.rate(record, record.plan), self.rate(record, plan), self.rate(record, PLAN_OFF)
            )


def _able(lane: LaneAbility, drafter: str) -> DrafterAbility | None:
    return next((one for one in lane.drafters if one.drafter == drafter), None)


def _cell(record: Record, drafter: str, lane: LaneAbility) -> Cell:
    features, able = record.features, _able(lane, drafter)
    length, is_sampled = length_bucket(features.num_prompt_tokens), able is not None and able.is_sampled
    return Cell(drafter, is_sampled, temperature_bucket(features.temperature), features.task, length, features.tenant)


def _tokens(record: Record, plan: Plan, curve: Curve) -> float:
    """Expected tokens per round: depths that the record's own rounds reached often enough, then the curve's."""
    stats = record.stats
    if stats is None or record.plan.drafter != plan.drafter:
        return curve.tokens[plan.k]
    hazards = list(curve.hazards) + [curve.hazards[-1]] * (MAX_K - len(curve.hazards))
    counts = depth_counts(stats, record.plan.k, may_miss=plan.drafter in LOOK_UPS)
    for depth, (trials, successes) in enumerate(counts[: plan.k]):
        if trials >= _MIN_TRIALS:
            hazards[depth] = successes / trials
    return expected_tokens(hazards)[plan.k]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a workload's records say about its limits."""

    workload: str
    num_records: int
    ran: frozenset[str]
    """Drafters of which the records show something."""
    max_k: dict[str, int]
    """By drafter that is worth allowing; empty when plain decoding is best."""
    max_temperature: float | None
    """Above it no plan gained; None when there is no such bound."""
    gain: float
    """Expected tokens per second of all answers together, over those of the recorded plans."""
    margin: float
    """Half the width of the gain's 95 % interval."""
    hints: tuple[str, ...]


def advise(evaluator: Evaluator, records: Sequence[Record]) -> list[Advice]:
    """For each workload the least limits within which the choice request by request loses nothing."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.workload].append(record)
    return [_advise(evaluator, workload, group) for workload, group in sorted(groups.items())]


def _advise(evaluator: Evaluator, workload: str, records: Sequence[Record]) -> Advice:
    # Only drafters that ran here have shown anything; others are for exploration to try.
    ran = {record.plan.drafter for record in records if not record.plan.is_off and record.stats is not None}
    best = _choices(evaluator, records, ran)
    speed = speed_of(records, [evaluator.rate(record, plan) for record, plan in zip(records, best, strict=True)])
    for most in range(MAX_K + 1):
        taken = _choices(evaluator, records, ran, most)
        rates = [evaluator.rate(record, plan) for record, plan in zip(records, taken, strict=True)]
        if speed_of(records, rates) >= _GOOD_ENOUGH * speed:
            break
    gain, margin = _gain(records, [evaluator.rate(record, record.plan) for record in records], rates)
    hot = [record.features.temperature for record in records]
    cool = [t for t, plan in zip(hot, taken, strict=True) if not plan.is_off]
    return Advice(
        workload,
        len(records),
        frozenset(ran),
        {name: max(p.k for p in taken if p.drafter == name) for name in {p.drafter for p in taken if not p.is_off}},
        max(cool) if cool and max(cool) < max(hot) else None,
        gain,
        margin,
        tuple(_hints(records, most)),
    )


#: The share of the best speed that limits must keep.
_GOOD_ENOUGH = 0.995


def _choices(
    evaluator: Evaluator, records: Sequence[Record], drafters: Collection[str], most: int = MAX_K
) -> list[Plan]:
    """The plan of its lane that each record would have been given, from what all records have shown."""
    found = []
    for record in records:
        able = [one for one in evaluator.lane_of(record).drafters if one.drafter in drafters]
        plans = (PLAN_OFF, *(Plan(one.drafter, k) for one in able for k in one.ks if k <= most))
        found.append(max(plans, key=partial(evaluator.rate, record, is_foreseen=True)))
    return found


def speed_of(records: Sequence[Record], rates: Sequence[float]) -> float:
    """Tokens per second of all answers together."""
    return sum(record.num_tokens for record in records) / sum(_times(records, rates))


def _times(records: Sequence[Record], rates: Sequence[float]) -> list[float]:
    return [record.num_tokens / rate for record, rate in zip(records, rates, strict=True)]


def _gain(records: Sequence[Record], before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The ratio of speeds, and half the width of its 95 % interval, by the delta method for a ratio of sums."""
    old_s, new_s = _times(records, before), _times(records, after)
    gain, num = sum(old_s) / sum(new_s), len(records)
    if num < 2:
        return gain, math.inf
    errors = [old - gain * new for old, new in zip(old_s, new_s, strict=True)]
    return gain, 1.96 * stdev(errors) * math.sqrt(num) / sum(new_s)


def _hints(records: Sequence[Record], most: int) -> Iterator[str]:
    """The field's rules of thumb, where the records speak for them."""
    measured = [(record, record.stats) for record in records if record.stats is not None]
    if measured:
        proposed = sum(record.plan.k * stats.num_verify_steps for record, stats in measured)
        accepted = sum(stats.num_accepted for _, stats in measured) / proposed
        if accepted < 0.5:
            yield f"{accepted:.0%} of the drafts asked for were accepted: a better drafter would help more than any k"
        largest = max(record.plan.k for record, _ in measured)
        if most < largest:
            yield f"k {largest} is too large: drafts beyond {most} are accepted too seldom to pay for their rows"
    if median(record.features.temperature for record in records) > 0.8:
        yield "most requests are hot: deterministic drafts lose more than half of their acceptance there"
    running = [record.num_running for record in records if record.num_running is not None]
    if running and median(running) > 8:
        yield f"usually {median(running):g} requests run at once: rows are dear, so k should be small"
