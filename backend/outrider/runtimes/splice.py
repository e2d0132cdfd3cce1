"""Byte-faithful edits of the top level of a JSON object: what is not named stays as it was, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import orjson

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_KEY = re.compile(rb"\s*+(" + _STRING + rb")\s*+:", re.DOTALL)
_PLAIN = re.compile(rb"\s*+(?:" + _STRING + rb"|[^\s,\[\]{}]++)?+", re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+([\[\]{}])", re.DOTALL)
_END = re.compile(rb"\s*+([,}])")
_OPEN = b"{["


class _Member(NamedTuple):
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
    text = b",".join([_quoted(key) + b":" + value for key, value in add.items()])
    before = raw[:end]
    return before + (text if before.rstrip().endswith(b"{") else b"," + text) + raw[end:]


def _may_hold(raw: bytes, keys: Collection[str]) -> bool:
    """False is certain. A key can only be spelled in another way with an escape: `\\u0041` or `\\/`."""
    for key in keys:
        if _quoted(key) in raw:
            return True
    return bool(keys) and (b"\\u" in raw or b"\\/" in raw)


def _members(raw: bytes) -> list[_Member]:
    found: list[_Member] = []
    start = raw.index(b"{") + 1
    while key := _KEY.match(raw, start):
        position = _required(_PLAIN, raw, key.end()).end()
        if raw[position] in _OPEN:
            position = _after_nested(raw, position + 1)
        end = _required(_END, raw, position)
        found.append(_Member(orjson.loads(key[1]), start, key.end(), end.start(1)))
        start = end.end()
    return found


def _after_nested(raw: bytes, position: int) -> int:
    """Where the array or object that was opened just before `position` ends."""
    depth = 1
    while depth:
        bracket = _required(_BRACKET, raw, position)
        depth += 1 if bracket[1] in (b"{", b"[") else -1
        position = bracket.end()
    return position


def _required(pattern: re.Pattern[bytes], raw: bytes, position: int) -> re.Match[bytes]:
    found = pattern.match(raw, position)
    if found is None:
        raise ValueError(f"not a valid JSON object, from byte {position} on")
    return found


#: The names that are looked for are few and constant.
_quoted = lru_cache(maxsize=64)(orjson.dumps)
