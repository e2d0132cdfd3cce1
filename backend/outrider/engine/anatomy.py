"""Takes a decode step of one sequence apart: reading weights at the least, tensor operators, Python around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.engine.engine import Engine
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import PLAN_OFF
from outrider.speculation.target import SamplingLaw

_NUM_TOP = 12
#: Steps before the first measured one, in which caches and threads warm up.
_WARM_UP = 3
_RID = "anatomy"
#: An operator with its arguments, as the dispatcher saw it.
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Where a step's time goes. Everything was timed in turns, and is the best of all turns unless it says median."""

    step_s: float
    """A whole step, schedule to emitted token."""
    median_step_s: float
    read_s: float
    """Reading as much memory as the packed weights take, once, with all threads."""
    median_read_s: float
    operators_s: float
    """The step's operators, called one after another with the arguments that they had; the calls' own cost is off.

    Those that work in place go on from what the turn before has left, so that values grow, in the end beyond all
    bounds. Their number and sizes, which decide the time, stay the same.
    """
    num_operators: int
    top: list[tuple[str, float]]
    """Operators that take longest in all, with the cost of calling and timing them: name and seconds per step."""

    @property
    def python_s(self) -> float:
        """Around operators. The cost of calling is overstated, by what the cheapest operator does: so is this."""
        return max(0.0, self.step_s - self.operators_s)

    @property
    def python_share(self) -> float:
        """Of a step, the share that is spent outside operators."""
        return self.python_s / self.step_s


def step_anatomy(engine: Engine, prompt_ids: Sequence[int], num_steps: int) -> Anatomy:
    """Greedy decoding of one prompt without speculation on an idle engine, for `num_steps` turns."""
    assert not engine.has_work and num_steps > 0
    engine.add(
        GenerateRequest(
            _RID, tuple(prompt_ids), SamplingLaw(0.0), num_steps + _WARM_UP + 2, PLAN_OFF, 0, cache_salt=_RID
        )
    )
    while not any(sequence.num_output >= _WARM_UP for sequence in engine.scheduler):
        engine.step()
    with _Recorder() as recorder:
        engine.step()
    calls = recorder.calls
    nothing: list[_Call] = [(torch.ops.aten.alias.default, (torch.zeros(1),), {})] * len(calls)
    data = _data(engine.model)
    turns = [
        (_timed(engine.step), _timed(data.sum), _timed(lambda: _replay(calls)), _timed(lambda: _replay(nothing)))
        for _ in range(num_steps)
    ]
    engine.abort(_RID, Finish("abort"))
    steps, reads, replays, calling = zip(*turns, strict=True)
    return Anatomy(
        min(steps), median(steps), min(reads), median(reads), min(replays) - min(calling), len(calls), _top(calls)
    )


def _data(model: LlamaModel) -> torch.Tensor:
    return torch.ones(model.packed_bytes // 8, dtype=torch.int64)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call] # not annotated
    """Notes every operator that runs in the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        self.calls.append((func, args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def _replay(calls: Sequence[_Call]) -> None:
    with torch._C.DisableTorchFunctionSubclass():  # as `Linear` does
        for operator, args, kwargs in calls:
            operator(*args, **kwargs)


@torch.inference_mode()
def _top(calls: Sequence[_Call]) -> list[tuple[str, float]]:
    total_s: dict[str, float] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for operator, args, kwargs in calls:
            start_s = time.perf_counter()
            operator(*args, **kwargs)
            total_s[str(operator)] = total_s.get(str(operator), 0.0) + time.perf_counter() - start_s
    return sorted(total_s.items(), key=lambda item: -item[1])[:_NUM_TOP]


def _timed(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s
