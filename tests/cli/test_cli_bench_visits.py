"""Which cases are answered, by whom, in which order."""

from __future__ import annotations

from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.cli.bench.visits import POLICY, Tiers, drafter_visits, greedy_cases, settings_of, task_visits
from outrider.core import Task
from outrider.workloads.spec_bench import Question
from outrider.workloads.suite import Job


def prompt(name: str, task: Task, temperature: float = 0.0) -> Job:
    return Job(name=name, task=task, temperature=temperature, max_tokens=200, text=name)


PROMPTS = [
    prompt("q1", "quote"), prompt("q2", "quote"), prompt("e1", "edit"), prompt("c1", "code"),
    prompt("hot", "quote", 1.0),
]  # fmt: skip


def test_groups_take_turns_and_hot_prompts_stay_out() -> None:
    """Greedy text can be compared; one of each task comes before the second of any."""
    assert [case.name for case in greedy_cases(PROMPTS, [], 0)] == ["q1", "e1", "c1", "q2"]


def test_with_questions_at_hand_only_what_they_lack_is_ours() -> None:
    """A category is a group; the first turn is the prompt."""
    questions = [Question(question_id=i, category="qa", turns=[f"turn {i}", "more"]) for i in (7, 8)]
    cases = greedy_cases(PROMPTS, questions, 0)
    assert [case.group for case in cases] == ["quote", "edit", "spec/qa", "quote", "spec/qa"]
    assert {case.text for case in cases if case.group == "spec/qa"} == {"turn 7", "turn 8"}
    assert {case.group: case.max_tokens for case in cases} == {"quote": 64, "edit": 128, "spec/qa": 64}


def test_off_stands_before_and_after_and_costly_arms_see_less() -> None:
    """Slow arms see the first cases, heavy ones each group once; the rest begins with another arm each time; a
    predicted group is predicted at each k."""
    cases = [Case("q1", "quote", "a"), Case("e1", "edit", "b"), Case("q2", "quote", "c")]
    light, heavy, slow = [Setting("ngram", 3), Setting("suffix", 3)], [Setting("hf")], [Setting("layer_skip", 2)]
    visits = drafter_visits(cases, Tiers(light, heavy, slow), 1.0)
    assert all(visit.settings[0] == visit.settings[-1] == SETTING_OFF for visit in visits)
    assert visits[0].settings[1:-1] == (*light, *heavy, *slow)
    assert set(visits[1].settings[1:-1]) == {*light, *heavy, *settings_of(["prediction"])}
    assert visits[1].settings[1] == light[1]
    assert visits[2].settings[1:-1] == tuple(light)


def test_the_policy_and_off_take_turns_in_rounds() -> None:
    """At the prompts' own temperature and length; Hugging Face answers in the first round only."""
    visits = task_visits(PROMPTS, [Setting("hf")])
    assert {visit.round for visit in visits} == {0, 1, 2}
    assert visits[0].settings == (SETTING_OFF, POLICY, Setting("hf"))
    assert visits[1].settings == (POLICY, SETTING_OFF, Setting("hf"))
    assert visits[5].settings == (POLICY, SETTING_OFF)
    assert (visits[4].case.temperature, visits[4].case.max_tokens) == (1.0, 200)
