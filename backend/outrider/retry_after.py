"""How long a server asks to be left alone before the next attempt."""

from __future__ import annotations

import email.utils
from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """The pause that is asked for; None when nothing usable is said. `now_s` is `time.time()`."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            pause_s = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        return pause_s if pause_s > 0 else None
    try:
        date_s = email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, OverflowError, OSError):
        return None
    return date_s - now_s if date_s > now_s else None
