from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.world import CHAT, COMPLETIONS, MESSAGES
from outrider.core import SURFACES, Hints
from outrider.errors import InvalidRequest
from outrider.gateway.schema import parse_body
from outrider.policy.features import extract_features


def chat(**fields):
    return {"messages": MESSAGES} | fields


BAD_CHATS = [
    ({}, "messages"),
    (chat(messages=None), "messages"),
    (chat(messages=[]), "messages"),
    (chat(messages="hello"), "messages"),
    (chat(messages=[1]), "messages[0]"),
    (chat(messages=[{"content": "x"}]), "messages[0].role"),
    (chat(messages=[{"role": 1, "content": "x"}]), "messages[0].role"),
    (chat(messages=[*MESSAGES, {"role": "user", "content": 3}]), "messages[1].content"),
    (chat(messages=[{"role": "user", "content": {"text": "x"}}]), "messages[0].content"),
    (chat(model=5), "model"),
    (chat(temperature=-0.1), "temperature"),
    (chat(temperature=2.1), "temperature"),
    (chat(temperature="1"), "temperature"),
    (chat(temperature=True), "temperature"),
    (chat(top_p=0), "top_p"),
    (chat(top_p=1.5), "top_p"),
    (chat(min_p=-0.5), "min_p"),
    (chat(top_k=0), "top_k"),
    (chat(top_k=-2), "top_k"),
    (chat(top_k=1.5), "top_k"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens=True), "max_tokens"),
    (chat(max_completion_tokens=-1), "max_completion_tokens"),
    (chat(stop=""), "stop"),
    (chat(stop=["a", ""]), "stop"),
    (chat(stop=["a"] * 17), "stop"),
    (chat(stop=7), "stop"),
    (chat(stream="yes"), "stream"),
    (chat(stream=1), "stream"),
    (chat(stream_options=[]), "stream_options"),
    (chat(seed=1.5), "seed"),
    (chat(seed="1"), "seed"),
    (chat(n=0), "n"),
    (chat(n=True), "n"),
    (chat(custom_params=[1]), "custom_params"),
    (chat(custom_params={"outrider": {"k": 2}}), "custom_params"),
    (chat(outrider=5), "outrider"),
    (chat(outrider={"kk": 1}), "outrider.kk"),
    (chat(outrider={"k": 17}), "outrider.k"),
    (chat(outrider={"k": -1}), "outrider.k"),
    (chat(outrider={"k": "3"}), "outrider.k"),
    (chat(outrider={"k": True}), "outrider.k"),
    (chat(outrider={"drafter": "eagle9"}), "outrider.drafter"),
    (chat(outrider={"task": "poetry"}), "outrider.task"),
    (chat(outrider={"off": True, "k": 3}), "outrider"),
]

BAD_PROMPTS = [None, "", [], [""], ["a", ""], ["a", 1], [1, "a"], [[1], []], [[1], "a"], [True], [-1], 5, {"a": 1}]


@pytest.mark.parametrize(("body", "param"), BAD_CHATS)
def test_a_bad_chat_field_is_named(body, param):
    """The error's param and message name the field that is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(CHAT, orjson.dumps(body))
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize("prompt", BAD_PROMPTS)
def test_a_bad_prompt_is_named(prompt):
    """Empty, mixed and wrongly typed prompts are refused."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(COMPLETIONS, orjson.dumps({"prompt": prompt}))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"7", b"\xff", b'{"messages": [1,]}'])
def test_a_body_that_is_no_json_object_is_named_body(raw):
    """Malformed JSON and JSON of another kind are the body's fault."""
    with pytest.raises(InvalidRequest, match="body") as caught:
        parse_body(CHAT, raw)
    assert caught.value.param == "body"


def test_null_means_absent_and_unknown_fields_pass():
    """OpenAI clients send nulls; what we do not know is the lane's business."""
    names = ["model", "temperature", "top_p", "top_k", "max_tokens", "stop", "stream", "seed", "n", "outrider"]
    parsed = parse_body(CHAT, orjson.dumps(chat(**dict.fromkeys(names), anything={"deep": [1]}, top_logprobs="x")))
    assert parsed.fields.outrider is None
    assert parsed.body["anything"] == {"deep": [1]}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_k": -1},
        {"top_k": 1},
        {"stop": "x"},
        {"stop": ["a"] * 16},
        {"seed": -1},
    ],
)
def test_the_bounds_themselves_are_allowed(fields):
    """Inclusive bounds include their ends."""
    assert parse_body(CHAT, orjson.dumps(chat(**fields)))


@pytest.mark.parametrize(
    ("prompt", "n", "expected"),
    [("a", None, 1), ("a", 3, 3), (["a", "b"], 2, 4), ([1, 2, 3], 2, 2), ([[1], [2], [3]], None, 3)],
)
def test_choices_are_counted_over_prompts_and_n(prompt, n, expected):
    """A batch of prompts gives n choices each."""
    assert parse_body(COMPLETIONS, orjson.dumps({"prompt": prompt, "n": n})).fields.num_choices == expected


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([CHAT, COMPLETIONS]),
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "prompt",
                "model",
                "temperature",
                "stop",
                "stream",
                "n",
                "top_k",
                "outrider",
                "custom_params",
            ]
        ),
        JSON,
    ),
)
def test_any_json_passes_or_is_refused_with_a_param(route, body):
    """The check never fails in another way."""
    try:
        parse_body(route, orjson.dumps(body))
    except InvalidRequest as error:
        assert error.param


