"""Reads what SGLang's protocol says in answers: errors in three shapes, aborts, speculation counts."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.errors import APIError, LaneFailed, from_wire
from outrider.retry_after import retry_after_s

#: Where speculation is counted, inside `sglext`.
DETAILS = "spec_tokens_details"
#: Statuses by which a lane refuses for load.
BUSY = frozenset({429, 503})
#: A chunk that matches can matter; a text cannot match, since quotes are escaped inside a JSON string.
MATTERS = re.compile(rb'"(?:error|sglext)"\s*+:|"usage"\s*+:\s*+\{|"finish_reason"\s*+:\s*+(?!null)')


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; LaneFailed when it is something else."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LaneFailed(f"the lane sent bytes that are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LaneFailed(f"the lane sent JSON that is not an object but {type(value).__name__}")
    return value


def read_answers(data: bytes) -> list[dict[str, Any]]:
    """The object in `data`, or those of a list, which is what a batch is answered by; at least one. LaneFailed."""
    if not data.lstrip().startswith(b"["):
        return [read_object(data)]
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LaneFailed(f"the lane sent bytes that are not JSON: {error}") from error
    if not values or not all(isinstance(value, dict) for value in values):
        raise LaneFailed("the lane sent a list that is not of answers")
    return list(values)


def error_of_response(status: int, raw: bytes, headers: Mapping[str, str] | None = None) -> APIError:
    """The error that a body with a 4xx or 5xx status states, in any of SGLang's shapes or none, and the pause that
    its headers ask for.

    Any other status breaks the protocol: LaneFailed.
    """
    if status < 400:
        return LaneFailed(f"the lane answered HTTP {status} where 200 was due")
    error = _named(_error_of_body(status, raw))
    pause_s = retry_after_s(headers or {}, now_s=time.time())
    error.retry_after_s = None if pause_s is None or math.isinf(pause_s) else pause_s
    return error


def _error_of_body(status: int, raw: bytes) -> APIError:
    default = f"the lane answered HTTP {status}"
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        return from_wire(status, None, default_message=default)
    error = value.get("error", value)
    known = error if isinstance(error, (Mapping, str)) else None
    return from_wire(status, known, default_message=default)


def raise_failure(chunk: Mapping[str, Any]) -> None:
    """Raise what a chunk or a body of status 200 reports: an `error` member, or a choice that was aborted."""
    error = chunk.get("error")
    if error is not None:
        raise _error_of_event(error)
    for choice in choices_of(chunk):
        reason = choice.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, dict) else reason
        if kind == "abort":
            raise _error_of_abort(reason if isinstance(reason, dict) else {})


def choices_of(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices that are objects; empty when there are none."""
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def num_finished(chunk: Mapping[str, Any]) -> int:
    """How many choices end in this chunk."""
    return sum(choice.get("finish_reason") is not None for choice in choices_of(chunk))


def completion_tokens(chunk: Mapping[str, Any]) -> int | None:
    """`usage.completion_tokens`, when the chunk has it."""
    usage = chunk.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def read_stats(details: object) -> SpecStats | None:
    """Sum `sglext.spec_tokens_details` over the choices; None when nothing was verified.

    ValueError when counts are missing or contradict each other.
    """
    entries = details if isinstance(details, list) else [details]
    read = [stats for stats in map(_read_entry, entries) if stats is not None]
    if len(read) < 2:
        return read[0] if read else None
    proposed = [stats.num_proposed for stats in read if stats.num_proposed is not None]
    by_draft = [stats.by_draft for stats in read if stats.by_draft is not None]
    return SpecStats(
        num_verify_steps=sum(stats.num_verify_steps for stats in read),
        num_accepted=sum(stats.num_accepted for stats in read),
        histogram=_sum_columns([stats.histogram for stats in read]),
        num_proposed=sum(proposed) if len(proposed) == len(read) else None,
        by_draft=_sum_columns(by_draft) if len(by_draft) == len(read) else None,
    )


def _read_entry(entry: object) -> SpecStats | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise ValueError(f"statistics are not an object but {type(entry).__name__}")
    if not entry.get("spec_verify_ct"):
        return None
    histogram = entry.get("spec_correct_drafts_histogram")
    if not isinstance(histogram, list):
        raise ValueError("statistics without a histogram")
    proposed = entry.get("spec_num_proposed_drafts")
    by_draft = entry.get("spec_correct_by_draft")
    stats = SpecStats(
        num_verify_steps=_count(entry.get("spec_verify_ct")),
        num_accepted=_count(entry.get("spec_num_correct_drafts")),
        histogram=_counts(histogram),
        num_proposed=None if proposed is None else _count(proposed),
        by_draft=_counts(by_draft) if isinstance(by_draft, list) else None,
    )
    if stats.num_proposed is not None and stats.num_proposed < stats.num_accepted:
        raise ValueError(f"{stats.num_accepted} drafts accepted of {stats.num_proposed} proposed")
    return stats


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _counts(values: list[object]) -> tuple[int, ...]:
    if set(map(type, values)) == {int} and min(values) >= 0:  # type: ignore[type-var, operator]
        return tuple(values)  # type: ignore[arg-type]
    return tuple(map(_count, values))


def _sum_columns(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total: list[int] = []
    for row in rows:
        total += [0] * (len(row) - len(total))
        for i, count in enumerate(row):
            total[i] += count
    return tuple(total)


def _error_of_event(error: object) -> APIError:
    if not isinstance(error, dict):
        return LaneFailed(str(error))
    if error.get("code") is None:
        return LaneFailed(str(error.get("message") or "the lane reported an error without a message"))
    return _named(from_wire(None, error))


def _error_of_abort(reason: Mapping[str, object]) -> APIError:
    message = str(reason.get("message") or "the lane aborted the request")
    status = reason.get("status_code")
    if isinstance(status, int) and 400 <= status < 600:
        return _named(from_wire(status, message))
    return LaneFailed(message)


def _named(error: APIError) -> APIError:
    """With a code that says what happened, where the lane gave its status for one, or none."""
    if error.status >= 429 and (error.code is None or error.code.isdecimal()):
        if error.status in BUSY:
            error.code, error.error_type = "lane_busy", "overloaded_error"
        elif error.status >= 500:
            error.code = LaneFailed.code
    return error
