"""What is wrong with a policy file, in words that someone who edits YAML knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from outrider.policy.limits import Location, WorkloadPolicy


def expected(item: ErrorDetails, location: Location) -> str:
    """What was expected and found, in words that someone who edits YAML knows."""
    kind, found = item["type"], item["input"]
    if kind == "value_error":
        return item["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        expected = f"expected {model_at(location[:-1]).model_fields[str(location[-1])].description}"
    else:
        plain = re.sub(r"^(?:Input|String|Tuple) should (?:be|have)", "expected", item["msg"]).replace("True", "true")
        names = {"model_type": "expected a mapping", "tuple_type": "expected a list", "too_short": "expected an item"}
        expected = names.get(kind, plain)
    shown = {"dict": "a mapping", "list": "a list" if found else "none", "bool": str(found).lower()}
    return f"{expected}, found {shown.get(type(found).__name__, repr(found))}"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """A complaint, with the key that was probably meant or with all there are."""
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"unknown key, did you mean {near[0]!r}?"
    return f"unknown key, expected one of {', '.join(known)}"


def model_at(location: Location) -> type[BaseModel]:
    """The model that validates the mapping at a location."""
    model: type[BaseModel] = WorkloadPolicy
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            yield candidate


def path_of(location: Location) -> str:
    """Where in a file something stands, in words."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".") or "the file"
