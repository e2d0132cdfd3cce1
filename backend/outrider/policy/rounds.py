"""What a round takes on a lane, by running requests, rows, context and drafter, corrected by what rounds took."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from outrider.core import MAX_K, OFF, LaneAbility
from outrider.cost import ClosedCost, CostTable

#: Cost of one draft step in plain steps, where no table says; of a look-up it is one proposal, whatever k is.
_DRAFT_STEPS = {
    "ngram": 0.002, "suffix": 0.004, "prediction": 0.001, "medusa": 0.03, "eagle2": 0.05, "eagle3": 0.05,
    "hybrid": 0.05, "draft_model": 0.25, "layer_skip": 0.6,
}  # fmt: skip
_USUAL_DRAFT = 0.05
#: Drafters that propose all their tokens at once.
_AT_ONCE = frozenset({"ngram", "suffix", "prediction", "medusa"})
#: Context is rounded up to these.
_CONTEXTS = (128, 512, 2048, 8192, 32768)
#: How fast corrections follow in the end; the n-th observation counts for 1 / (n + _DOUBT) at first.
_RATE, _DOUBT = 0.2, 2.0
#: Shares of an error that go to the arm: of plain rounds' little, since drafters are held against plain decoding, and
#: a lane that is slower than predicted, or gets slower while nothing is speculated, must not make those look cheap
#: that did not run; of drafters' rounds' half.
_PLAIN_SHARE, _SHARE = 0.1, 0.5
#: What one observation may say at most: a request that was stopped for a minute says no more than a slow one.
_CLIP = math.log(2.0)
#: Largest batches of the sizes that corrections tell apart; a last one is beyond.
_SIZES = (1, 4, 12)
#: Corrections that moved by less are as good as before; no gain that counts is as small.
_NEAR = 0.02

#: Rows of seconds that are remembered, over lanes, loads and contexts.
_MAX_REMEMBERED = 10_000
#: Shares of a lane's cache in use from which on drafts are fewer, and there are none: their rows take places in it,
#: and when it is full, the lane throws requests out and computes them again. And the share of k that each leaves.
TIGHT, _FULL = 0.9, 0.97
RELIEF = (1.0, 0.5, 0.0)
#: Shares of rounds with drafts are told apart to this part.
_FILLS = 64
#: Running requests are told apart up to the first of these, and rounded up to the next beyond.
_RUNNING = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BATCHES = tuple(next(bound for bound in _RUNNING if bound >= n) for n in range(_RUNNING[-1] + 1))


def context_bucket(num_tokens: int) -> int:
    """The measured length of context that stands for it."""
    return _CONTEXTS[min(bisect_left(_CONTEXTS, num_tokens), len(_CONTEXTS) - 1)]


def size_bucket(batch: int) -> int:
    """Of a batch, as coarse as round times are corrected by."""
    return bisect_left(_SIZES, batch)


class Occupancy(NamedTuple):
    """How full a lane is with the request that is decided."""

    num_running: int
    """Requests in each round, this one included."""
    num_waiting: int
    is_known: bool
    pressure: int = 0
    """How near its cache is to being full: a place in `RELIEF`."""

    @property
    def batch(self) -> int:
        """`num_running`, rounded up to what costs are told apart by."""
        running = self.num_running
        return _BATCHES[running] if running < len(_BATCHES) else running

    @property
    def num_others(self) -> int:
        """Requests on the lane beside this one."""
        return self.num_running + self.num_waiting - 1


def pressure(token_usage: float) -> int:
    """Of a lane's cache that is in use to this share."""
    return (token_usage >= TIGHT) + (token_usage >= _FULL)


def occupancy(ability: LaneAbility, num_requests: int, max_running: int, pressure: int = 0) -> Occupancy:
    """Of a lane with so many other requests, which itself says how many it runs at once, or 0.

    Unknown load, below 0, is not idle: the lane is taken for full, with nobody waiting.
    """
    limit = ability.max_running
    if num_requests < 0:
        return Occupancy(limit, 0, False)
    limit = min(limit, max_running or limit)
    total = num_requests + 1
    running = min(total, limit)
    return Occupancy(running, total - running, True, pressure)


