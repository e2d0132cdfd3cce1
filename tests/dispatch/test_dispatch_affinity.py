"""Conversations and the lanes that served them: keys of beginnings, and what is remembered."""

from __future__ import annotations

from typing import Any

from outrider.dispatch.affinity import Affinity, prefix_keys, session_key


def said(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **fields}


def test_a_continued_conversation_has_the_keys_of_its_beginning() -> None:
    """Message by message; another text anywhere before changes every key behind it."""
    first, then = prefix_keys(said("a", "b"), "ada"), prefix_keys(said("a", "b", "c"), "ada")
    assert then[:2] == first and len(set(then)) == 3
    assert not set(prefix_keys(said("x", "b", "c"), "ada")) & set(then)


def test_owners_and_models_share_nothing() -> None:
    """Neither do their caches."""
    keys = [
        prefix_keys(said("a"), "ada"),
        prefix_keys(said("a"), "bob"),
        prefix_keys(said("a"), None),
        prefix_keys(said("a", model="m"), "ada"),
    ]
    assert len({one for (one,) in keys}) == 4
    assert prefix_keys({"prompt": "a"}, None) == []


def test_the_longest_beginning_that_is_known_decides() -> None:
    """An unknown conversation has no home."""
    affinity, keys = Affinity(), prefix_keys(said("a", "b", "c"), None)
    affinity.served(keys[:1], "one")
    affinity.served(keys[:2], "two")
    assert affinity.home(keys) == "two"
    assert affinity.home(keys[:1]) == "one"
    assert affinity.home(prefix_keys(said("x"), None)) is None
    assert affinity.home([]) is None


def test_a_session_decides_where_no_beginning_is_known() -> None:
    """Named by the client, and each owner's apart; what the texts show comes first."""
    affinity, keys = Affinity(), prefix_keys(said("a", "b"), "ada")
    session = session_key({"x-session-id": "s"}, "ada")
    affinity.served([], "one", session)
    assert affinity.home([], session) == affinity.home(keys, session) == "one"
    affinity.served(keys, "two")
    assert affinity.home(keys, session) == "two"
    assert affinity.home([], session_key({"x-session-id": "s"}, "bob")) is None
    assert session_key({}, "ada") is session_key({"x-session-id": ""}, "ada") is None


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    """What is served again is kept."""
    affinity = Affinity(max_conversations=2)
    for keys in ([1], [2], [1], [3], []):
        affinity.served(keys, "one")
    assert len(affinity) == 2
    assert [affinity.home([key]) for key in (1, 2, 3)] == ["one", None, "one"]
