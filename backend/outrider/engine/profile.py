"""Measures what rounds cost on this machine, and keeps the table where engine and policy find it."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from pydantic import ValidationError

from outrider.cost import DRAFTED, VERSION, CostTable, DraftCost, cpu_name
from outrider.engine.attention.choice import placement_for
from outrider.engine.checkpoint import read_config
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.engine import Engine
from outrider.engine.placement import Placement
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import ModelError
from outrider.policy.plan import Plan
from outrider.speculation.proposal import PointMass
from outrider.speculation.target import SamplingLaw
from outrider.version import __version__

#: Up to as many as an engine runs by default: beyond the last one costs are guessed from it, and rows go in tiles.
NUM_SEQUENCES = (1, 2, 4, 8, 16)
WIDTHS = (1, 2, 3, 4, 6, 9, 13, 17)
CONTEXTS = (64, 640)
#: Rounds per cell; the median counts.
_REPEATS = 5
#: Tokens that a sequence may emit while its rounds are timed.
_MAX_NEW = 200
#: Proposals per drafter.
_PROPOSALS = 20
#: Of the time that all takes, the part that the rounds take.
_ROUNDS_SHARE = 0.9
#: What is not a hybrid's own, but its head's. Its costs are those of the head, which drafts where nothing is found.
_BORROWED = {"weight_bytes": 0, "bytes_per_token": 0}
Progress = Callable[[str, float], None]


class _FixedDrafter:
    """Proposes as many tokens as it is told, chosen without regard to the text, so that nearly all are rejected."""

    def __init__(self) -> None:
        self.k = 0

    def observe(self, token_id: int) -> None:
        """Nothing that was committed changes what it proposes."""

    def propose(self, k: int) -> PointMass:
        return PointMass(tuple(range(min(k, self.k))))

    def free(self) -> None:
        """Holds nothing."""


def profile(engine: Engine, folder: Path, progress: Progress = lambda what, fraction: None) -> CostTable:
    """Measure all cells; takes about two minutes for a model of 135 M parameters on two cores. ModelError when the
    context is too short, or a drafter fails: what it cost would say nothing."""
    cells: dict[tuple[int, int], list[float]] = {}
    contexts = tuple(context for context in CONTEXTS if context + _MAX_NEW <= engine.context_length)
    if not contexts:
        raise ModelError(f"a context of {engine.context_length} tokens is too short to profile")
    for i, context in enumerate(contexts):
        for j, count in enumerate(NUM_SEQUENCES):
            done = (i * len(NUM_SEQUENCES) + j) / (len(contexts) * len(NUM_SEQUENCES))
            progress(f"{count} sequences of {context} tokens", _ROUNDS_SHARE * done)
            cells[count, context] = _rounds(engine, count, context)
    weight_bytes = engine.model.packed_bytes
    drafters: dict[str, DraftCost] = {}
    for i, name in enumerate(engine.drafters.makers):
        progress(f"drafter {name}", _ROUNDS_SHARE + (1 - _ROUNDS_SHARE) * i / len(engine.drafters.makers))
        head = engine.drafters.info.get(name, {}).get("head")
        drafters[name] = _draft_cost(engine, name) if head is None else drafters[head].model_copy(update=_BORROWED)
    return CostTable(
        version=VERSION,
        key=machine_key(folder, engine.model.placement),
        num_sequences=NUM_SEQUENCES,
        widths=WIDTHS,
        contexts=contexts,
        round_s=tuple(
            tuple(tuple(cells[count, context][w] for context in contexts) for w in range(len(WIDTHS)))
            for count in NUM_SEQUENCES
        ),
        drafters=drafters,
        bytes_per_token=engine.model.cache_bytes_per_token,
        weight_bytes=weight_bytes,
        read_s=_read_s(weight_bytes),
        resident_bytes=resident_bytes(),
    )


def with_drafter(engine: Engine, table: CostTable, name: str) -> CostTable:
    """The table with this drafter measured anew, as after a change of what it drafts with."""
    return table.model_copy(update={"drafters": table.drafters | {name: _draft_cost(engine, name)}})


def _rounds(engine: Engine, count: int, context: int) -> list[float]:
    """Median seconds of a round of `count` sequences, for each width."""
    drafter = _FixedDrafter()
    vocab = engine.model.config.vocab_size
    for i in range(count):
        prompt = tuple((7 * j + i) % vocab for j in range(context))
        request = GenerateRequest(
            f"profile-{i}", prompt, SamplingLaw(0.0), _MAX_NEW, Plan("ngram", WIDTHS[-1] - 1), 0
        )
        engine.add(request, GuardedDrafter(lambda: drafter, vocab))
    while any(sequence.num_output == 0 for sequence in engine.scheduler):
        engine.step()
    medians = []
    for width in WIDTHS:
        drafter.k = width - 1
        medians.append(median(_timed(engine) for _ in range(_REPEATS)))
    for i in range(count):
        engine.abort(f"profile-{i}", Finish("abort"))
    return medians


def _timed(engine: Engine) -> float:
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start


def _draft_cost(engine: Engine, name: str) -> DraftCost:
    text = _text(engine)
    one, several = _proposal_s(engine, name, 1), _proposal_s(engine, name, DRAFTED)
    engine.add(
        GenerateRequest("profile", text, SamplingLaw(0.0), 200, Plan(name, DRAFTED), 0, prediction_ids=text * 2)
    )
    while not next(iter(engine.scheduler)).num_output:
        engine.step()
    rounds = [_timed(engine) for _ in range(_PROPOSALS)]
    drafter = next(iter(engine.scheduler)).drafter
    num_failures = 0 if drafter is None else drafter.num_failures
    engine.abort("profile", Finish("abort"))
    _refuse_failed(name, num_failures)
    memory = engine.drafters.memory.get(name)
    return DraftCost(
        first_s=one,
        step_s=max(0.0, several - one) / (DRAFTED - 1),
        round_s=median(rounds),
        weight_bytes=engine.drafters.info.get(name, {}).get("weight_bytes", 0),
        bytes_per_token=memory.bytes_per_token if memory else 0,
        digest=engine.drafters.digests.get(name, ""),
    )


def _refuse_failed(name: str, num_failures: int) -> None:
    if num_failures:
        raise ModelError(f"the drafter {name} failed while it was timed; the log above says how")


def _text(engine: Engine) -> tuple[int, ...]:
    """A text that repeats itself here and there."""
    return tuple(i * i % 97 % engine.model.config.vocab_size for i in range(200))


def _proposal_s(engine: Engine, name: str, k: int) -> float:
    """Median seconds of one proposal of `k` tokens."""
    text = _text(engine)
    request = GenerateRequest(
        "profile", text, SamplingLaw(0.0), _PROPOSALS + k, Plan(name, k), 0, prediction_ids=text
    )
    drafter = engine.drafters.make(request)
    assert drafter is not None
    times, placement = [], engine.model.placement
    width = len(drafter.points) * engine.model.config.hidden_size
    for i, token in enumerate(text[:_PROPOSALS]):
        if width:
            first = 0 if i == 0 else len(text) + i - 1
            shape = (len(text) + i - first, width)
            drafter.observe_features(first, torch.ones(shape, device=placement.device, dtype=placement.dtype))
        drafter.observe(token)
        start = time.perf_counter()
        drafter.propose(k)
        times.append(time.perf_counter() - start)
    num_failures = drafter.num_failures
    drafter.free()
    _refuse_failed(name, num_failures)
    return median(times)


def resident_bytes() -> int:
    """The most memory that this process has held so far; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _read_s(num_bytes: int) -> float:
    """Seconds to read that much memory with all threads."""
    data = torch.ones(num_bytes // 8, dtype=torch.int64)
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - start)
    return median(times)


