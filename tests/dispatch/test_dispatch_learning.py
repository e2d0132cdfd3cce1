"""From outcomes to learning, and the file that keeps it over restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.config import packaged_data
from outrider.core import Hints, LaneAbility, LaneLoad, LaneView, Outcome, SpecStats
from outrider.dispatch.learning import LearningStore, feedback_of, record_of
from outrider.errors import ConfigError
from outrider.policy.evaluate import Record
from outrider.policy.features import extract_features
from outrider.policy.learning import Learner
from outrider.policy.loader import Source, load_policies

STATS = SpecStats(10, 12, (4, 2, 2, 2))
KEY = {"model": "m", "build": "1"}


def decided():
    policies = load_policies(Source([packaged_data("policies")]))
    body = {"messages": [{"role": "user", "content": "Write a Python function."}], "temperature": 0}
    view = LaneView(LaneAbility.embedded("one"), LaneLoad(0, 0, 16, 0.0))
    return policies, policies.decide(extract_features(body, Hints()), Hints(), [view], 0.0)


def finished():
    return Outcome(200, stats=STATS, num_completion_tokens=23, phases={"decode": 0.5})


@pytest.mark.parametrize("status", [499, 500, 503])
def test_only_answers_teach(status):
    """What was broken off says nothing about speed."""
    assert feedback_of(Outcome(status, "x", STATS)) is None
    feedback = feedback_of(finished())
    assert (feedback.stats, feedback.num_tokens, feedback.decode_s) == (STATS, 23, 0.5)


def test_what_was_learnt_survives_a_restart(tmp_path: Path):
    """On the same model and build, and not on others; saving twice keeps the later."""
    policies, decision = decided()
    path = tmp_path / "learnt.sqlite"
    store = LearningStore(path)
    assert store.load(KEY).ledgers == {}
    store.save(Learner(), KEY)
    policies.learn(decision, feedback_of(finished()))
    store.save(policies.learner, KEY)
    store.close()
    again = LearningStore(path)
    assert again.load(KEY).to_state(KEY) == policies.learner.to_state(KEY)
    assert again.load(KEY | {"build": "2"}).ledgers == {}
    again.close()


def test_records_are_kept_in_order_and_can_be_replayed(tmp_path: Path):
    """Written with the next save, and readable as records."""
    _, decision = decided()
    store = LearningStore(tmp_path / "learnt.sqlite")
    for _ in range(3):
        store.record(decision, finished())
    assert list(store.records()) == []
    store.save(Learner(), KEY)
    found = list(store.records())
    store.close()
    assert found[0] == json.loads(json.dumps(record_of(decision, finished())))
    assert len(found) == 3
    record = Record.from_wire(json.loads(json.dumps(found[0])))
    assert (record.plan, record.stats, record.num_running) == (decision.plan, STATS, 1)
    assert record.features == decision.features


def test_a_file_that_is_no_store_is_refused(tmp_path: Path):
    """With its name."""
    path = tmp_path / "x.sqlite"
    path.write_text("not a database, but long enough to be looked at" * 10, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x\.sqlite: cannot be used as a learning store"):
        LearningStore(path)
