"""What the policy's traffic loses against fixed settings: per cell and over the mix, within one run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median, stdev

from outrider.cli.bench.mix import Cell
from outrider.cli.bench.samples import SETTING_OFF, Setting
from outrider.cli.bench.traffic import Traffic
from outrider.cli.bench.visits import POLICY

#: Of a round: which fixed setting each cell is held against.
Choice = Callable[[int], Mapping[Cell, Setting]]


class Regret:
    """Ratios between settings that answered the same requests one after the other.

    The best fixed setting of a round is the one that was best in the *other* rounds, so that luck in a round does not
    make a setting look better than it is: of six equal settings the luckiest is always faster than the mean.
    """

    def __init__(self, traffic: Sequence[Traffic]) -> None:
        self.traffic = traffic
        seen: dict[Cell, dict[int, dict[Setting, float]]] = {}
        for one in traffic:
            seen.setdefault(one.turn.cell, {}).setdefault(one.turn.round, {})[one.setting] = 1 / one.tokens_per_s
        whole = {one.turn.cell: set(one.turn.settings) for one in traffic}
        self._token_s = {
            cell: {number: found for number, found in rounds.items() if set(found) == whole[cell]}
            for cell, rounds in seen.items()
        }
        """Seconds per token, of rounds that all settings of the cell have finished."""
        self.cells = [cell for cell, rounds in self._token_s.items() if rounds and not cell.is_hopeless]
        self.hopeless = [cell for cell, rounds in self._token_s.items() if rounds and cell.is_hopeless]
        self.fixed = list(
            dict.fromkeys(
                s for cell in self.cells for found in self._token_s[cell].values() for s in found if s != POLICY
            )
        )

    def rounds(self, cells: Sequence[Cell]) -> list[int]:
        """Those that all of these cells have finished."""
        return sorted(set.intersection(*(set(self._token_s[cell]) for cell in cells))) if cells else []

    def speed(self, cell: Cell, setting: Setting) -> float | None:
        """Tokens per second of all requests together, the median over rounds."""
        found = [1 / one[setting] for one in self._token_s[cell].values() if setting in one]
        return median(found) if found else None

    def best(self, cells: Sequence[Cell], but: int | None = None) -> Setting:
        """The fixed setting that needs least time for as many tokens in each of these cells; medians over rounds,
        without one of them unless it is the only one."""
        rounds = [n for n in self.rounds(cells) if n != but] or self.rounds(cells)
        return min(
            self.fixed,
            key=lambda s: sum(median(self._token_s[cell][n][s] for n in rounds) for cell in cells),
        )

    def each_best(self, number: int) -> dict[Cell, Setting]:
        """With hindsight by cell."""
        return {cell: self.best([cell], number) for cell in self.cells}

    def single_best(self, number: int) -> dict[Cell, Setting]:
        """With hindsight over the mix."""
        return dict.fromkeys(self.cells, self.best(self.cells, number))

    def off(self, number: int) -> dict[Cell, Setting]:
        """Without speculation."""
        return dict.fromkeys((*self.cells, *self.hopeless), SETTING_OFF)

    def ratios(self, cells: Sequence[Cell], other: Choice) -> list[float]:
        """By round: how much faster the policy writes as many tokens in each of these cells."""
        found = []
        for number in self.rounds(cells):
            choice = other(number)
            theirs = sum(self._token_s[cell][number][choice[cell]] for cell in cells)
            found.append(theirs / sum(self._token_s[cell][number][POLICY] for cell in cells))
        return found

    def ratio(self, cells: Sequence[Cell], other: Choice) -> float | None:
        """The median over rounds."""
        found = self.ratios(cells, other)
        return median(found) if found else None

    def headroom(self) -> float | None:
        """What choosing the best fixed setting in each cell gains over the best one for all: more than that is not
        there for any choice between them."""
        rounds = self.rounds(self.cells)
        if not rounds:
            return None
        single = self.best(self.cells)

        def token_s(cell: Cell, setting: Setting) -> float:
            return median(self._token_s[cell][number][setting] for number in rounds)

        each_s = sum(min(token_s(cell, setting) for setting in self.fixed) for cell in self.cells)
        return sum(token_s(cell, single) for cell in self.cells) / each_s

    def slowdown(self) -> tuple[float, float] | None:
        """Processor time with useless drafters over that without any, of all their slices together, since learning is
        part of it; and half the width of its 95 % interval, by the delta method for a ratio of sums.

        Processor time, as slices that waited for the processor cannot be left out: the first, in which drafts are not
        known to be useless, may be among them.
        """
        cpu_s: dict[Setting, list[float]] = {SETTING_OFF: [], POLICY: []}
        for one in self.traffic:
            if one.turn.cell in self.hopeless and one.turn.round in self._token_s[one.turn.cell]:
                cpu_s[one.setting] += [part.cpu_s for part in one.slices]
        plain, ours = cpu_s[SETTING_OFF], cpu_s[POLICY]
        if len(plain) < 2:
            return None
        ratio = sum(ours) / sum(plain)
        errors = [a - ratio * b for a, b in zip(ours, plain, strict=True)]
        return ratio, 1.96 * stdev(errors) * math.sqrt(len(errors)) / sum(plain)

    def num_useless(self) -> int:
        """Requests of the policy that useless drafters were offered for."""
        found = [one for one in self.traffic if one.turn.cell.is_hopeless and one.setting == POLICY]
        return sum(len(one.requests) for one in found)

    def num_accepted(self) -> int:
        """Drafts that were accepted where none should be."""
        requests = [r for one in self.traffic if one.turn.cell.is_hopeless for r in one.requests]
        return sum(r.stats.num_accepted for r in requests if r.stats is not None)

    def plans(self, cell: Cell) -> str:
        """What the policy ran there, the most frequent first."""
        asked = [r for one in self.traffic if one.turn.cell == cell and one.setting == POLICY for r in one.requests]
        counts = Counter(str(Setting(r.plan.drafter, r.plan.k)) for r in asked)
        return ", ".join(f"{plan} x{num}" for plan, num in counts.most_common())
