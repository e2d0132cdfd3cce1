"""Whether settings wrote the same text: pairs of answers to one request, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.cli.bench.mix import Cell
from outrider.cli.bench.samples import SETTING_OFF, first_difference
from outrider.cli.bench.stretch import Request, Stretch


@dataclass(slots=True)
class Pairs:
    """Of one request's text under a setting and without speculation, as far as both were written."""

    num: int = 0
    num_tied: int = 0
    """Part where two tokens are equal up to rounding, which differs with the company in a batch."""
    num_parted: int = 0
    """Part elsewhere."""

    def add(self, one: Request, plain: Request) -> None:
        """Compare two answers to one case, as far as both have tokens."""
        if not one.token_ids or not plain.token_ids:
            return
        self.num += 1
        at = first_difference(one.token_ids, plain.token_ids)
        if at is not None and at in one.near_ties | plain.near_ties:
            self.num_tied += 1
        elif at is not None:
            self.num_parted += 1


def compared(stretches: Sequence[Stretch], *, is_greedy: bool) -> Pairs:
    """All settings against off in the same cell and round, of greedy requests or of the others."""
    plain: dict[tuple[Cell, int], Stretch] = {
        (one.turn.cell, one.turn.round): one for one in stretches if one.setting == SETTING_OFF
    }
    pairs = Pairs()
    for stretch in stretches:
        other = plain.get((stretch.turn.cell, stretch.turn.round))
        if other is None or stretch.setting == SETTING_OFF:
            continue
        for one, against in zip(stretch.requests, other.requests, strict=False):
            if (one.case.temperature == 0) == is_greedy:
                pairs.add(one, against)
    return pairs
