"""Loading a draft model: another tokenizer is refused in words, a slow model is warned about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from random_llama import write_random_llama

from outrider.engine.drafters.draft_model import load_draft_model, step_s, vocabulary_difference
from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError


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
    load_draft_model(tmp_path / "small", target, tokenizer)
    assert not caplog.records
    load_draft_model(tmp_path / "large", target, tokenizer)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "of a target step (more than 0.3)" in record.getMessage()


def test_skipped_layers_save_time(tmp_path: Path) -> None:
    """A pass without most of its layers is measured as faster."""
    write_random_llama(tmp_path, num_layers=24, hidden_size=64)
    model = LlamaModel(tmp_path)
    assert step_s(model, frozenset(range(2, 24))) < 0.7 * step_s(model)
