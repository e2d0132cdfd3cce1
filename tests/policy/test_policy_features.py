"""Features of chat and completions bodies, odd ones included."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core import TASKS, Hints
from outrider.policy.features import Features, extract_features


def features_of(**body: Any) -> Features:
    return extract_features(body, Hints())


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_chat_body() -> None:
    """Counts run over all messages; the last user message tells the task."""
    found = features_of(
        messages=[{"role": "system", "content": "Be brief."}, user("Write a Python function that adds.")],
        temperature=0,
        stream=True,
    )
    assert found == Features(
        temperature=0.0,
        task="code",
        is_task_given=False,
        num_prompt_chars=43,
        num_prompt_tokens=11,
        dry_run=0.0,
        num_messages=2,
        is_stream=True,
    )


def test_parts_count_their_text_only() -> None:
    """Of a list of parts the texts count, an image does not."""
    parts = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    assert features_of(messages=[user(parts)]).num_prompt_chars == 4


@pytest.mark.parametrize("temperature", [{}, {"temperature": None}])
def test_missing_temperature_is_one(temperature: dict[str, Any]) -> None:
    """A request that names no temperature is sampled at 1.0, so it counts as hot."""
    assert features_of(prompt="x", **temperature).temperature == 1.0


def test_given_task_wins() -> None:
    """The request knows better than the classifier."""
    found = extract_features({"messages": [user("Write a poem.")]}, Hints(task="quote"))
    assert (found.task, found.is_task_given) == ("quote", True)


def test_follow_up_continues_the_message_before() -> None:
    """A short message without a sign of its own keeps the topic; one that shows a task does not."""
    opening = [user("Write a C++ program that sorts numbers."), {"role": "assistant", "content": "..."}]
    assert features_of(messages=[*opening, user("Can you make it parallel?")]).task == "code"
    assert features_of(messages=[*opening, user("Now write a poem about it.")]).task == "creative"


@pytest.mark.parametrize(
    ("prompt", "num_chars", "num_tokens"),
    [
        ("abcde", 5, 2),
        (["abcd", "efgh"], 8, 2),
        ([1, 2, 3], 0, 3),
        ([[1, 2, 3], [4]], 0, 4),
        ([], 0, 0),
        ("", 0, 0),
    ],
)
def test_completions_prompts(prompt: Any, num_chars: int, num_tokens: int) -> None:
    """All four shapes of `prompt`; ids are counted, text is estimated."""
    found = features_of(prompt=prompt)
    assert (found.num_prompt_chars, found.num_prompt_tokens, found.num_messages) == (num_chars, num_tokens, 0)


def test_the_dry_run_looks_up_in_the_prompt_itself() -> None:
    """The share of tokens that an earlier pair told, over the pieces of text or over ids."""
    assert features_of(prompt="a b c d e f g h").dry_run == 0.0
    assert features_of(prompt="one two three four " * 6).dry_run > 0.7
    assert features_of(prompt=[1, 2, 3, 4, 1, 2, 3, 4]).dry_run == pytest.approx(2 / 6)
    assert features_of(prompt="a b").dry_run == 0.0


def test_long_prompts_are_run_at_their_end() -> None:
    """What lies far from the answer does not count, and costs nothing."""
    random = Random(1)
    fresh = " ".join("".join(random.choices("abcdefghij", k=6)) for _ in range(1000))
    assert features_of(prompt="la " * 50_000 + fresh).dry_run < 0.1


@pytest.mark.parametrize(
    ("fields", "surfaces"),
    [
        ({"temperature": 0}, {}),
        ({}, {"temperature": "temperature"}),
        ({"temperature": 0, "min_p": 0.1, "seed": 1, "top_k": 5, "top_p": 0.5}, {}),
        ({"min_p": 0.1}, {"temperature": "temperature", "min_p": "min_p"}),
        ({"top_k": 5, "top_p": 1.0}, {"temperature": "temperature"}),
        ({"top_k": -1, "top_p": 0.5}, {"temperature": "temperature"}),
        ({"top_k": 5, "top_p": 0.5}, {"temperature": "temperature", "top_k_top_p": "top_p"}),
        ({"seed": 0}, {"temperature": "temperature", "seed": "seed"}),
        ({"temperature": 0, "frequency_penalty": 0.5}, {"penalties": "frequency_penalty"}),
        ({"temperature": 0, "repetition_penalty": 1.1}, {"penalties": "repetition_penalty"}),
        ({"temperature": 0, "min_tokens": 5}, {"penalties": "min_tokens"}),
        ({"temperature": 0, "presence_penalty": 0.0, "frequency_penalty": None, "repetition_penalty": 1.0}, {}),
        ({"temperature": 0, "logit_bias": {"5": 1}}, {"logit_bias": "logit_bias"}),
        ({"temperature": 0, "logit_bias": {}}, {}),
        ({"temperature": 0, "custom_logit_processor": "x"}, {"logit_processor": "custom_logit_processor"}),
        ({"temperature": 0, "response_format": {"type": "json_schema"}}, {"json_schema": "response_format"}),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, {"json_schema": "response_format"}),
        ({"temperature": 0, "response_format": {"type": "structural_tag"}}, {"structural_tag": "response_format"}),
        ({"temperature": 0, "response_format": {"type": "text"}}, {}),
        ({"temperature": 0, "ebnf": "root ::= x", "regex": ""}, {"ebnf": "ebnf"}),
        ({"temperature": 0, "regex": "a+"}, {"regex": "regex"}),
        ({"temperature": 0, "tool_choice": "required"}, {"json_schema": "tool_choice"}),
        ({"temperature": 0, "tool_choice": "auto"}, {}),
        ({"temperature": 0, "logprobs": True}, {"logprobs": "logprobs"}),
        ({"temperature": 0, "logprobs": 0}, {"logprobs": "logprobs"}),
        ({"temperature": 0, "logprobs": False}, {}),
        ({"temperature": 0, "tool_choice": "required"}, {"json_schema": "tool_choice"}),
        ({"temperature": 0, "tool_choice": {"type": "function"}}, {"json_schema": "tool_choice"}),
        ({"temperature": 0, "tool_choice": "auto"}, {}),
        ({"temperature": 0, "lora_path": "x"}, {"lora": "lora_path"}),
    ],
)
def test_surfaces(fields: dict[str, Any], surfaces: dict[str, str]) -> None:
    """Each with the field that asks for it; a value that changes nothing asks for nothing, and a greedy law is not
    changed by what only cuts or draws."""
    assert features_of(prompt="x", **fields).surfaces == surfaces


def test_images_are_a_surface() -> None:
    """An image part counts, wherever it stands."""
    parts = [{"type": "image_url", "image_url": {"url": "data:..."}}]
    assert features_of(messages=[user(parts), user("x")], temperature=0).surfaces == {"images": "messages"}


def test_priority_limit_and_tenant() -> None:
    """SGLang's names; what has another type is as if absent."""
    found = features_of(prompt="x", priority=3, max_tokens=7, cache_salt="t")
    assert (found.priority, found.max_tokens, found.tenant) == (3, 7, "t")
    odd_one = features_of(prompt="x", priority="high", max_tokens=True, cache_salt="")
    assert (odd_one.priority, odd_one.max_tokens, odd_one.tenant) == (0, None, None)


