"""Stop strings in streamed text: found wherever tokens fall, and never shown in part."""

from __future__ import annotations

from collections.abc import Sequence as Seq


class StopStrings:
    """Holds back text that may be the beginning of a stop string until it is known not to be."""

    def __init__(self, stops: Seq[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def append(self, text: str) -> str:
        """Text that may be shown now. After a match, what precedes the earliest match; later calls give nothing."""
        if self.matched is not None:
            return ""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda match: (match[0], -len(match[1])))
            shown, self._held = self._held[:at], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text still held back, once no more follows."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest suffix of the held text that begins `stop`."""
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:size]):
                return size
        return 0
