"""A decision: the plan and lane of one request, everything that was compared, and the reasons in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from outrider.core import MAX_K, LaneLoad, LaneView
from outrider.policy.eligibility import NOT_PAYING, REASONS, inexact
from outrider.policy.features import Features
from outrider.policy.kind import Kind
from outrider.policy.nearest import distance
from outrider.policy.options import Option, Refusal, Row
from outrider.policy.plan import Plan
from outrider.policy.priors import Cell, steps_at_most
from outrider.policy.rounds import Rounds

#: Codes of what decided, and the sentence that answers show.
RULES = {
    "request": "the request fixed it",
    "best-rate": "it is expected to be fastest",
    "held": "it was taken last, and nothing else has been clearly better for long enough",
    "plain": "no drafter is expected to gain over plain decoding",
    "no-drafter": "there is no drafter that it may use",
    "home": "the lane served the beginning of the conversation, and has nearly the speed of the fastest",
    "objective": "it is the least that reaches the workload's objective",
    "control": "plain for comparison, as a small share of requests is",
    "explore": "tried to learn, as a small share of requests is",
    "no-plain": "no lane that honours as much decodes plainly",
    "nearest": "it is the nearest to what the request fixed",
}


class Tried(NamedTuple):
    """What a workload and that of its trial decided for one request, of which one runs."""

    mode: str
    """`canary` or `shadow`."""
    workload: str
    """That the request belongs to."""
    other: str
    """That is tried beside it."""
    live: Option | None
    tried: Option | None
    """What each would run; None where it would refuse."""
    refusal: str = ""
    """Why one of them would."""

    @property
    def result(self) -> str:
        """How they differ, as metrics count it."""
        if self.live is None or self.tried is None:
            return "refused"
        return "same" if (self.live.drafter, self.live.k) == (self.tried.drafter, self.tried.k) else "other"

    @property
    def rates(self) -> tuple[float, float] | None:
        """Expected tokens per second of both; None where one would refuse."""
        return None if self.live is None or self.tried is None else (self.live.rate, self.tried.rate)

    @property
    def shown(self) -> str:
        """What does not run, in the words of answers."""
        is_run = self.mode == "canary" and self.tried is not None
        name, option = (self.workload, self.live) if is_run else (f"{self.mode} {self.other}", self.tried)
        return f"{name} would " + (f"refuse: {self.refusal}" if option is None else f"run: {option.shown}")


@dataclass(slots=True)
class Decision:
    """How one request is to be speculated, where, and why.

    Not frozen, which would make it several times as slow to make; nothing changes it. What only answers show is
    worked out when it is asked for.
    """

    plan: Plan
    workload: str
    """Name of the policy file that was asked."""
    rule: str
    """A code of `RULES`."""
    features: Features
    option: Option
    """What was taken: lane, plan, expected tokens per second, and how full the lane is."""
    kind: Kind
    rows: Sequence[Row]
    """All that was possible, and what was refused, by lane."""
    unfit: Sequence[Row]
    """Lanes that honour less of what the request asks for than those."""
    lanes: Sequence[LaneView]
    """As they were given."""
    rounds: Rounds
    shut: frozenset[str]
    """Drafters that did not pay when this was decided."""
    role: str = ""
    """Beside which workload this was decided; empty when by itself."""
    trial: Tried | None = None
    """What the workload and its trial decided, where it has one and this request was taken for it."""

    @property
    def load(self) -> LaneLoad | None:
        """The lane's load as it was given, also when it was too old to be used."""
        return next(view.load for view in self.lanes if view.ability is self.option.lane)

    @property
    def lane(self) -> str:
        """The lane's name."""
        return self.option.lane.name

    @property
    def batch(self) -> int:
        """Requests in each round, this one included, as it was foreseen."""
        return self.option.seen.batch

    @property
    def is_own(self) -> bool:
        """The workload chose the plan; else the request fixed it."""
        return self.rule not in ("request", "nearest")

    @property
    def cell(self) -> Cell:
        """Where its acceptance is learnt."""
        return self.kind.cell._replace(drafter=self.plan.drafter, is_sampled=self.option.is_sampled)

    def plain_round_s(self) -> float:
        """Seconds of a plain round where this was decided, before correction."""
        return self.rounds.plain_s(self.option.lane, self.option.seen.batch, self.kind.context)

    def round_s(self, fill: float) -> float:
        """Seconds of a round of the plan when a share `fill` of its drafts is proposed, before correction."""
        scene = (self.option.seen.batch, self.kind.context)
        lane, name = self.option.lane, self.plan.drafter
        depth = next((steps_at_most(one, self.kind.cell) for one in lane.drafters if one.drafter == name), MAX_K)
        return self.rounds.round_s(lane, name, scene, fill, depth)[self.plan.k]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Readable sentences: workload, load, the plan, what else was possible, what was not."""
        if len(self.rows) > 1 or self.unfit or self.trial is not None:
            return self._told()
        # The same lane at the same load is told of in the same words until something new is known of it.
        told, features = self.rows[0].told, self.features
        key = (self.rule, self.plan, self.role, self.shut, features.is_task_given, *features.surfaces.values())
        if key not in told:
            told[key] = self._told()
        return told[key]

    def _told(self) -> tuple[str, ...]:
        if self.rule == "request" and self.plan.is_off:
            return ("the request turned speculation off",)
        texts = (self._why(), self._load_reason(), *self._plan_reasons(), *_shown(self.refused))
        inexact = self._inexact_fields()
        if not inexact:
            return texts
        return (*texts, f"no lane honours {inexact} exactly; lane {self.lane} comes nearest")

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Lanes and drafters that were left out."""
        lanes = [row.refusal for row in self.unfit]
        found = (*lanes, *chain.from_iterable([row.shown(self.shut)[1] for row in self.rows]))
        # Now and then what does not pay is tried all the same.
        return tuple([one for one in found if one.code != NOT_PAYING or one.drafter != self.plan.drafter])

    @property
    def possible(self) -> tuple[Option, ...]:
        """All plans that were compared."""
        return tuple(chain.from_iterable([row.shown(self.shut)[0] for row in self.rows]))

    def _inexact_fields(self) -> str:
        surfaces = self.features.surfaces
        return ", ".join(surfaces[one] for one in inexact(self.option.lane, surfaces))

    def _why_not(self) -> str:
        """Why a request that fixed something gets something else."""
        kind, plan = self.kind, self.plan
        runs = "off" if plan.is_off else f"{plan.drafter} with k {plan.k}"
        able = any(not any(distance(kind, row.option(e))) for row in self.unfit for e in row.usable())
        why = "the lanes that could do not honour all of the sampling" if able else "no lane that is ready can"
        return f"the plan was {kind.fixed}, lane {self.lane} runs {runs}: {why}"

    def _why(self) -> str:
        policy = self.kind.policy
        known = "guessed" if policy.task is None else "given by the workload"
        task = f"task {self.features.task} ({'given by the request' if self.features.is_task_given else known})"
        if self.role:
            return f"{task}; {self.role}"
        match = policy.match
        if match is None and policy.task is not None:
            return f"{task}; workload {self.workload} by default"
        if match is None or (match.tasks is not None and self.features.task not in match.tasks):
            return f"no workload is for {task}, so {self.workload} by default"
        if match.model_fields_set == {"tasks"}:
            return f"{task} belongs to workload {self.workload}"
        return f"{task}; workload {self.workload} takes it"

    def _load_reason(self) -> str:
        seen = self.option.seen
        if not seen.is_known:
            return f"the load of lane {self.lane} is unknown or stale, so it counts as full"
        noun = "request" if seen.num_others == 1 else "requests"
        waiting = f", {seen.num_waiting} of them waiting" if seen.num_waiting else ""
        tight = "; its cache is nearly full"
        if self.rule not in ("request", "nearest", "no-plain"):
            tight += f", so there are {'no' if seen.pressure > 1 else 'fewer'} drafts"
        return f"{seen.num_others} other {noun} on lane {self.lane}{waiting}{tight if seen.pressure else ''}"

    def _plan_reasons(self) -> Iterator[str]:
        yield f"{self.option.shown}: {RULES[self.rule]}"
        if self.rule == "nearest":
            yield self._why_not()
        mine = self.option
        others = [o for o in self.possible if o.drafter != mine.drafter or o.k != mine.k or o.lane is not mine.lane]
        for other in sorted(others, key=_RATE, reverse=True)[:_MAX_SHOWN]:
            yield f"possible: {other.shown}"
        if self.trial is not None:
            yield self.trial.shown

    def candidates(self) -> list[dict[str, Any]]:
        """Every plan that was possible, with its expected tokens per second, and every refusal with its code."""
        options = [
            {"lane": o.lane.name, "drafter": o.drafter, "k": o.k, "tokens_per_s": round(o.rate, 2)}
            for o in self.possible
        ]
        return options + [{"lane": r.lane, "drafter": r.drafter, "refused": r.code} for r in self.refused]


#: Other options and refusals that the reasons name; `candidates` has all.
_MAX_SHOWN = 3
_RATE = attrgetter("rate")


@lru_cache(maxsize=256)
def _shown(refused: tuple[Refusal, ...]) -> tuple[str, ...]:
    return tuple(refusals_shown(refused))


def refusals_shown(refused: Sequence[Refusal]) -> Iterator[str]:
    """The first few in words."""
    return (refusal_shown(refusal) for refusal in refused[:_MAX_SHOWN])


def refusal_shown(refusal: Refusal) -> str:
    """In words."""
    what = f"{refusal.drafter} on {refusal.lane}" if refusal.drafter else refusal.lane
    return f"not {what}: {REASONS[refusal.code].format(detail=refusal.detail)}"
