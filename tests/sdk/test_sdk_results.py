"""What the client returns: typed where it is known, kept where it is not, and not to be changed."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from outrider import ChatResult, Head, Message, Model, TextDelta, Usage
from outrider.sdk.wire import Answer, Chunk


def test_unknown_fields_are_kept_at_every_level() -> None:
    """A later server may say more than this client knows."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "reasoning_tokens": 0}
    message = {"content": None, "refusal": [1]}
    answer = Answer.model_validate({"choices": [{"message": message, "x": 1}], "usage": usage, "y": 2})
    assert answer.usage is not None and answer.usage.model_extra == {"reasoning_tokens": 0}
    assert answer.choices[0].message.model_extra == {"refusal": [1]}
    assert (answer.choices[0].model_extra, answer.model_extra) == ({"x": 1}, {"y": 2})


def test_an_answer_has_a_choice_and_a_chunk_need_not() -> None:
    """Statistics and usage come in chunks without choices."""
    assert Chunk.model_validate({"choices": []}).choices == []
    with pytest.raises(ValidationError, match="choices"):
        Answer.model_validate({"choices": []})


@pytest.mark.parametrize("wire", [{}, {"prompt_tokens": 1, "completion_tokens": "many", "total_tokens": 2}])
def test_usage_is_whole_or_wrong(wire: dict[str, object]) -> None:
    """A missing or odd count is not taken for zero."""
    with pytest.raises(ValidationError, match="completion_tokens"):
        Usage.model_validate(wire)


def test_results_cannot_be_changed() -> None:
    """A result is a record of what happened."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        TextDelta("a", None).text = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ChatResult(Message(), None, None, None, Head(200, {}), {}).raw = {}  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        Model(id="a").id = "b"  # type: ignore[misc]
