"""Simulated worlds: the rows where a rule without costs loses, and mixed traffic against plain decoding."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from policy_world import EMBEDDED, decide, features, lane, only, toy_cost, view

from outrider.config import packaged_data
from outrider.core import LaneAbility
from outrider.policy.loader import Source, load_policies
from outrider.policy.simulate import Arrival, constant_truth, serve, simulate, traffic, usual_truth
from outrider.policy.speedup import expected_tokens

#: Batch, draft cost, acceptance and the k that may be chosen, as published for a rule that looks at acceptance alone;
#: that rule loses up to 17 % in these rows.
ROWS = [
    (1, 0.05, 0.7, (1, 3, 5, 7)), (1, 0.05, 0.8, (1, 3, 5, 7)), (4, 0.05, 0.8, (1, 3, 5, 7)),
    (4, 0.05, 0.9, (1, 3, 5, 7)), (4, 0.10, 0.8, (1, 3, 5, 7)), (8, 0.05, 0.3, (1, 3)), (16, 0.05, 0.3, (1, 3)),
    (32, 0.05, 0.3, (1,)), (32, 0.05, 0.5, (1,)), (8, 0.05, 0.9, (1, 3)), (16, 0.05, 0.9, (1, 3)),
    (32, 0.05, 0.7, (1,)), (64, 0.05, 0.7, ()),
]  # fmt: skip


def gain(alpha: float, k: int, draft: float, batch: int) -> float:
    """Speed over plain decoding in that world."""
    verify = max(1, batch * (k + 1) / 256) / max(1, batch / 256)
    return expected_tokens(alpha, k) / (verify + k * draft)


@pytest.mark.parametrize(("batch", "draft", "alpha", "ks"), ROWS)
def test_within_two_percent_of_the_best_candidate(
    batch: int, draft: float, alpha: float, ks: tuple[int, ...]
) -> None:
    """Over four hundred requests from the priors on, learning and tries included."""
    policies = only(drafters={"draft_model": {"max_k": 16}})
    ability = lane(ks=ks, cost=toy_cost(draft), max_running=256)
    random, plans = Random(1), Counter()
    for _ in range(400):
        decision = decide(policies, features("chat"), view(ability, batch - 1))
        served = serve(decision, Arrival(0, decision.features, 128), constant_truth(alpha), random)
        policies.learn(decision, served.feedback)
        plans[decision.plan.k] += 1
    mean = 400 / sum(n / gain(alpha, k, draft, batch) for k, n in plans.items())
    assert mean >= 0.98 * max(gain(alpha, k, draft, batch) for k in (0, *ks))


@pytest.mark.parametrize("rate", [0.2, 2.0, 8.0])
def test_the_shipped_policies_gain_and_no_task_loses(rate: float) -> None:
    """All tasks and temperatures at three rates of arrival, in a world that is as the priors say."""
    policies = load_policies(Source([packaged_data("policies")]))
    arrivals = traffic(Random(1), 600, rate)
    taken, plain = Counter(), Counter()
    for served in simulate(policies, [EMBEDDED], arrivals, usual_truth, Random(2)):
        taken[served.arrival.features.task] += served.seconds
        plain[served.arrival.features.task] += served.plain_s
    ratios = {task: plain[task] / taken[task] for task in taken}
    assert min(ratios.values()) >= 0.97, ratios
    assert ratios["quote"] > (1.3 if rate < 1 else 1.0)


def test_two_lanes_share_the_traffic() -> None:
    """Equal lanes get about as much each."""
    lanes = [LaneAbility("one", EMBEDDED.drafters, cost=EMBEDDED.cost),
             LaneAbility("two", EMBEDDED.drafters, cost=EMBEDDED.cost)]  # fmt: skip
    served = simulate(only(), lanes, traffic(Random(1), 300, 4.0), usual_truth, Random(2))
    counts = Counter(one.decision.lane for one in served)
    assert min(counts.values()) > 100


def test_the_same_seeds_give_the_same_world() -> None:
    """A simulation can be repeated."""
    runs = [
        [one.seconds for one in simulate(only(), [EMBEDDED], traffic(Random(1), 50, 1.0), usual_truth, Random(2))]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
