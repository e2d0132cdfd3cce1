"""Byte-faithful edits of the top level of a JSON object: what is not named stays as it was, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

import orjson

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[^"\[\]{}]++|' + _STRING
#: An array or object; one that is nested deeper is passed over bracket by bracket.
_NESTED = rb"[\[{](?:" + _FLAT + rb")*+[\]}]"
for _ in range(10):
    _NESTED = rb"[\[{](?:" + _FLAT + rb"|" + _NESTED + rb")*+[\]}]"
_VALUE = rb"\s*+(?:" + _STRING + rb"|" + _NESTED + rb"|[^\s,\[\]{}]++)?+\s*+"
_MEMBER = re.compile(rb"\s*+(" + _STRING + rb")\s*+:(" + _VALUE + rb")", re.DOTALL)
_BRACKET = re.compile(rb"(?:" + _FLAT + rb")*+([\[\]{}])\s*+", re.DOTALL)
_OPEN, _END, _SPACES = b"{[", b",}", b" \t\n\r"

#: Key, and where the member begins, its value begins and both end, with the white space around them.
_Member = tuple[str, int, int, int]


def splice(
    raw: bytes, remove: Collection[str], add: Mapping[str, bytes], keys: Collection[str] | None = None
) -> bytes:
    """Drop every member whose key is in `remove`, however it is spelled, then append `add` (values are JSON).

    `raw` must be a valid JSON object. A key of `add` that `raw` has and `remove` does not name stands twice. `keys`
    are all that `raw` has, and may be more; where they are not known, `raw` is searched, as long as it may be.
    """
    if _may_hold(raw, remove, keys):
        cut = _cut_last(raw, [key for key in remove if _quoted(key) in raw])
        if cut is not None:
            return _append(cut, add)
        begin, end = raw.index(b"{") + 1, raw.rindex(b"}")
        members = _members(raw)
        kept = [raw[start:stop] for key, start, _, stop in members if key not in remove]
        raw = raw[:begin] + (b",".join(kept) if members else raw[begin:end]) + raw[end:]
    return _append(raw, add)


def _cut_last(raw: bytes, present: list[str]) -> bytes | None:
    """Without the only member that is to go, where that is the last one and nothing is escaped, as servers write
    theirs: several times faster than reading all members. None: it is not so.

    A key that is followed by one whole value and the object's end can be no part of a string or of a deeper object.
    """
    key = _quoted(present[0]) if len(present) == 1 else b""
    at = raw.find(b"," + key + b":") if key else -1
    if at < 0 or raw.count(key) > 1 or _is_escaped(raw):
        return None
    try:
        orjson.loads(raw[at + len(key) + 2 : -1])
    except orjson.JSONDecodeError:
        return None
    return raw[:at] + raw[-1:]


def value_of(raw: bytes, key: str, keys: Collection[str] | None = None) -> bytes | None:
    """The bytes of the value at `key`, the last one when it stands twice, as parsers take it; None when absent.

    `keys` as for `splice`.
    """
    if not _may_hold(raw, (key,), keys):
        return None
    values = [raw[at:end] for name, _, at, end in _members(raw) if name == key]
    return values[-1].strip() if values else None


def splice_inside(
    raw: bytes, key: str, remove: Collection[str], add: Mapping[str, bytes], keys: Collection[str] | None = None
) -> bytes:
    """The value at `key`, edited by `splice`; an object of `add` alone when it is absent or not an object.

    `keys` as for `splice`.
    """
    value = value_of(raw, key, keys)
    return splice(value, remove, add) if value and value.startswith(b"{") else b"{" + _joined(add) + b"}"


def _append(raw: bytes, add: Mapping[str, bytes]) -> bytes:
    if not add:
        return raw
    last = end = raw.rindex(b"}")
    while raw[last - 1] in _SPACES:
        last -= 1
    # Joined, since every sum would copy the body once more.
    return b"".join((raw[:end], b"" if raw[last - 1] in _OPEN else b",", _joined(add), raw[end:]))


def _joined(add: Mapping[str, bytes]) -> bytes:
    return b",".join([_quoted(key) + b":" + value for key, value in add.items()])


def _may_hold(raw: bytes, wanted: Collection[str], keys: Collection[str] | None) -> bool:
    """False is certain. A key can only be spelled in another way with an escape: `\\u0041` or `\\/`."""
    if keys is not None:
        return any([key in keys for key in wanted])
    for key in wanted:
        if _quoted(key) in raw:
            return True
    return bool(wanted) and _is_escaped(raw)


def _is_escaped(raw: bytes) -> bool:
    return b"\\u" in raw or b"\\/" in raw


def _members(raw: bytes) -> list[_Member]:
    found: list[_Member] = []
    start = raw.index(b"{") + 1
    while match := _MEMBER.match(raw, start):
        end = match.end()
        if raw[end] in _OPEN:
            end = _after_nested(raw, end + 1)
        if raw[end] not in _END:
            raise ValueError(f"not a valid JSON object, from byte {end} on")
        found.append((orjson.loads(match[1]), start, match.start(2), end))
        start = end + 1
    return found


def _after_nested(raw: bytes, position: int) -> int:
    """Where the array or object that was opened just before `position` ends, and white space after it."""
    depth = 1
    while depth:
        bracket = _BRACKET.match(raw, position)
        if bracket is None:
            raise ValueError(f"not a valid JSON object, from byte {position} on")
        depth += 1 if bracket[1] in (b"{", b"[") else -1
        position = bracket.end()
    return position


#: The names that are looked for are few and constant.
_quoted = lru_cache(maxsize=64)(orjson.dumps)
