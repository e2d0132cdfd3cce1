"""Real arms on the toy: what they count, what a budget and an interruption leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from markov import VOCAB, write_markov_checkpoint
from outrider.cli.bench.first_layers import write_first_layers
from outrider.cli.bench.hugging_face import ASSISTED, HuggingFaceArm
from outrider.cli.bench.measure import (
    BATCH_SIZES,
    Arms,
    Clock,
    Results,
    measure_batches,
    measure_step,
    measure_visits,
)
from outrider.cli.bench.ours import EngineArm, plan_of, spoilt
from outrider.cli.bench.samples import SETTING_OFF, Case, Sample, Setting
from outrider.cli.bench.visits import Visit
from outrider.engine.drafters.layer_skip import LayerSet, Worth, write_layer_set
from outrider.engine.profile import layers_path

CASE = Case("toy", "edit", "ABCDABCDAB", 0.0, 40)
DRAFTERS = [Setting("ngram", 3), Setting("suffix", 3), Setting("layer_skip", 2), Setting("prediction", 6)]


@pytest.fixture(scope="module")
def ours(toy_folder: Path) -> EngineArm:
    return EngineArm(toy_folder)


def quiet(what: str, fraction: float) -> None:
    """Progress that nobody watches."""


def test_every_tenth_token_of_a_prediction_is_wrong() -> None:
    """And still a token of the vocabulary."""
    made = spoilt([5] * 19 + [9], 10)
    assert [i for i, token in enumerate(made) if token != 5] == [9, 19]
    assert (made[9], made[19]) == (6, 0)


def test_every_drafter_writes_the_text_of_off_and_is_timed(ours: EngineArm) -> None:
    """Counts end at the tokens, moments ascend, and time in proposals is a part of decoding."""
    results = Results()
    measure_visits(Arms(ours), [Visit(CASE, (SETTING_OFF, *DRAFTERS))], Clock(1.0, quiet), results)
    off, *drafted = results.samples
    assert off.num_tokens == 40
    assert (off.stats, off.draft_s) == (None, 0.0)
    for sample in drafted:
        assert sample.token_ids == off.token_ids
        assert sample.counts[-1] == 40
        assert list(sample.times_s) == sorted(sample.times_s)
        assert sample.stats is not None
        decoded = sample.decode()
        assert decoded is not None
        assert 0.0 < sample.draft_s < decoded[1]


def test_a_spoilt_prediction_is_followed_for_nine_tokens_in_ten(tmp_path: Path) -> None:
    """Made from the off answer, of a text in which no token comes twice."""
    ring = np.full((VOCAB, VOCAB), -30.0)
    ring[np.arange(VOCAB), (np.arange(VOCAB) + 7) % VOCAB] = 0.0
    write_markov_checkpoint(tmp_path / "ring", ring)
    arm, setting = EngineArm(tmp_path / "ring"), Setting("prediction", 16)
    off = arm.run(CASE, SETTING_OFF, plan_of(SETTING_OFF))
    predicted = arm.run(CASE, setting, plan_of(setting), 0, off.token_ids)
    assert predicted.token_ids == off.token_ids
    assert predicted.stats is not None
    assert 8.0 < predicted.stats.accept_length <= 10.0


def test_hugging_face_writes_the_same_in_four_ways(ours: EngineArm, toy_folder: Path, tmp_path: Path) -> None:
    """Plain, with look-up, with an early exit, and with its first layers as assistant."""
    write_first_layers(toy_folder, tmp_path / "draft", 1)
    theirs = HuggingFaceArm(toy_folder, tmp_path / "draft")
    off = ours.run(CASE, SETTING_OFF, plan_of(SETTING_OFF))
    assert theirs.arms == ["hf", "hf_lookup", "hf_early_exit", "hf_assisted"]
    for arm in theirs.arms:
        sample = theirs.run(CASE, ours.encode(CASE), Setting(arm))
        limit = 16 if arm in ASSISTED else 32
        assert sample.token_ids == off.token_ids[:limit]
        assert sample.counts[-1] == limit


def test_time_that_is_over_ends_the_visits_after_the_first(ours: EngineArm) -> None:
    """A budget too small for anything still gives one case whole."""
    visits = [Visit(CASE, (SETTING_OFF, Setting("ngram", 3)))] * 3
    results = Results()
    measure_visits(Arms(ours), visits, Clock(1e-9, quiet), results)
    assert (results.num_visits, results.num_planned, len(results.samples)) == (1, 3, 2)


def test_an_interruption_keeps_what_was_answered(ours: EngineArm) -> None:
    """Ctrl-C in the middle of an arm loses that answer only."""

    def interrupted(case: Case, prompt_ids: tuple[int, ...], setting: Setting) -> Sample | None:
        raise KeyboardInterrupt

    results = Results()
    arms = Arms(ours, {"hf": interrupted})
    with pytest.raises(KeyboardInterrupt):
        measure_visits(arms, [Visit(CASE, (SETTING_OFF, Setting("hf")))], Clock(1.0, quiet), results)
    assert [sample.setting for sample in results.samples] == [SETTING_OFF]


def test_an_arm_that_cannot_answer_leaves_no_sample(ours: EngineArm) -> None:
    """As when a prompt does not fit another program's context."""
    results = Results()
    arms = Arms(ours, {"llama": lambda case, prompt_ids, setting: None})
    measure_visits(arms, [Visit(CASE, (Setting("llama"), SETTING_OFF))], Clock(1.0, quiet), results)
    assert [sample.setting for sample in results.samples] == [SETTING_OFF]


def test_a_sweep_measures_each_size_and_leaves_the_engine_idle(ours: EngineArm) -> None:
    """Off and one drafter, at least once each."""
    results = Results()
    measure_batches(ours, [CASE], Clock(1e-9, quiet), results)
    assert {batch.size for batch in results.batch} == set(BATCH_SIZES)
    assert len(results.batch) == 2 * len(BATCH_SIZES)
    assert all(batch.tokens_per_s > 0 for batch in results.batch)
    assert not ours.engine.has_work


def test_a_step_is_taken_apart(ours: EngineArm) -> None:
    """Reading, operators and Python all take time."""
    results = Results()
    measure_step(ours, CASE, Clock(1.0, quiet), results)
    assert results.anatomy is not None and results.anatomy.read_s > 0
    assert 0 <= results.anatomy.python_share < 1


def test_the_layers_that_the_profile_found_are_skipped(
    toy_folder: Path, ours: EngineArm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a stored set; else the default one."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    path = layers_path(toy_folder, tmp_path)
    path.parent.mkdir(parents=True)
    worth = Worth(k=2, accept_length=1.5, speedup=1.25, step_cost=0.5, num_tokens=9)
    write_layer_set(path, LayerSet(num_layers=ours.engine.model.config.num_layers, skip=(), worth=worth))
    default, stored = (arm.engine.drafters.info["layer_skip"] for arm in (ours, EngineArm(toy_folder)))
    assert default["worth"] is None and stored["worth"]["speedup"] == 1.25
