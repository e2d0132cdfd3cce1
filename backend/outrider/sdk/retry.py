"""When to try again, and after how long: the rules of the OpenAI SDK as one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.errors import OutriderError
from outrider.retry_after import retry_after_s

#: A server may ask for a longer pause, but then the caller should decide.
MAX_RETRY_AFTER_S = 120.0

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Refusal:
    """One attempt that failed: the error for the caller, and what the server said about trying again."""

    error: OutriderError
    status: int | None = None
    """None when no answer came."""
    headers: Mapping[str, str] = field(default_factory=dict)
    can_double: bool = False
    """The request may have had its effect, and would have it twice if it were sent again."""


def retry_delay_s(refusal: Refusal, num_retries: int, *, now_s: float, chance: float) -> float | None:
    """Seconds to wait before the next attempt, None for no further one.

    `num_retries` counts those already made; `chance` in [0, 1) takes up to a quarter off the back-off.
    """
    asked_s = retry_after_s(refusal.headers, now_s=now_s)
    if asked_s is not None and asked_s > MAX_RETRY_AFTER_S:
        return None
    if not _is_worth_it(refusal):
        return None
    if asked_s is not None:
        return asked_s
    backoff_s = min(_FIRST_DELAY_S * 2.0 ** min(num_retries, 10), _MAX_DELAY_S)
    return backoff_s * (1 - _MAX_JITTER * chance)


def _is_worth_it(refusal: Refusal) -> bool:
    verdict = refusal.headers.get("x-should-retry")
    if verdict in ("true", "false"):
        return verdict == "true"
    # These two are said of what was not begun.
    if refusal.can_double and refusal.status not in (429, 503):
        return False
    return refusal.status is None or refusal.status in (408, 409, 429) or refusal.status >= 500
