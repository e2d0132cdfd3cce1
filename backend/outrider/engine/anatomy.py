"""Takes a decode step of one sequence apart: reading weights at the least, tensor operators, Python around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from outrider.engine.engine import Engine
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import PLAN_OFF
from outrider.speculation.target import SamplingLaw

_REPEATS = 7
_NUM_TOP = 12
#: Steps before the first measured one, in which caches and threads warm up.
_WARM_UP = 3
_RID = "anatomy"


def read_time_s(model: LlamaModel) -> float:
    """Seconds to read as much memory as the packed weights take, once, with all threads; the best of several."""
    data = torch.ones(model.packed_bytes // 8, dtype=torch.int64)
    times = []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - start_s)
    return min(times)


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Where a step's time goes. `python_s` is an upper bound, `operators_s` is the rest of `step_s`."""

    step_s: float
    """Median of whole steps, schedule to emitted token, without a profiler."""
    operators_s: float
    python_s: float
    """Outside of tensor operators: our code, torch's argument parsing, and what the profiler adds there."""
    python_share: float
    """`python_s / step_s`, at most 1."""
    top: list[tuple[str, float]]
    """Operators that take longest by themselves, with the profiler's cost in them: name and seconds per step."""


def step_anatomy(engine: Engine, prompt_ids: Sequence[int], num_steps: int) -> Anatomy:
    """Greedy decoding of one prompt without speculation on an idle engine, `num_steps` timed and as many profiled.

    The profiler sees the outermost operators' times; what is left of the profiled steps is Python. Its own cost per
    operator falls into both, so Python is overstated and never understated.
    """
    assert not engine.has_work and num_steps > 0
    limit = 2 * num_steps + _WARM_UP + 2
    engine.add(GenerateRequest(_RID, tuple(prompt_ids), SamplingLaw(0.0), limit, PLAN_OFF, 0))
    while not any(sequence.num_output >= _WARM_UP for sequence in engine.scheduler):
        engine.step()
    step_s = median(_timed(engine) for _ in range(num_steps))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        profiled_s = sum(_timed(engine) for _ in range(num_steps)) / num_steps
    engine.abort(_RID, Finish("abort"))
    own_s = {event.key: event.self_cpu_time_total / 1e6 / num_steps for event in profiler.key_averages()}
    python_s = min(step_s, max(0.0, profiled_s - sum(own_s.values())))
    top = sorted(own_s.items(), key=lambda item: -item[1])[:_NUM_TOP]
    return Anatomy(step_s, step_s - python_s, python_s, python_s / step_s, top)


def _timed(engine: Engine) -> float:
    start_s = time.perf_counter()
    engine.step()
    return time.perf_counter() - start_s