@dataclass(slots=True, eq=False)
class Factors:
    """What speeds on a lane in batches of one size are multiplied by."""

    lane: LaneAbility
    size: int
    now: tuple[float, ...]
    """Of plain decoding, then of each of its drafters. Another object when it has changed."""


class Rounds:
    """Seconds of rounds; the table's or closed form's, times what was learnt of each lane and drafter."""

    def __init__(self) -> None:
        self._forwards: dict[tuple[LaneAbility, int, int], tuple[float, ...]] = {}
        self._rounds: dict[tuple[LaneAbility, str, tuple[int, int], int, int], tuple[float, ...]] = {}
        self._lanes: dict[str, float] = {}
        self._arms: dict[tuple[str, str, int], tuple[float, int]] = {}
        """Logarithms of observed over predicted: of a lane as a whole, and of a drafter on it at a size of batches
        beyond that, with the number of observations."""
        self._factors: dict[tuple[LaneAbility, int], Factors] = {}
        self._factors_of: dict[str, list[Factors]] = defaultdict(list)
        """The same by the lane's name."""
        self.num_changes = 0
        """Grows whenever some of them change."""

    def forwards(self, ability: LaneAbility, num_running: int, context: int) -> tuple[float, ...]:
        """Entry k: seconds of a round in which each running request has k + 1 rows, or as many as there are always;
        without drafting."""
        key = (ability, num_running, context)
        found = self._forwards.get(key)
        if found is None:
            if len(self._forwards) >= _MAX_REMEMBERED:
                self._forwards.clear()
            at, least = ability.cost.at, max((drafter.min_num_rows for drafter in ability.drafters), default=1)
            found = tuple(at(num_running, num_running * max(k + 1, least), context) for k in range(MAX_K + 1))
            self._forwards[key] = found
        return found

    def plain_s(self, ability: LaneAbility, num_running: int, context: int) -> float:
        """Seconds of a round whose drafts, where the lane cannot but make some, nobody takes."""
        always = [(one.min_num_steps, *self.draft_s(ability, one.drafter, num_running)) for one in ability.drafters]
        drafts_s = sum(first_s + (num - 1) * step_s for num, first_s, step_s in always if num)
        return self.forwards(ability, num_running, context)[0] + drafts_s

    def draft_s(self, ability: LaneAbility, drafter: str, num_running: int) -> tuple[float, float]:
        """Seconds that the first draft step of the round's proposals takes, and each further one."""
        cost = ability.cost
        if isinstance(cost, CostTable) and (one := cost.drafters.get(drafter)) is not None:
            return num_running * one.first_s, num_running * one.step_s
        if isinstance(cost, ClosedCost) and drafter in cost.draft_steps_each:
            step_s = num_running * cost.draft_steps_each[drafter] * cost.step_s
        else:
            own = cost.draft_steps if isinstance(cost, ClosedCost) else {}
            usual = own.get(drafter, _DRAFT_STEPS.get(drafter, _USUAL_DRAFT))
            step_s = cost.at(num_running, num_running, 0) * usual
        return step_s, step_s

    def round_s(
        self, ability: LaneAbility, drafter: str, scene: tuple[int, int], fill: float, depth: int = MAX_K
    ) -> tuple[float, ...]:
        """Entry k: expected seconds of a round, before correction, when a share `fill` of rounds has drafts; `scene`
        is running requests and context, `depth` the draft steps at most."""
        depth = 1 if drafter in _AT_ONCE else depth
        key = (ability, drafter, scene, round(fill * _FILLS), depth)
        found = self._rounds.get(key)
        if found is None:
            if len(self._rounds) >= _MAX_REMEMBERED:
                self._rounds.clear()
            found = self._rounds[key] = tuple(self._round_s(ability, drafter, scene, fill, depth))
        return found

    def _round_s(
        self, ability: LaneAbility, drafter: str, scene: tuple[int, int], fill: float, depth: int
    ) -> Iterator[float]:
        forwards = self.forwards(ability, *scene)
        yield self.plain_s(ability, *scene)
        first_s, step_s = self.draft_s(ability, drafter, scene[0])
        least = next((one.min_num_steps for one in ability.drafters if one.drafter == drafter), 0)
        for k in range(1, MAX_K + 1):
            drafts_s = first_s + (max(min(k, depth), least) - 1) * step_s
            yield (1 - fill) * forwards[0] + fill * forwards[k] + drafts_s

    def correction(self, lane: str, drafter: str = OFF, batch: int = 1) -> float:
        """What predictions for this drafter on this lane in such a batch are multiplied by."""
        return math.exp(self._lanes.get(lane, 0.0) + self._arm(lane, drafter, size_bucket(batch)))

    def _arm(self, lane: str, drafter: str, size: int) -> float:
        """An arm that was never seen at this size is believed to be as it is at the nearest."""
        found = self._arms.get((lane, drafter, size))
        for step in range(1, len(_SIZES) + 1) if found is None else ():
            found = self._arms.get((lane, drafter, size - step)) or self._arms.get((lane, drafter, size + step))
            if found is not None:
                break
        return 0.0 if found is None else found[0]

    def factors(self, ability: LaneAbility, batch: int) -> Factors:
        """What speeds on this lane in such a batch are multiplied by, now and as long as it is kept."""
        key = (ability, size_bucket(batch))
        found = self._factors.get(key)
        if found is None:
            if len(self._factors) >= _MAX_REMEMBERED:
                self._forget_factors()
            found = self._factors[key] = Factors(*key, self._factors_now(*key))
            self._factors_of[ability.name].append(found)
        return found

    def _forget_factors(self) -> None:
        """Who keeps some is to ask again."""
        for factors in self._factors.values():
            factors.now = ()
        self.num_changes += 1
        self._factors.clear()
        self._factors_of.clear()

    def _factors_now(self, ability: LaneAbility, size: int) -> tuple[float, ...]:
        lane = self._lanes.get(ability.name, 0.0)
        drafters = [OFF, *[drafter.drafter for drafter in ability.drafters]]
        return tuple([math.exp(-lane - self._arm(ability.name, drafter, size)) for drafter in drafters])

    def observe(self, lane: str, drafter: str, seconds: tuple[float, float], batch: int = 1) -> None:
        """Learn from one request's mean round, predicted and observed. What all arms of a lane share goes to the
        lane, so that a busy machine does not make the drafter that happened to run look bad; the rest goes to the
        arm."""
        predicted_s, observed_s = seconds
        key = (lane, drafter, size_bucket(batch))
        arm, num = self._arms.get(key) or (self._arm(*key), 0)
        shared = self._lanes.get(lane, 0.0)
        error = math.log(observed_s / predicted_s) - shared - arm
        step = max(_RATE, 1 / (num + 1 + _DOUBT)) * min(max(error, -_CLIP), _CLIP)
        share = _PLAIN_SHARE if drafter == OFF else _SHARE
        self._lanes[lane] = shared + step * (1 - share)
        self._arms[key] = (arm + step * share, num + 1)
        self._tell(lane)

    def forget(self, lane: str) -> None:
        """What was learnt of a lane that is gone, or runs something else."""
        self._lanes.pop(lane, None)
        self._arms = {key: arm for key, arm in self._arms.items() if key[0] != lane}
        self._tell(lane)

    def _tell(self, lane: str) -> None:
        """Whoever keeps its factors."""
        for factors in self._factors_of.get(lane, ()):
            now = self._factors_now(factors.lane, factors.size)
            if any(abs(a - b) > _NEAR * b for a, b in zip(now, factors.now, strict=True)):
                factors.now = now
                self.num_changes += 1

    def to_state(self) -> dict[str, Any]:
        """Plain data of the corrections; costs themselves come from the lanes."""
        return {"lanes": self._lanes, "arms": [[*key, *value] for key, value in self._arms.items()]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Rounds:
        """Of what `to_state` gave."""
        found = cls()
        found._lanes = dict(state["lanes"])
        found._arms = {(lane, drafter, size): (value, num) for lane, drafter, size, value, num in state["arms"]}
        return found
