from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.runtimes.splice import splice, splice_inside, value_of

KEYS = st.sampled_from(["outrider", "rid", "a", "b", "", 'q"uote', "back\\slash", "ü", "custom_params"]) | st.text(
    max_size=4
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
SPACE = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])


@st.composite
def spellings(draw, text):
    """A JSON string for `text`, some characters escaped."""
    out = []
    for char in text:
        units = char.encode("utf-16-be")
        escaped = "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
        plain = json.dumps(char, ensure_ascii=False)[1:-1]
        out.append(draw(st.sampled_from([plain, escaped])))
    return '"' + "".join(out) + '"'


@st.composite
def objects(draw):
    """Pairs (key, the value's text) and a document of them with random white space and key spellings."""
    pairs = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    texts = [(key, json.dumps(value, ensure_ascii=draw(st.booleans()))) for key, value in pairs]
    body = ",".join(
        f"{draw(SPACE)}{draw(spellings(key))}{draw(SPACE)}:{draw(SPACE)}{text}{draw(SPACE)}" for key, text in texts
    )
    return texts, f"{draw(SPACE)}{{{body or draw(SPACE)}}}{draw(SPACE)}".encode()


def pairs_of(raw):
    """The members in order, duplicates kept, values as parsed."""
    return json.loads(raw, object_pairs_hook=list)


@settings(max_examples=150, deadline=None)
@given(objects(), st.sets(KEYS, max_size=3), st.dictionaries(st.sampled_from(["x", "outrider"]), SCALARS, max_size=2))
def test_splice_equals_dict_surgery(drawn, remove, add):
    """Removing and appending on bytes gives what the same surgery on the parsed members gives."""
    texts, raw = drawn
    values = {key: orjson.dumps(value) for key, value in add.items()}
    result = splice(raw, remove, values)
    expected = [[key, json.loads(text, object_pairs_hook=list)] for key, text in texts if key not in remove]
    expected += [[key, value] for key, value in add.items()]
    assert [list(pair) for pair in pairs_of(result)] == expected
    assert isinstance(orjson.loads(result), dict)


@settings(max_examples=150, deadline=None)
@given(objects(), st.sets(KEYS, max_size=3), st.sets(KEYS, max_size=3))
def test_known_keys_change_nothing_but_the_time(drawn, remove, more):
    """Whether they are exactly those that are there, or some more."""
    texts, raw = drawn
    there = {key for key, _ in texts}
    for keys in (there, there | more):
        assert splice(raw, remove, {"zz": b"1"}, keys) == splice(raw, remove, {"zz": b"1"})
        assert [value_of(raw, key, keys) for key in remove] == [value_of(raw, key) for key in remove]


@settings(max_examples=100, deadline=None)
@given(objects(), st.sets(KEYS, max_size=3))
def test_untouched_values_are_byte_identical(drawn, remove):
    """Every kept value stands in the result exactly as the client wrote it, in the same order."""
    texts, raw = drawn
    result = splice(raw, remove, {"zz": b"1"})
    at = 0
    for key, text in texts:
        if key not in remove:
            found = result.find(text.encode(), at)
            assert found >= 0
            at = found + len(text.encode())


def test_odd_numbers_order_duplicates_and_escapes_survive():
    """Numbers that no parser keeps, duplicate keys and escapes pass through unchanged."""
    raw = b'{ "z":1.0, "a" : 1e400,\n"dup":1,"dup":2.50, "t":"\\u0041\\n\\ud83d\\ude00", "outrider": [{"}":"]"}] }'
    assert splice(raw, {"outrider"}, {"n": b"0"}) == (
        b'{ "z":1.0, "a" : 1e400,\n"dup":1,"dup":2.50, "t":"\\u0041\\n\\ud83d\\ude00","n":0}'
    )


def test_escaped_key_spellings_are_found():
    """A key written with an escape is the same key."""
    assert splice(b'{"out\\u0072ider":1,"a":2}', {"outrider"}, {}) == b'{"a":2}'
    assert value_of(b'{"out\\u0072ider": [1, 2] ,"a":2}', "outrider") == b"[1, 2]"


def test_all_duplicates_of_a_removed_key_go():
    """A second spelling of a removed key cannot slip through."""
    assert splice(b'{"rid":1,"a":2,"rid":3}', {"rid"}, {}) == b'{"a":2}'


def test_a_nested_key_or_a_key_in_a_text_is_not_the_key():
    """Only the top level is edited."""
    raw = b'{"a":{"rid":1},"b":"\\"rid\\": 2","c":["rid"]}'
    assert splice(raw, {"rid"}, {}) == raw
    assert value_of(raw, "rid") is None


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b'{"a":1,"rid":{"b":[2]}}', b'{"a":1}'),
        (b'{"a":{"c":0,"rid":1}}', b'{"a":{"c":0,"rid":1}}'),
        (b'{"a":[{"c":0,"rid":1}],"b":{"c":0}}', b'{"a":[{"c":0,"rid":1}],"b":{"c":0}}'),
        (b'{"a":{"c":0,"rid":1},"rid":2}', b'{"a":{"c":0,"rid":1}}'),
        (b'{"a":0,"rid":1,"b":2}', b'{"a":0,"b":2}'),
        (b'{"a":0,"rid":1,"r\\u0069d":2}', b'{"a":0}'),
        (b'{"a":",\\"rid\\":1","rid":2}', b'{"a":",\\"rid\\":1"}'),
        (b'{"a":0,"rid":1 } ', b'{"a":0} '),
    ],
)
def test_a_last_member_goes_wherever_else_its_key_stands(raw, left):
    """Deeper, in a text, once more in another spelling, or before other members."""
    assert splice(raw, {"rid"}, {}) == left


def test_nothing_to_remove_keeps_every_byte_before_the_addition():
    """The fast path only appends."""
    raw = b' {"a" : [1 , 2]\n} '
    assert splice(raw, {"rid"}, {"x": b"[]"}) == b' {"a" : [1 , 2]\n,"x":[]} '
    assert splice(b"{ }", {"rid"}, {"x": b"1"}) == b'{ "x":1}'


def test_value_of_takes_the_last_duplicate():
    """As JSON parsers do."""
    assert value_of(b'{"a":1,"a": 2 }', "a") == b"2"


def test_splice_inside_edits_or_creates_the_inner_object():
    """Other keys of the inner object keep their bytes; null and absent become a new object."""
    assert splice_inside(b'{"p":{"x": 1.0,"o":2}}', "p", {"o"}, {"o": b"3"}) == b'{"x": 1.0,"o":3}'
    assert splice_inside(b'{"p":null}', "p", {"o"}, {"o": b"3"}) == b'{"o":3}'
    assert splice_inside(b"{}", "p", {"o"}, {"o": b"3"}) == b'{"o":3}'


def test_an_unclosed_object_is_refused():
    """The editor never loops or returns half an object."""
    with pytest.raises(ValueError):
        value_of(b'{"a":[1,{"b":2}', "a")


@pytest.mark.parametrize("depth", [1, 10, 11, 12, 40, 900])
def test_values_may_be_nested_as_deep_as_parsers_allow(depth):
    """Those that one step passes over, and those that take several."""
    deep = '[{"a]": "}\\"" , "b":' * (depth // 2) + "[ ]" * (depth % 2) + "1" * (1 - depth % 2) + "} ]" * (depth // 2)
    raw = f'{{"x":{deep} ,"rid": {deep},"y":2}}'.encode()
    assert splice(raw, {"rid"}, {}) == f'{{"x":{deep} ,"y":2}}'.encode()
    assert value_of(raw, "rid") == deep.encode()
