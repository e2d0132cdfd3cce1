"""The target writes many texts at once: each is what it would write alone, with the states that it has then."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.model import LlamaModel
from outrider.engine.taps import Taps
from outrider.engine.tokenizer import Tokenizer
from outrider.training.features import points_of
from outrider.training.prompts import OWN, TrainingPrompt
from outrider.training.writer import MAX_ANSWER, MAX_QUESTION, Writer, Written
from random_llama import write_random_llama

#: Of the toy's 64 tokens: what ends a turn.
STOP = 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template with a beginning, and a token that ends turns."""
    folder = tmp_path_factory.mktemp("model") / "llama"
    write_random_llama(folder, num_layers=3, seed=3)
    template = "BC{{ messages[0]['content'] }}JKL"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP}))
    return folder


def written(model: Path, prompts: list[TrainingPrompt], seed: int = 0) -> list[Written]:
    target = LlamaModel(model)
    writer = Writer(target, Tokenizer(model), points_of(target), seed)
    return sorted(writer.write(iter(prompts), lambda num_begun: True), key=lambda text: text.prompt.index)


def test_each_text_is_written_as_if_alone(model: Path) -> None:
    """Greedy answers of a batch of different lengths follow the target's own law, and so do all states."""
    prompts = [TrainingPrompt(i, "chat", "DEFG" * (i + 1), 0.0) for i in range(5)]
    target = LlamaModel(model)
    points = points_of(target)
    for text in written(model, prompts):
        tokens, taps = (*text.prompt_ids, *text.answer_ids), Taps(points)
        logits = target.forward([Segment(target.new_cache(len(tokens)), tokens, len(text.answer_ids) + 1)], taps=taps)
        agree = logits[:-1].argmax(dim=-1) == torch.tensor(text.answer_ids)
        assert float(agree.float().mean()) > 0.95
        expected = taps.features(points, range(len(tokens)))
        torch.testing.assert_close(text.states.float(), expected, atol=2e-2, rtol=2e-2)
        assert text.answer_ids[-1] == STOP or len(text.answer_ids) == MAX_ANSWER
        assert STOP not in text.answer_ids[:-1]


def test_the_target_asks_itself(model: Path) -> None:
    """Its questions stand in the template, end where it ended them, and are not the same for another seed."""
    found = written(model, [TrainingPrompt(i, OWN, "", 0.8) for i in range(60)])
    tokenizer = Tokenizer(model)
    assert 5 < len(found) < 60, "some questions have no end or no words, and are left out"
    for text in found:
        whole = tokenizer.encode_chat([{"role": "user", "content": text.prompt.text}])
        ended = [*whole[:-3], STOP, *whole[-2:]]
        assert text.prompt.text and list(text.prompt_ids) == ended
        assert len(text.prompt_ids) <= MAX_QUESTION + 6
        assert len(text.states) == len(text.prompt_ids) + len(text.answer_ids)
    others = written(model, [TrainingPrompt(i, OWN, "", 0.8) for i in range(60)], seed=1)
    assert {text.prompt.text for text in found} != {text.prompt.text for text in others}


def test_what_was_begun_is_finished(model: Path) -> None:
    """When time is up no text is begun, and none is cut off."""
    asked = count()
    prompts = (TrainingPrompt(i, "chat", f"DE{'F' * i}", 0.8) for i in count())
    target = LlamaModel(model)
    writer = Writer(target, Tokenizer(model), points_of(target), 0)
    found = list(writer.write(prompts, lambda num_begun: next(asked) < 3))
    assert len(found) == 3 and all(text.answer_ids for text in found)
