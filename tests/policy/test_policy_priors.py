"""Priors: what tasks, temperatures, dry runs and cards make of a drafter before anything of it was seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from policy_world import decide, features, view

from outrider.config import packaged_data
from outrider.core import TASKS, LaneAbility
from outrider.policy.loader import Source, load_policies
from outrider.policy.priors import LOOK_UPS, Cell, prior_hazards

CELL = Cell("draft_model", True, 0, "chat", 0)


@pytest.mark.parametrize("task", TASKS)
def test_deterministic_drafts_lose_acceptance_as_temperature_rises_and_sampled_ones_do_not(task: str) -> None:
    """The proposal's kind decides what temperature does."""
    point = [prior_hazards(Cell("ngram", False, bucket, task, 0))[0] for bucket in range(5)]
    drawn = [prior_hazards(Cell("draft_model", True, bucket, task, 0))[0] for bucket in range(5)]
    assert point == sorted(point, reverse=True) and point[0] > 2 * point[4]
    assert len(set(drawn)) == 1


def test_a_workloads_own_prior_and_a_dry_run_come_first() -> None:
    """The first hazard is the one given; a dry run only raises it, and only a look-up's."""
    ngram = CELL._replace(drafter="ngram", is_sampled=False)
    assert prior_hazards(ngram, first=0.9)[0] == 0.9
    assert prior_hazards(ngram, floor=0.75)[0] == 0.75
    assert prior_hazards(ngram, first=0.9, floor=0.75)[0] == 0.9
    assert prior_hazards(CELL, floor=0.99)[0] < 0.99


def test_what_a_heads_card_says_comes_before_published_figures() -> None:
    """Chains as the card has them, for a task as far from it as tasks differ; in trees later drafts are likelier."""
    card = (0.5, 0.4)
    eagle = Cell("eagle2", True, 4, "summarise", 0)
    chain = prior_hazards(eagle, accuracy=card)
    assert chain == pytest.approx([0.4505, *[0.3604] * 4], abs=1e-3)
    assert prior_hazards(eagle._replace(task="code"), accuracy=card)[0] == pytest.approx(0.563, abs=1e-3)
    tree = prior_hazards(eagle._replace(temperature=0), accuracy=card)
    assert tree[:2] == chain[:2] and min(tree[2:]) > max(chain[2:])
    assert prior_hazards(eagle, first=0.9, accuracy=card) == (0.9, *chain[1:])


@pytest.mark.parametrize("task", TASKS)
def test_a_hybrid_gets_as_much_right_as_the_better_of_its_parts(task: str) -> None:
    """Of its first drafts; where one part is much better, the later ones are nearly that one's."""
    head, text = (prior_hazards(Cell(name, name != "suffix", 0, task, 0)) for name in ("eagle2", "suffix"))
    both = prior_hazards(Cell("hybrid", True, 0, task, 0))
    assert both[0] >= max(head[0], text[0])
    assert all(min(a, b) <= mixed <= max(a, b) for a, b, mixed in zip(head[1:], text[1:], both[1:], strict=True))


def headed() -> LaneAbility:
    """An engine of ours with the heads that ship, as their cards tell of them."""
    accuracy = {}
    for path in packaged_data("heads").glob("*/config.json"):
        card = json.loads(path.read_text(encoding="utf-8"))["outrider"]
        names = ["medusa"] if card["kind"] == "medusa" else ["eagle2", "hybrid"]
        accuracy |= dict.fromkeys(names, tuple(row[0] for row in card["accuracy"]))
    plain = LaneAbility.embedded("one", ("ngram", "suffix", "prediction", *accuracy))
    drafters = [replace(one, accuracy=accuracy.get(one.drafter, ())) for one in plain.drafters]
    return replace(plain, drafters=tuple(drafters))


@pytest.mark.parametrize(
    ("task", "temperature", "drafter"),
    [
        ("code", 0.0, "hybrid"), ("code", 0.7, "hybrid"), ("maths", 0.0, "hybrid"), ("chat", 0.0, "hybrid"),
        ("edit", 0.0, "suffix"), ("quote", 0.0, "suffix"), ("translate", 0.0, "suffix"), ("chat", 0.7, "off"),
        ("creative", 1.2, "off"),
    ],
)  # fmt: skip
def test_shipped_policies_with_the_heads_that_ship(task: str, temperature: float, drafter: str) -> None:
    """Before anything is learnt: a head where nothing repeats, as measured on two cores, and beside others none, as
    each is drafted for in turn."""
    able = headed()
    assert (
        decide(
            load_policies(Source([packaged_data("policies")])), features(task, temperature), view(able)
        ).plan.drafter
        == drafter
    )
    for num_others in (3, 11, None):
        plan = decide(
            load_policies(Source([packaged_data("policies")])), features(task, temperature), view(able, num_others)
        ).plan
        assert plan.drafter in (*LOOK_UPS, "off")
