"""What this lane is, read from SGLang's own configuration, and what it tells the gateway about itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from outrider.sglang_plugin.hooks import Feature, Hook, Installed
from outrider.sglang_plugin.lane_plan import LaneLimits
from outrider.version import __version__

#: One per process: SGLang loads plugins once in each.
INSTALLED = Installed()


@cache
def limits() -> LaneLimits:
    """As launched. Asked before the first step, since SGLang's configuration then follows the steps in use."""
    from sglang.srt.runtime_context import get_spec

    return LaneLimits.of(get_spec())


@cache
def is_cpu() -> bool:
    """Whether this SGLang process runs on a CPU."""
    from sglang.srt.utils.common import is_cpu as is_cpu_lane

    return bool(is_cpu_lane())


def without_speculation() -> str | None:
    """Why a feature of verification has no use here."""
    return None if limits().max_k > 0 else "the lane does not speculate"


def _report(result: Any, controller: Any, request: Any) -> None:
    """AFTER `get_internal_state`, which `/server_info` shows."""
    lane = limits()
    result.internal_state["outrider"] = {
        "version": __version__,
        **INSTALLED.report(),
        "drafter": lane.drafter,
        "max_k": lane.max_k,
        # Of the latest step; None where the drafter has no steps.
        "steps": getattr(controller.scheduler.draft_worker, "speculative_num_steps", None),
    }


def _check_plan(result: Any, sampling_params: Any, vocab_size: int) -> None:
    """AFTER `SamplingParams.verify`, where a ValueError becomes a 400; later it would end the lane."""
    limits().check(sampling_params.custom_params)


REPORT = Feature(
    ("report",),
    (
        Hook(
            "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
            ".get_internal_state",
            "after",
            _report,
            ("recv_req",),
        ),
    ),
)
PLANS = Feature(
    ("plans",),
    (Hook("sglang.srt.sampling.sampling_params.SamplingParams.verify", "after", _check_plan, ("vocab_size",)),),
)
