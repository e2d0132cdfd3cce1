"""A breaker: a lane that fails one request after the other gets none for a while, then one to see. Pure."""

from __future__ import annotations

from typing import Any

#: Failures in a row that open it.
MAX_FAILURES = 5
#: Seconds that it is open the first time; each further time twice as many, up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class Breaker:
    """Closed: every request may pass. Open: none for a while, then one; when that fails, none for twice as long.

    Times are `time.monotonic()`, given by the caller. A probe that does not end does not keep the lane out: another
    may pass after the same while.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        """In a row; a request that was left or refused for load is neither failure nor success."""
        self.num_opened = 0
        self._pause_s = 0.0
        self._opened_s = 0.0
        """When it opened last."""
        self._due_s: float | None = None
        """When the first probe may pass; None while it is closed."""
        self._next_s = 0.0
        """When the next one may."""

    def __repr__(self) -> str:
        return f"<Breaker {'open' if self.is_open else 'closed'} after {self.num_failures} failures>"

    @property
    def is_open(self) -> bool:
        """Whether the lane is left out."""
        return self._due_s is not None

    def lets_pass(self, now_s: float) -> bool:
        """Whether a request should be sent now."""
        return self._due_s is None or now_s >= self._next_s

    def begins(self, now_s: float) -> None:
        """A request is sent; it is the probe when it is time for one."""
        if self._due_s is not None and now_s >= self._next_s:
            self._next_s = now_s + self._pause_s

    def succeeded(self, began_s: float) -> None:
        """A request that was sent at `began_s` was answered, be it by a refusal of what was wrong with it.

        One that was under way when the breaker opened says nothing of the lane since then.
        """
        if self.num_failures and not (self.is_open and began_s < self._opened_s):
            self.num_failures, self._pause_s, self._due_s = 0, 0.0, None

    def failed(self, began_s: float, now_s: float) -> None:
        """A request that was sent at `began_s` failed by the lane's fault.

        One that was under way when the breaker opened, or was sent to an open one for want of another lane, says
        nothing new.
        """
        self.num_failures += 1
        if self.num_failures < MAX_FAILURES or (self._due_s is not None and began_s < self._due_s):
            return
        self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._opened_s, self._due_s = now_s, now_s + self._pause_s
        self._next_s = self._due_s
        self.num_opened += 1

    def to_wire(self, now_s: float) -> dict[str, Any]:
        """As `/outrider/lanes` shows it."""
        state = "closed" if not self.is_open else "half-open" if self.lets_pass(now_s) else "open"
        left_s = round(max(self._next_s - now_s, 0.0), 3) if self.is_open else None
        return {"state": state, "num_failures": self.num_failures, "next_probe_in_s": left_s}
