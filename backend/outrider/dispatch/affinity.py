"""Which lane has a conversation's beginning in its cache: the one that served it last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

#: Conversations that are remembered; those that were not continued for longest go first. 64-bit keys and names.
_MAX_CONVERSATIONS = 16_384
#: Names the session that a request belongs to, for those whose texts do not show it: prompts without messages, and
#: conversations that were rewritten.
SESSION = "x-session-id"


def prefix_keys(body: Mapping[str, Any], owner: str | None) -> list[int]:
    """A key for each beginning of the conversation that ends with a message, the shortest first.

    A chain: each key stands for all messages up to one. `owner` keeps apart those who share no cache: tenant and
    `cache_salt`. Two conversations may share a key by chance, which sends one of them to a lane of no use to it.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return []
    keys: list[int] = []
    key = hash((owner, body.get("model")))
    for message in messages:
        key = hash((key, orjson.dumps(message)))
        keys.append(key)
    return keys


def session_key(headers: Mapping[str, str], owner: str | None) -> int | None:
    """Of the session that the client names; None where it names none."""
    name = headers.get(SESSION)
    return hash((owner, SESSION, name)) if name else None


class Affinity:
    """From conversations and sessions to the names of lanes."""

    def __init__(self, max_conversations: int = _MAX_CONVERSATIONS) -> None:
        self._max_conversations = max_conversations
        self._lanes: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lanes)

    def home(self, keys: list[int], session: int | None = None) -> str | None:
        """The lane that served the longest beginning, or the session where none is known; None: nothing is known."""
        for key in reversed(keys):
            name = self._lanes.get(key)
            if name is not None:
                return name
        return None if session is None else self._lanes.get(session)

    def served(self, keys: list[int], lane: str, session: int | None = None) -> None:
        """The whole conversation is in this lane's cache now, and it had the session last."""
        for key in keys[-1:] if session is None else (*keys[-1:], session):
            self._lanes[key] = lane
            self._lanes.move_to_end(key)
            if len(self._lanes) > self._max_conversations:
                self._lanes.popitem(last=False)