#: What asks for each surface: OpenAI's fields, and those of `/generate` that are not inside its parameters.
ASKING = [
    ("temperature", {"temperature": 0.5}, {}),
    ("min_p", {"temperature": 0.5, "min_p": 0.1}, {}),
    ("penalties", {"frequency_penalty": 1}, {}),
    ("penalties", {"presence_penalty": 1}, {}),
    ("penalties", {"repetition_penalty": 1.1}, {}),
    ("penalties", {"min_tokens": 3}, {}),
    ("logit_bias", {"logit_bias": {"5": 1}}, {}),
    ("top_k_top_p", {"temperature": 0.5, "top_k": 5, "top_p": 0.5}, {}),
    ("logit_processor", {"custom_logit_processor": "x"}, {"custom_logit_processor": "x"}),
    ("json_schema", {"json_schema": "{}"}, {}),
    ("regex", {"regex": "a*"}, {}),
    ("ebnf", {"ebnf": "root ::= x"}, {}),
    ("structural_tag", {"structural_tag": "{}"}, {}),
    ("logprobs", {"logprobs": True}, {"return_logprob": True}),
    ("seed", {"temperature": 0.5, "seed": 3}, {}),
    ("lora", {"lora_path": "x"}, {"lora_path": "x"}),
    ("images", {"image_data": "x"}, {"image_data": "x"}),
]
INSIDE = {"seed": "sampling_seed", "min_tokens": "min_new_tokens", "max_tokens": "max_new_tokens"}


def features(route, body):
    parsed = parse_body(route, orjson.dumps(body))
    return extract_features(parsed.fields.for_policy(parsed.body), Hints())


@pytest.mark.parametrize(
    ("route", "own"),
    [
        (CHAT, {"messages": MESSAGES}),
        (COMPLETIONS, {"prompt": "x"}),
        ("/generate", {"text": "x", "sampling_params": {"n": 2}}),
        ("/v1/responses", {"input": "x", "instructions": "y"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 7}),
    ],
)
def test_what_the_policy_reads_has_every_name_of_the_body(route, own):
    """What is to be cut out of the bytes is looked for only under these names."""
    body = own | {"rid": "x", "custom_params": None, "outrider": {"k": 2}, "other": 1}
    parsed = parse_body(route, orjson.dumps(body))
    assert parsed.fields.for_policy(parsed.body).keys() >= body.keys()


@pytest.mark.parametrize(("surface", "fields", "outside"), ASKING)
def test_each_surface_is_seen_on_every_route(surface, fields, outside):
    """Wherever a route has the field; and the limit of the answer with it."""
    fields = {"max_tokens": 7, "temperature": 0} | fields
    inside = {INSIDE.get(name, name): value for name, value in fields.items()} if not outside else {"temperature": 0}
    limit = {"max_new_tokens": 7}
    seen = [
        features(CHAT, chat(**fields)),
        features(COMPLETIONS, {"prompt": "x"} | fields),
        features("/generate", {"text": "x", "sampling_params": inside | limit} | outside),
    ]
    assert all(surface in one.surfaces for one in seen)
    assert seen[0].surfaces.keys() == seen[1].surfaces.keys() == seen[2].surfaces.keys()
    assert {one.max_tokens for one in seen} == {7}


def test_every_surface_is_asked_for_above():
    """One that is added must be seen too."""
    assert {surface for surface, _, _ in ASKING} == SURFACES


def test_the_limit_of_a_response_is_seen():
    """Under the route's own name."""
    assert features("/v1/responses", {"input": "x", "max_output_tokens": 7}).max_tokens == 7


def test_images_and_grammars_are_seen_in_the_words_of_other_routes():
    """Those in results of tools too; plain text asks for nothing."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [image]}
    for content in ([image], [result]):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 7}
        assert "images" in features("/v1/messages", body).surfaces
    said = [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]}]
    assert "images" in features("/v1/responses", {"input": said}).surfaces
    form = {"format": {"type": "json_schema", "name": "x", "schema": {}}}
    assert "json_schema" in features("/v1/responses", {"input": "x", "text": form}).surfaces
    plain = {"input": [{"role": "user", "content": "x"}], "text": {"format": {"type": "text"}}}
    assert not {"images", "json_schema"} & features("/v1/responses", plain).surfaces.keys()


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [("text", 3, "text"), ("text", {"format": 3}, "text.format"), ("tools", [3], "tools[0]")],
)
def test_what_a_response_repeats_has_its_type(field, value, param):
    """So that it can be repeated whatever route the lane has."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body("/v1/responses", orjson.dumps({"input": "x", field: value}))
    assert caught.value.param == param
