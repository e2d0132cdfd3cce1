"""Byte-faithful edits of the top level of a JSON object: what is not named stays as it was, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOP = re.compile(_STRING + rb"|[\[\]{},:]", re.DOTALL)
_NESTED = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_QUOTE, _COLON, _COMMA = b'":,'
_OPEN, _CLOSE = b"{[", b"}]"


@dataclass(frozen=True, slots=True)
class _Member:
    """One member with the white space around it: `raw[start:end]` lies between two commas or braces."""

    key: str
    start: int
    value_at: int
    end: int


def splice(raw: bytes, remove: Collection[str], add: Mapping[str, bytes]) -> bytes:
    """Drop every member whose key is in `remove`, however it is spelled, then append `add` (values are JSON).

    `raw` must be a valid JSON object. A key of `add` that `raw` has and `remove` does not name stands twice.
    """
    if _may_hold(raw, remove):
        begin, end = raw.index(b"{") + 1, raw.rindex(b"}")
        members = _members(raw)
        kept = [raw[member.start : member.end] for member in members if member.key not in remove]
        raw = raw[:begin] + (b",".join(kept) if members else raw[begin:end]) + raw[end:]
    return _append(raw, add)


def value_of(raw: bytes, key: str) -> bytes | None:
    """The bytes of the value at `key`, the last one when it stands twice, as parsers take it; None when absent."""
    if not _may_hold(raw, (key,)):
        return None
    values = [raw[member.value_at : member.end] for member in _members(raw) if member.key == key]
    return values[-1].strip() if values else None


def splice_inside(raw: bytes, key: str, remove: Collection[str], add: Mapping[str, bytes]) -> bytes:
    """The value at `key`, edited by `splice`; an object of `add` alone when it is absent or not an object."""
    value = value_of(raw, key)
    return splice(value if value is not None and value.startswith(b"{") else b"{}", remove, add)


def _append(raw: bytes, add: Mapping[str, bytes]) -> bytes:
    if not add:
        return raw
    end = raw.rindex(b"}")
    is_empty = not raw[raw.index(b"{") + 1 : end].strip()
    text = b",".join(orjson.dumps(key) + b":" + value for key, value in add.items())
    return raw[:end] + (text if is_empty else b"," + text) + raw[end:]


def _may_hold(raw: bytes, keys: Collection[str]) -> bool:
    """False is certain. A key can only be spelled in another way with an escape: `\\u0041` or `\\/`."""
    return bool(keys) and (b"\\u" in raw or b"\\/" in raw or any(orjson.dumps(key) in raw for key in keys))


def _members(raw: bytes) -> list[_Member]:
    found: list[_Member] = []
    key: bytes | None = None
    start = position = raw.index(b"{") + 1
    value_at = 0
    while match := _TOP.search(raw, position):
        token, position = raw[match.start()], match.end()
        if token == _COLON:
            value_at = position
        elif token == _QUOTE:
            key = key or match.group()
        elif token in _OPEN:
            position = _after_nested(raw, position)
        else:
            if key is not None:
                found.append(_Member(orjson.loads(key), start, value_at, match.start()))
            if token in _CLOSE:
                break
            key, start = None, position
    return found


def _after_nested(raw: bytes, position: int) -> int:
    """Where the array or object that was opened just before `position` ends."""
    depth = 1
    for match in _NESTED.finditer(raw, position):
        token = raw[match.start()]
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.end()
    raise ValueError("not a valid JSON object: a bracket is not closed")
