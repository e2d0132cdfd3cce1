"""Loading a draft model: another tokenizer is refused in words, a slow model is warned about."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from outrider.cli.bench.first_layers import write_first_layers
from outrider.config import packaged_data
from outrider.engine.drafters.draft_model import load_draft_model, step_s, vocabulary_difference
from outrider.engine.drafters.layer_skip import LayerSet, write_layer_set
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw
from outrider.workloads.suite import load_prompts
from random_llama import write_random_llama


def test_equal_vocabularies_do_not_differ() -> None:
    """The order of the tables does not matter."""
    assert vocabulary_difference({"a": 0, "b": 1}, {"b": 1, "a": 0}) is None


def test_the_first_different_tokens_are_named() -> None:
    """Replaced and missing tokens are shown with both texts, and the rest is counted."""
    draft = {"a": 0, "x": 1, "c": 2, "d": 3, "e": 4}
    target = {"a": 0, "b": 1, "c": 2}
    assert vocabulary_difference(draft, target) == (
        "token 1 is 'x' there and 'b' here, token 3 is 'd' there and None here, token 4 is 'e' there and None here"
    )
    many = {str(i): i for i in range(10)}
    assert (vocabulary_difference(many, {}) or "").endswith("and 7 more differ")


def test_another_tokenizer_is_refused(toy_folder: Path, tmp_path: Path) -> None:
    """The error names the folder and what differs."""
    write_random_llama(tmp_path, num_layers=1)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["B"], vocabulary["C"] = vocabulary["C"], vocabulary["B"]
    path.write_text(json.dumps(data))
    with pytest.raises(
        ModelError, match=r"needs the target's tokenizer, but token 1 is 'C' there and 'B' here, token 2"
    ):
        load_draft_model(tmp_path, LlamaModel(toy_folder), Tokenizer(toy_folder))


def test_a_model_as_slow_as_the_target_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the measured ratio; a much smaller model gives none."""
    write_random_llama(tmp_path / "large", num_layers=24, hidden_size=64)
    write_random_llama(tmp_path / "small", num_layers=1)
    target, tokenizer = LlamaModel(tmp_path / "large"), Tokenizer(tmp_path / "large")
    small = load_draft_model(tmp_path / "small", target, tokenizer)
    assert small.step_cost <= 0.3 and small.warning is None and not caplog.records
    large = load_draft_model(tmp_path / "large", target, tokenizer)
    (record,) = caplog.records
    assert large.warning and f"takes {large.step_cost:.2f} of a step of the target" in large.warning
    assert record.levelname == "WARNING" and large.warning in record.getMessage()


def test_skipped_layers_save_time(tmp_path: Path) -> None:
    """A pass without most of its layers is measured as faster."""
    write_random_llama(tmp_path, num_layers=24, hidden_size=64)
    model = LlamaModel(tmp_path)
    skipping = partial(model.forward, skip=frozenset(range(2, 24)))
    assert step_s(model, skipping) < 0.7 * step_s(model, model.forward)


@pytest.mark.model
def test_real_weights_draft_for_real_weights(model_folder: Path, tmp_path: Path) -> None:
    """A draft model of 27 of 30 layers and a layer set with a narrow head: texts as without; the cost is measured."""
    write_first_layers(model_folder, tmp_path / "draft", 27)
    layers = LayerSet(num_layers=30, skip=(10, 12), num_head_tokens=8192)
    write_layer_set(tmp_path / "set.json", layers)
    engine = Engine(model_folder, EngineLimits(), DraftOptions(tmp_path / "draft", tmp_path / "set.json"))
    info = engine.drafters.info["draft_model"]
    assert info["step_cost"] > 0.3 and f"takes {info['step_cost']:.2f} of" in info["warning"]
    plans = [PLAN_OFF, Plan("draft_model", 1), Plan("draft_model", 4), Plan("layer_skip", 1), Plan("layer_skip", 4)]
    texts: dict[str, str] = {}
    num_accepted = dict.fromkeys(("draft_model", "layer_skip"), 0)
    for prompt in load_prompts(packaged_data("workloads") / "tasks.yaml")[1:7:5]:
        ids = tuple(engine.tokenizer.encode_chat(prompt.messages))
        for plan in plans:
            rid = f"{prompt.name}/{plan.drafter}/{plan.k}"
            engine.add(GenerateRequest(rid, ids, SamplingLaw(0.0), 16, plan, 0, cache_salt=plan.drafter))
    while engine.has_work:
        for output in engine.step():
            texts[output.rid] = texts.get(output.rid, "") + output.text
            if output.stats is not None:
                num_accepted[output.rid.split("/")[1]] += output.stats.num_accepted
    assert [rid for rid, text in texts.items() if text != texts[f"{rid.split('/')[0]}/off/0"]] == []
    assert len(texts) == 10 and min(num_accepted.values()) > 0, num_accepted
