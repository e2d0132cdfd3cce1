"""Which processes are silent, by our own steady clock: clocks of the wall differ between machines, and jump."""

from __future__ import annotations

from collections.abc import Mapping


class Leases:
    """Fed with the last beats of the others; only whether they change is looked at, not what time they say."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[float, float]] = {}

    def silent(self, beats: Mapping[str, float], now_s: float) -> list[str]:
        """Owners whose beat has not changed for a whole lease; `now_s` is monotonic."""
        seen = self._seen
        self._seen = {
            owner: seen[owner] if owner in seen and seen[owner][0] == beat else (beat, now_s)
            for owner, beat in beats.items()
        }
        return [owner for owner, (_, since_s) in self._seen.items() if now_s - since_s >= self._lease_s]
