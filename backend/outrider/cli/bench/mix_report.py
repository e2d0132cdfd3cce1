"""The report of mixed traffic: a row per cell, the aims with what missed them, and both as a page with heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from outrider.cli.bench.aims import Aim, aim_rows, at_least, at_most
from outrider.cli.bench.closed_loop import NUM_SLICES
from outrider.cli.bench.mix import Cell, Mix
from outrider.cli.bench.regret import Regret
from outrider.cli.bench.same_text import Pairs, compared
from outrider.cli.bench.samples import SETTING_OFF
from outrider.cli.bench.show import Row
from outrider.cli.bench.visits import POLICY
from outrider.plots.charts import heat_map
from outrider.plots.svg import Labels, Plot, marked
from outrider.workloads.page import Page, Section, write_page

if TYPE_CHECKING:
    from outrider.cli.bench.ours import EngineArm

#: Of the policy's speed over the best fixed setting of each cell, over the best one for all, and over off anywhere.
EACH, SINGLE, PLAIN = 0.97, 1.15, 0.97
#: Time that drafts which are never accepted may take, learning that included; and the requests without which the
#: first, of which nobody can know it, are most of the figure.
USELESS, _ENOUGH_USELESS = 1.05, 24
#: Cells that a missed aim names.
_NUM_NAMED = 3


def mix_parts(regret: Regret, num_missing: int = 0) -> dict[str, list[Row]]:
    """Rows by title; `num_missing` cells were not measured."""
    rows = [_row(regret, cell) for cell in (*regret.cells, *regret.hopeless)]
    return {"tokens per second of all requests together": rows, "aims": aim_rows(mix_aims(regret, num_missing))}


def _row(regret: Regret, cell: Cell) -> Row:
    settings = [SETTING_OFF] if cell.is_hopeless else regret.fixed
    against_off = regret.ratios([cell], regret.off)
    row: Row = {"workload": f"{cell.workload}, useless drafts" if cell.is_hopeless else cell.workload}
    row |= {"batch": cell.size}
    row |= {str(setting): regret.speed(cell, setting) for setting in settings}
    row |= {"policy": regret.speed(cell, POLICY), "policy ran": regret.plans(cell)}
    if not cell.is_hopeless:
        row |= {"best": str(regret.best([cell])), "policy / best": regret.ratio([cell], regret.each_best)}
    return row | {
        "policy / off": median(against_off),
        "by round": f"{min(against_off):.2f}-{max(against_off):.2f}",
    }


def mix_aims(regret: Regret, num_missing: int = 0) -> list[Aim]:
    """None is met while cells are missing: each is about all of them."""
    cells, single = regret.cells, ""
    if regret.rounds(cells):
        single = str(regret.best(cells))
    off = {cell: ratio for cell in cells if (ratio := regret.ratio([cell], regret.off)) is not None}
    worst = min(off, key=lambda cell: off[cell], default=None)
    each = at_least("policy / best setting of each cell", regret.ratio(cells, regret.each_best), EACH)
    one = at_least("policy / best single setting", regret.ratio(cells, regret.single_best), SINGLE, single)
    plain = at_least("policy / off, worst cell", min(off.values(), default=None), PLAIN, str(worst or ""))
    found = [
        _explained(regret, each),
        _explained(regret, one, _headroom(regret)),
        _explained(regret, plain),
        _useless(regret),
        _same("greedy", compared(regret.traffic, is_greedy=True)),
        _same("sampled", compared(regret.traffic, is_greedy=False)),
    ]
    why = f"{num_missing} cells are missing"
    return [replace(aim, is_met=None, why=why) if aim.is_met and num_missing else aim for aim in found]


def _useless(regret: Regret) -> Aim:
    """Undecided where the interval holds the bound, or too few requests were asked for."""
    found = None if regret.num_accepted() else regret.slowdown()
    aim = at_most("processor time with useless drafts / off", None if found is None else found[0], USELESS)
    if found is None:
        return aim
    (ratio, margin), num = found, regret.num_useless()
    aim = replace(aim, by=f"+- {margin:.3f} (95 %), {num} requests")
    if num < _ENOUGH_USELESS:
        return replace(aim, is_met=None, why=f"fewer than {_ENOUGH_USELESS} requests: it is still being learnt")
    if abs(ratio - USELESS) <= margin:
        return replace(aim, is_met=None, why="the interval holds the bound")
    return aim


def _headroom(regret: Regret) -> list[str]:
    found = regret.headroom()
    return [] if found is None else [f"the best setting of each cell gains {found:.2f}"]


def _explained(regret: Regret, aim: Aim, first: Sequence[str] = ()) -> Aim:
    """With the cells that lose most to what was best there, when it is missed."""
    if aim.is_met is not False:
        return aim
    ratios = {cell: ratio for cell in regret.cells if (ratio := regret.ratio([cell], regret.each_best)) is not None}
    worst = sorted(ratios, key=lambda cell: ratios[cell])[:_NUM_NAMED]
    named = [f"{cell}: {ratios[cell]:.2f} of {regret.best([cell])} with {regret.plans(cell)}" for cell in worst]
    return replace(aim, why="; ".join([*first, *named]))


def _same(what: str, pairs: Pairs) -> Aim:
    aim = f"{what} texts unlike off's, beyond near ties, of {pairs.num} pairs"
    tied = f"{pairs.num_tied} part at near ties" if pairs.num_tied else ""
    return replace(at_most(aim, float(pairs.num_parted) if pairs.num else None, 0), by=tied)


def mix_plots(regret: Regret) -> list[Plot]:
    """The policy against hindsight and against no speculation, by workload and batch."""
    best = Labels(
        "policy-best", "Policy against the best setting", "times as fast", "",
        "Tokens per second under the policy over those of the fixed setting that was best there in the other rounds, "
        "or in this one where it is the only one: 1 is no regret.",
    )  # fmt: skip
    off = Labels(
        "policy-off", "Policy against no speculation", "times as fast", "",
        "Tokens per second under the policy over those without speculation; below 1 it does not pay.",
    )  # fmt: skip
    sizes = sorted({cell.size for cell in regret.cells})
    ratios = {
        labels: {(cell.workload, cell.size): regret.ratio([cell], other) for cell in regret.cells}
        for labels, other in ((best, regret.each_best), (off, regret.off))
    }
    workloads = dict.fromkeys(cell.workload for cell in regret.cells)
    tables = {labels: {w: [found.get((w, s)) for s in sizes] for w in workloads} for labels, found in ratios.items()}
    drawn = [heat_map(labels, table, [f"batch {size}" for size in sizes]) for labels, table in tables.items()]
    return marked(drawn)


def missing_cells(num_cells: int, num_planned: int) -> list[str]:
    """What a reader must know before any figure, when not all cells were measured."""
    if num_cells >= num_planned:
        return []
    return [f"only {num_cells} of {num_planned} cells were measured, so that no aim is met"]


def write_mix_report(
    regret: Regret,
    tables: Mapping[str, Sequence[Row]],
    notes: Sequence[str],
    stated: Mapping[str, object],
    folder: Path,
) -> list[Path]:
    """`policy.html`, `policy.md` and a PNG for each heat map; the files that were written."""
    below = f"{stated['time']} on {stated['num_cores']} cores of {stated['cpu']}; {stated['cells']} cells"
    sections = [
        Section("Heat maps", plots=mix_plots(regret)),
        *(Section(title.capitalize(), rows=rows) for title, rows in tables.items()),
        Section("Conditions", facts=stated),
    ]
    return write_page(
        Page("The policy and fixed settings in mixed traffic", below, notes, sections), folder, "policy"
    )


def facts(ours: EngineArm, mix: Mix, regret: Regret, *, is_interrupted: bool) -> dict[str, object]:
    """How this run was made, beyond machine and versions."""
    import torch

    cells = (*regret.cells, *regret.hopeless)
    num_out = sum(one.num_left_out for one in regret.traffic)
    num_slices = max(1, NUM_SLICES * len(regret.traffic))
    nums = [len(regret.rounds([cell])) for cell in cells]
    return {
        "threads": torch.get_num_threads(),
        **ours.facts(is_learning=True),
        "fixed settings": "drafts that do not pay are left out" if mix.trims_fixed else "every draft is verified",
        "cells": f"{len(cells)} of {mix.num_cells}{', interrupted' if is_interrupted else ''}",
        "rounds": f"{min(nums, default=0)}-{max(nums, default=0)}",
        "slices left out": f"{100 * num_out / num_slices:.0f} %, in which another process had the processor",
        "prompts": ", ".join(f"{len(cases)} {workload}" for workload, cases in mix.cases.items()),
        "compared": "with the setting that is best in the other rounds, or in this one where it is the only one, "
        "medians over rounds; the mix has as many tokens in each cell; every request finds all others of its "
        "batch running",
    }