def device_name(placement: Placement) -> str:
    """The chip that computes."""
    return cpu_name() if placement.is_cpu else torch.cuda.get_device_name(placement.device)


def machine_key(folder: Path, placement: Placement) -> dict[str, str]:
    """What a table is valid for: hardware, model and build."""
    weights = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return {
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "device": "cpu" if placement.is_cpu else device_name(placement),
        "dtype": str(placement.dtype).removeprefix("torch."),
        "model": digest.hexdigest()[:16],
        "torch": torch.__version__.partition("+")[0],
        "outrider": __version__,
    }


def table_path(folder: Path, cache: Path) -> Path:
    """Where the table of this model on this machine lies, whether it is there or not."""
    placement = placement_for(read_config(folder))
    key = "\n".join(f"{name} {value}" for name, value in sorted(machine_key(folder, placement).items()))
    return cache / "profiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def layers_path(folder: Path, cache: Path) -> Path:
    """Where the layer set that was found with that table lies, whether it is there or not."""
    table = table_path(folder, cache)
    return table.with_name(f"{table.stem}-layers.json")


def layers_for(folder: Path, cache: Path, given: Path | None = None) -> Path | None:
    """The layer set to draft with: the given one, else the stored one, None when there is none."""
    stored = layers_path(folder, cache)
    return given or (stored if stored.is_file() else None)


def read_table(path: Path) -> CostTable | None:
    """None when there is none; ModelError when the file is damaged."""
    if not path.is_file():
        return None
    try:
        return CostTable.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ModelError(f"{path} is no cost table: {error.errors()[0]['msg']}; profile again") from error
