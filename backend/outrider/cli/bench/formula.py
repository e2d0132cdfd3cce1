"""The published speed-up formula, fed with what a run measured, beside the speed-up of that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.cli.bench.samples import SETTING_OFF, Sample, Samples, Setting
from outrider.core import DRAFTERS
from outrider.policy.speedup import speedup


def formula_rows(samples: Samples) -> list[dict[str, Any]]:
    """One row per drafter and k for which answers were verified."""
    rows = [_row(samples, setting) for setting in samples.settings if setting.arm in DRAFTERS]
    return [row for row in rows if row is not None]


def _row(samples: Samples, setting: Setting) -> dict[str, Any] | None:
    """Answers pooled: acceptance, costs in steps without speculation, predicted and measured speed-up."""
    ran = [s for s in samples.of(setting) if s.stats is not None and s.decode() is not None]
    cases = {sample.case for sample in ran}
    num_plain, plain_s = _pooled([s for s in samples.of(SETTING_OFF) if s.case in cases])
    num_tokens, seconds = _pooled(ran)
    if not num_plain or not num_tokens:
        return None
    step_s = plain_s / num_plain
    num_passes = sum(s.stats.num_verify_steps for s in ran if s.stats is not None)
    draft_s = sum(s.draft_s for s in ran)
    alpha = acceptance([s.stats.histogram for s in ran if s.stats is not None], setting.k)
    draft_cost = draft_s / (num_passes * setting.k) / step_s
    verify_cost = (seconds - draft_s) / num_passes / step_s
    predicted, measured = speedup(alpha, setting.k, draft_cost, verify_cost), step_s * num_tokens / seconds
    return {
        "drafter": setting.arm,
        "k": setting.k,
        "alpha": alpha,
        "c": round(draft_cost, 4),
        "verify cost": verify_cost,
        "predicted": predicted,
        "measured": measured,
        "error %": round(100 * (predicted / measured - 1), 1),
    }


def acceptance(histograms: Sequence[Sequence[int]], k: int) -> float:
    """Share of accepted drafts among those that were reached; a draft that was never made counts as refused.

    The formula knows no drafter that has no idea: its alpha is that of k drafts in every pass.
    """
    num_accepted = sum(i * n for histogram in histograms for i, n in enumerate(histogram))
    num_stopped = sum(sum(histogram[:k]) for histogram in histograms)
    return num_accepted / (num_accepted + num_stopped)


def _pooled(samples: Sequence[Sample]) -> tuple[int, float]:
    decoded = [found for sample in samples if (found := sample.decode()) is not None]
    return sum(num_tokens for num_tokens, _ in decoded), sum(seconds for _, seconds in decoded)
