"""Traffic of given speeds and texts, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cli.bench.mix import Cell, Turn
from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.cli.bench.traffic import Request, Slice, Traffic
from outrider.cli.bench.visits import POLICY
from outrider.core import SpecStats
from outrider.policy.plan import PLAN_OFF, Plan

CODE, CHAT = Cell("code", 1), Cell("chat", 4)
HOPELESS = Cell("code", 1, is_hopeless=True)
NGRAM = Setting("ngram", 4)


def request(
    token_ids: Sequence[int], plan: Plan = PLAN_OFF, *, temperature: float = 0.0, ties: Sequence[int] = ()
) -> Request:
    case = Case("one", "code", "text", temperature)
    return Request(case, plan, token_ids=list(token_ids), near_ties=set(ties))


def traffic(
    cell: Cell, number: int, speeds: dict[Setting, float], requests: dict[Setting, Sequence[Request]] | None = None
) -> list[Traffic]:
    """One round of one cell: every setting writes 100 tokens at its speed."""
    settings = (SETTING_OFF, POLICY) if cell.is_hopeless else (SETTING_OFF, NGRAM, POLICY)
    turn = Turn(cell, number, settings, ())
    return [
        Traffic(
            setting, turn, 100, 100 / speed, tuple((requests or {}).get(setting, ())), 0,
            tuple(Slice(25, 25 / speed, 25 / speed + 0.001 * part) for part in range(4)),
        )
        for setting, speed in speeds.items()
    ]  # fmt: skip


def round_of(cell: Cell, number: int, off: float, ngram: float, policy: float) -> list[Traffic]:
    """With what the policy ran: one request with drafts."""
    ran = {POLICY: [request([1, 2], Plan("ngram", 4))]}
    return traffic(cell, number, {SETTING_OFF: off, NGRAM: ngram, POLICY: policy}, ran)


def hopeless_round(number: int, policy: float, num_accepted: int = 0, num: int = 1) -> list[Traffic]:
    """Off at ten tokens per second beside the policy with useless drafts, in so many requests."""
    drafted = request([1], Plan("ngram", 4))
    drafted.stats = SpecStats(1, num_accepted, (0,) * num_accepted + (1,))
    return traffic(HOPELESS, number, {SETTING_OFF: 10.0, POLICY: policy}, {POLICY: [drafted] * num})
