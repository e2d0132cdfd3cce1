"""A policy against a model of lanes: arrivals, acceptance and costs are given; it decides and learns as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from outrider.core import MAX_K, TASKS, Hints, LaneAbility, LaneLoad, LaneView, SpecStats
from outrider.policy.counts import DEPTHS
from outrider.policy.decide import PolicySet
from outrider.policy.decision import Decision
from outrider.policy.features import Features
from outrider.policy.learning import Feedback
from outrider.policy.priors import LOOK_UPS, Cell, prior_hazards, temperature_bucket

#: Share of the rounds without an accepted draft in which a look-up has drafts all the same.
_MISSED_FILL = 0.15
#: Hazards of a drafter for a task at a temperature: what is true in the simulated world.
Truth = Callable[[str, Features], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the simulated traffic."""

    at_s: float
    features: Features
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """How one request went."""

    arrival: Arrival
    decision: Decision
    feedback: Feedback
    seconds: float
    plain_s: float
    """What plain decoding would have taken on the same lane at the same load."""


def usual_truth(drafter: str, features: Features) -> Sequence[float]:
    """The world as the priors describe it."""
    cell = Cell(drafter, False, temperature_bucket(features.temperature), features.task, 0)
    return prior_hazards(cell)


def constant_truth(alpha: float) -> Truth:
    """Every draft of every drafter is accepted with the same probability."""
    hazards = (alpha,) * DEPTHS
    return lambda drafter, features: hazards


def traffic(random: Random, num: int, rate: float, tasks: Sequence[str] = TASKS) -> Iterator[Arrival]:
    """Poisson arrivals, `rate` a second, over tasks and temperatures alike."""
    at_s = 0.0
    for _ in range(num):
        at_s += random.expovariate(rate)
        features = Features(
            temperature=random.choice((0.0, 0.3, 0.7, 1.0, 1.2)),
            task=random.choice(list(tasks)),
            is_task_given=True,
            num_prompt_chars=800,
            num_prompt_tokens=200,
            dry_run=0.0,
            num_messages=1,
            is_stream=True,
        )
        yield Arrival(at_s, features, random.randint(48, 256))


def simulate(
    policies: PolicySet, lanes: Sequence[LaneAbility], arrivals: Iterable[Arrival], truth: Truth, random: Random
) -> Iterator[Served]:
    """Serve the arrivals in order; a request keeps the speed of the load that it met."""
    busy: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for arrival in arrivals:
        views = []
        for lane in lanes:
            busy[lane.name] = [end for end in busy[lane.name] if end > arrival.at_s]
            total = len(busy[lane.name])
            running = min(total, lane.max_running)
            views.append(LaneView(lane, LaneLoad(running, total - running, lane.max_running, arrival.at_s)))
        decision = policies.decide(arrival.features, Hints(), views, arrival.at_s)
        served = serve(decision, arrival, truth, random)
        busy[decision.lane].append(arrival.at_s + served.seconds)
        policies.learn(decision, served.feedback)
        yield served


def serve(decision: Decision, arrival: Arrival, truth: Truth, random: Random) -> Served:
    """Write one answer round by round."""
    plan, num_tokens = decision.plan, arrival.num_tokens
    plain_s = (num_tokens - 1) * decision.plain_round_s()
    if plan.is_off:
        return Served(arrival, decision, Feedback(None, num_tokens, plain_s), plain_s, plain_s)
    hazards = truth(plan.drafter, arrival.features)
    histogram = [0] * (plan.k + 1)
    written = 1
    while written < num_tokens:
        accepted = _accepted(hazards, min(plan.k, MAX_K), random)
        histogram[accepted] += 1
        written += accepted + 1
    rounds = sum(histogram)
    num_accepted = sum(i * n for i, n in enumerate(histogram))
    fill = _MISSED_FILL if plan.drafter in LOOK_UPS else 1.0
    num_drafted = rounds - histogram[0] + round(fill * histogram[0])
    seconds = rounds * decision.round_s(num_drafted / rounds)
    stats = SpecStats(rounds, num_accepted, tuple(histogram), num_drafted * plan.k)
    plain_s = (written - 1) * decision.plain_round_s()
    return Served(arrival, decision, Feedback(stats, written, seconds), seconds, plain_s)


def _accepted(hazards: Sequence[float], k: int, random: Random) -> int:
    accepted = 0
    while accepted < k and random.random() < hazards[min(accepted, len(hazards) - 1)]:
        accepted += 1
    return accepted
