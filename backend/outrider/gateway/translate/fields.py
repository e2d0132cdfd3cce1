"""Checks of fields that a translation reads: what it carries, what asks for nothing, and a refusal by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outrider.errors import InvalidRequest


def refused(name: str, why: str = "is not carried by this route") -> InvalidRequest:
    """For a field that cannot be translated, by its name."""
    return InvalidRequest(f"{name}: {why}", param=name)


def check(
    value: Mapping[str, Any], carried: Collection[str], neutral: Mapping[str, Collection[Any]], prefix: str = ""
) -> None:
    """InvalidRequest names a member that is neither carried nor null nor, as `neutral` says, without effect."""
    for name, given in value.items():
        if given is None or name in carried:
            continue
        if not any(given == one and type(given) is type(one) for one in neutral.get(name, ())):
            raise refused(prefix + name)


def required(value: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> Any:
    """The member, which must be there and of the kind."""
    found = value.get(name)
    if not isinstance(found, kind):
        raise refused(prefix + name, f"expected {_NAMES[kind]}")
    return found


def objects(values: object, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each member of a list of objects, with its path."""
    if not isinstance(values, list):
        raise refused(name, "expected a list")
    for i, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise refused(f"{name}[{i}]", "expected an object")
        yield f"{name}[{i}]", value


def joined_text(content: object, name: str, kinds: Collection[str], carried: Collection[str] = ()) -> str:
    """The text of a string or of a list of parts, each of one of these types and with `text`."""
    if isinstance(content, str):
        return content
    texts = []
    for where, part in objects(content, name):
        if part.get("type") not in kinds:
            raise refused(f"{where}.type")
        check(part, {"type", "text", *carried}, {"annotations": ([],), "logprobs": ([],)}, f"{where}.")
        texts.append(required(part, "text", str, f"{where}."))
    return "".join(texts)


_NAMES: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object"}
