"""Simulated worlds: the rows where a rule without costs loses, and mixed traffic against plain decoding."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from policy_world import EMBEDDED, decide, features, lane, only, toy_cost, view

from outrider.config import packaged_data
from outrider.core import LaneAbility, SpecStats
from outrider.cost import ClosedCost
from outrider.policy.learning import Feedback
from outrider.policy.loader import Source, load_policies
from outrider.policy.rounds import Rounds
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


@pytest.mark.parametrize("drafter", ["draft_model", "eagle3"])
@pytest.mark.parametrize(("batch", "draft", "alpha", "ks"), ROWS)
def test_within_two_percent_of_the_best_candidate(
    batch: int, draft: float, alpha: float, ks: tuple[int, ...], drafter: str
) -> None:
    """Over four hundred requests from the priors on, learning and tries included; heads draft chains, as SGLang's."""
    policies = only(drafters={drafter: {"max_k": 16}})
    ability = lane(drafter=drafter, ks=ks, cost=toy_cost(draft), max_running=256)
    random, plans = Random(1), Counter()
    for _ in range(400):
        decision = decide(policies, features("chat"), view(ability, batch - 1))
        served = serve(decision, Arrival(0, decision.features, 128), constant_truth(alpha), random)
        policies.learn(decision, served.feedback)
        plans[decision.plan.k] += 1
    mean = 400 / sum(n / gain(alpha, k, draft, batch) for k, n in plans.items())
    assert mean >= 0.98 * max(gain(alpha, k, draft, batch) for k in (0, *ks))


#: How often the drafts of a head's trees are accepted, likeliest first: of a broad tree, and of one that is a chain.
TREES = [(0.5, 0.3, 0.22, 0.17, 0.13, 0.1, 0.08, 0.06), (0.8, 0.68, 0.58, 0.49, 0.42, 0.36, 0.3, 0.26)]


@pytest.mark.parametrize("truth", TREES)
@pytest.mark.parametrize("knee", [1, 4, 16])
def test_the_tree_that_is_chosen_is_within_three_percent_of_the_best(knee: int, truth: tuple[float, ...]) -> None:
    """Over four hundred requests, by sizes up to eight drafts, where rows are dear and where they are cheap."""
    policies = only(drafters={"eagle2": {"max_k": 8, "prior": 0.6}})
    ability = lane(drafter="eagle2", ks=range(1, 9), cost=ClosedCost(0.02, knee, 0.02, 0.4, {"eagle2": 0.04}))
    costs = Rounds().round_s(ability, "eagle2", (1, 128), 1.0)
    rates = [(1 + sum(truth[:k])) / costs[k] for k in range(9)]
    random, plans = Random(1), Counter()
    for _ in range(400):
        decision = decide(policies, features("chat"), view(ability))
        k = decision.plan.k
        plans[k] += 1
        counts, by_draft = [0] * (k + 1), [0] * k
        for _ in range(40):
            accepted = [place for place in range(k) if random.random() < truth[place]]
            counts[len(accepted)] += 1
            for place in accepted:
                by_draft[place] += 1
        num_accepted = sum(by_draft)
        stats = SpecStats(40, num_accepted, tuple(counts), 40 * k, tuple(by_draft)) if k else None
        num_tokens = 41 + num_accepted
        policies.learn(decision, Feedback(stats, num_tokens, num_tokens / rates[k]))
    assert 400 / sum(n / rates[k] for k, n in plans.items()) >= 0.97 * max(rates), (plans, rates)


@pytest.mark.parametrize("rate", [0.2, 2.0, 8.0])
def test_the_shipped_policies_gain_and_no_task_loses(rate: float) -> None:
    """All tasks and temperatures at three rates of arrival, in a world that is as the priors say.

    The worst is quoting on a full lane, 0.978 at the rate of 2. Until some requests have shown it, look-ups are
    believed to propose less often there than they do, so that their rounds look cheaper; to believe more would give
    up what quotes in large batches gain on the real engine, where rows cost less than this closed form says.
    """
    policies = load_policies(Source([packaged_data("policies")]))
    arrivals = traffic(Random(1), 600, rate)
    taken, plain = Counter(), Counter()
    for served in simulate(policies, [EMBEDDED], arrivals, usual_truth, Random(2)):
        taken[served.arrival.features.task] += served.seconds
        plain[served.arrival.features.task] += served.plain_s
    ratios = {task: plain[task] / taken[task] for task in taken}
    assert min(ratios.values()) >= 0.97, ratios
    assert rate > 1 or ratios["quote"] > 1.3


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
