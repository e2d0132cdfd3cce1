"""Which lane of a group runs a plan, and what it then is: a plain function of the lanes' abilities and loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.core import OFF
from outrider.errors import InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.runtimes.abilities import Abilities, Surface
from outrider.runtimes.lane import Lane

#: Drafters that copy from text that is there; the others ask a model or a head.
_COPYING = frozenset({"ngram", "suffix", "prediction"})


@dataclass(frozen=True, slots=True)
class Resolution:
    """The lane that was chosen, the plan that it runs, and why that is not the decided one, if it is not."""

    lane: Lane
    plan: Plan
    reasons: tuple[str, ...] = ()


def resolve(
    plan: Plan,
    wanted: Mapping[Surface, str],
    lanes: Sequence[Lane],
    *,
    is_exact: bool = False,
    carries_plan: bool = True,
) -> Resolution:
    """The lane that honours most of what the law wants, then the nearest to the plan, then the least loaded.

    `lanes` are the ready ones of a group, at least one. With `is_exact`, InvalidRequest names the first field that
    no lane honours together with the others. Where the route carries no plan, a lane runs its own default.
    """
    fewest = min(len(_missing(wanted, lane)) for lane in lanes)
    able = [lane for lane in lanes if len(_missing(wanted, lane)) == fewest]
    if fewest and is_exact:
        surface = _missing(wanted, able[0])[0]
        raise InvalidRequest(
            f"{wanted[surface]}: the workload is exact, and no lane that is ready honours it", param=wanted[surface]
        )
    ranked = [(nearest(plan, _able(lane, carries_plan)), lane) for lane in able]
    (_, effective), lane = min(ranked, key=lambda pair: (pair[0][0], pair[1].num_requests))
    reasons = [_why_not(plan, effective, lane, lanes, carries_plan)] if effective != plan else []
    missing = [wanted[surface] for surface in _missing(wanted, lane)]
    if missing:
        reasons.append(f"no lane honours {', '.join(missing)} exactly; lane {lane.name} comes nearest")
    return Resolution(lane, effective, tuple(reasons))


def nearest(plan: Plan, able: Abilities) -> tuple[tuple[int, int], Plan]:
    """The plan nearest to `plan` that a lane can run, and how far it is: (kind of difference, difference in k).

    Kinds: the same drafter, one that drafts in a like way, any other, none where one was wanted, one where none was.
    """
    if plan.is_off:
        return ((0, 0), PLAN_OFF) if able.can_be_off else _first(able, lambda name: 4, 1)
    if plan.drafter in able.drafters:
        k = able.drafters[plan.drafter].nearest(plan.k)
        return (0, abs(k - plan.k)), Plan(plan.drafter, k)
    if able.drafters:
        return _first(able, lambda name: 1 if (name in _COPYING) == (plan.drafter in _COPYING) else 2, plan.k)
    return (3, 0), PLAN_OFF


def _first(able: Abilities, kind: Callable[[str], int], k: int) -> tuple[tuple[int, int], Plan]:
    """Of the drafters that a lane has in place of the wanted one, the first of the best kind."""
    name = min(able.drafters, key=kind)
    effective = Plan(name, able.drafters[name].nearest(k))
    return (kind(name), abs(effective.k - k)), effective


def _able(lane: Lane, carries_plan: bool) -> Abilities:
    return lane.abilities if carries_plan else lane.abilities.without_plans()


def _missing(wanted: Mapping[Surface, str], lane: Lane) -> list[Surface]:
    return [surface for surface in wanted if surface not in lane.abilities.surfaces]


def _why_not(plan: Plan, effective: Plan, lane: Lane, lanes: Sequence[Lane], carries_plan: bool) -> str:
    asked = OFF if plan.is_off else f"{plan.drafter} with k {plan.k}"
    runs = OFF if effective.is_off else f"{effective.drafter} with k {effective.k}"
    is_possible = any(nearest(plan, _able(other, carries_plan))[1] == plan for other in lanes)
    why = "the lanes that could do not honour all of the sampling" if is_possible else "no lane that is ready can"
    if not carries_plan:
        why += " (the route carries no plan, so that each lane runs its own)"
    return f"the plan was {asked}, lane {lane.name} runs {runs}: {why}"
