"""What whole answers of each route say, as look-ups learn from it."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.runtimes.dialects import dialect_of

PARTS = [{"type": "output_text", "text": "the cat"}, {"type": "refusal", "refusal": "no"}, {"text": " sat"}]


@pytest.mark.parametrize(
    ("path", "answer", "text"),
    [
        ("/v1/chat/completions", {"choices": [{"message": {"content": "the cat sat"}}, {}]}, "the cat sat"),
        ("/v1/completions", {"choices": [{"text": "the cat sat"}]}, "the cat sat"),
        ("/generate", {"text": "the cat sat", "meta_info": {}}, "the cat sat"),
        (
            "/v1/responses",
            {"output": [{"type": "reasoning", "content": PARTS}, {"type": "message", "content": PARTS}], "text": {}},
            "the cat sat",
        ),
        ("/v1/messages", {"content": PARTS}, "the cat sat"),
        ("/v1/chat/completions", {"choices": [{"message": {"content": None, "tool_calls": []}}]}, None),
        ("/v1/chat/completions", {}, None),
        ("/generate", {"output_ids": [1, 2]}, None),
        ("/v1/responses", {"output": [{"type": "function_call"}, "?"]}, None),
        ("/v1/responses", {"output": None}, None),
        ("/v1/messages", {"content": [{"type": "tool_use", "input": {}}]}, None),
        ("/v1/messages", {"content": "?"}, None),
    ],
)
def test_the_text_of_a_whole_answer(path: str, answer: dict[str, Any], text: str | None) -> None:
    """That of the first choice, in parts or whole; calls of tools and thoughts are none."""
    assert dialect_of(path).text(answer) == text