def test_a_keys_tenant_and_priority_count_where_the_body_has_none() -> None:
    """The body's own word stands above the key's priority; whose request it is, the body cannot say."""
    found = extract_features({"prompt": "x"}, Hints(), "team", "bulk")
    assert (found.tenant, found.priority) == ("team", -1)
    found = extract_features({"prompt": "x", "cache_salt": "s", "priority": 2}, Hints(), "team", "bulk")
    assert (found.tenant, found.priority) == ("team", 2)


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type", "name"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries({}, optional={"messages": odd, "prompt": odd, "temperature": st.none() | st.floats(0, 2)}),
    st.sampled_from([None, *TASKS]),
)
@settings(max_examples=200, deadline=None)
def test_odd_bodies_give_features(body: dict[str, Any], task: Any) -> None:
    """Whatever a body holds, the features are within their bounds and nothing is raised."""
    found = extract_features(body, Hints(task=task))
    assert found.task in TASKS
    assert 0 <= found.dry_run <= 1
    assert min(found.num_prompt_chars, found.num_prompt_tokens, found.num_messages) >= 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"prediction": None}, False),
        ({"prediction": "text"}, False),
        ({"prediction": {"type": "content", "content": "text"}}, True),
    ],
)
def test_a_prediction_is_seen(fields: dict[str, Any], expected: bool) -> None:
    """An object counts, whatever is in it: the lane checks it."""
    assert features_of(prompt="x", **fields).has_prediction is expected
