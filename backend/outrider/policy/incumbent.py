"""The plan that was taken last, and when another takes its place: hysteresis, dwell, and load shed at once."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.policy.options import Option

#: Another plan must be this much better than the one that was taken last, for so many decisions in a row, and the one
#: taken last must have been held for so many. Fewer drafts are taken at once when they are that much better, since
#: load is shed first by shortening drafts.
_SWITCH_GAIN, _STREAK, _DWELL = 1.05, 3, 8
#: Or only this much better, for so many decisions in a row: no plan is kept for ever that is a little behind.
_SLIGHT_GAIN, _PATIENCE = 1.01, 16
#: Batches of less than this times each other share what was taken last.
_FAR = 4


@dataclass(slots=True)
class Incumbent:
    """The plan that was taken last for one kind of request at one load."""

    drafter: str
    k: int
    batch: int
    """Where it was first taken: another plan may be best where batches are far from that."""
    num_held: int = 0
    num_beaten: int = 0
    num_behind: int = 0
    """Decisions in a row in which another plan was slightly better, or more than that."""

    def is_near(self, batch: int) -> bool:
        """What it has shown says something of this batch."""
        return batch < _FAR * self.batch and self.batch < _FAR * batch

    def settle(self, best: Option, held: Option | None) -> Option:
        """The best plan, or the held one while it is not beaten clearly and for long enough."""
        self.num_held += 1
        if held is None:
            # Not possible at this load or any more: what a request itself bounds is remembered apart. What sheds load
            # is followed at once, and grows again only after a streak, or it would come and go with every request.
            if best.k < self.k:
                return self._switch(best)
            self.num_beaten += 1
            return self._switch(best) if self.num_beaten >= _STREAK else best
        is_other = best.drafter != held.drafter or best.k != held.k
        self.num_behind = self.num_behind + 1 if is_other and best.rate >= held.rate * _SLIGHT_GAIN else 0
        is_beaten = is_other and best.rate >= held.rate * _SWITCH_GAIN
        self.num_beaten = self.num_beaten + 1 if is_beaten else 0
        is_clear = is_beaten and (best.k < self.k or (self.num_beaten >= _STREAK and self.num_held >= _DWELL))
        return self._switch(best) if is_clear or self.num_behind >= _PATIENCE else held

    def _switch(self, best: Option) -> Option:
        self.drafter, self.k, self.num_held, self.num_beaten, self.num_behind = best.drafter, best.k, 0, 0, 0
        return best
