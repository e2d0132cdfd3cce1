"""Which layers of the target self-speculation leaves out: a default, a search, and the file that keeps its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from outrider.core import MAX_K
from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_model import step_s
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError

_VERSION = 1


def default_skip(num_layers: int) -> frozenset[int]:
    """Every second layer of the middle half; the first and the last layer always stay."""
    margin = max(1, num_layers // 4)
    return frozenset(range(margin, num_layers - margin, 2))


def search_skip(num_layers: int, score: Callable[[frozenset[int]], float]) -> frozenset[int]:
    """The best set that leaving out one more layer at a time finds, at most half of them; empty if none can go.

    Greedy after Draft & Verify (arXiv 2309.08168), which searches the same space. It goes on while scores fall: one
    layer alone never pays for itself, several together may. The first and the last layer stay.
    """
    skip: frozenset[int] = frozenset()
    found: list[tuple[float, frozenset[int]]] = []
    while len(skip) < num_layers // 2 and (rest := set(range(1, num_layers - 1)) - skip):
        scored = {layer: score(skip | {layer}) for layer in sorted(rest)}
        layer = max(scored, key=lambda candidate: scored[candidate])
        skip |= {layer}
        found.append((scored[layer], skip))
    return max(found, key=lambda entry: entry[0])[1] if found else skip


def find_skip(model: LlamaModel, sequences: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """Search by measured agreement on these token sequences and by measured time. Minutes on a real model."""
    full_s = step_s(model)
    wanted = [_choices(model, tokens, frozenset()) for tokens in sequences]

    def score(skip: frozenset[int]) -> float:
        found = [_choices(model, tokens, skip) for tokens in sequences]
        agreement = torch.cat([a == b for a, b in zip(wanted, found, strict=True)]).double().mean()
        return expected_speedup(float(agreement), step_s(model, skip) / full_s)

    return search_skip(model.config.num_layers, score)


def expected_speedup(acceptance: float, cost: float) -> float:
    """Best over k of expected tokens per round and time of a round (arXiv 2211.17192, theorem 3.8).

    `acceptance` of each draft token; `cost` of a draft step in target steps.
    """
    tokens, best = 1.0, 0.0
    for k in range(1, MAX_K + 1):
        tokens += acceptance**k
        best = max(best, tokens / (1 + k * cost))
    return best


def _choices(model: LlamaModel, tokens: tuple[int, ...], skip: frozenset[int]) -> torch.Tensor:
    """[len(tokens)]: the likeliest token after each prefix."""
    cache = model.new_cache(len(tokens))
    return model.forward([Segment(cache, tokens, len(tokens))], skip).argmax(dim=-1)


def write_skip(path: Path, num_layers: int, skip: frozenset[int]) -> None:
    data = {"version": _VERSION, "num_layers": num_layers, "skip": sorted(skip)}
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def read_skip(path: Path, num_layers: int) -> frozenset[int]:
    """ModelError when the file is not a set of layers of a model of this depth."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("version") != _VERSION or not isinstance(data.get("skip"), list):
        raise ModelError(f"{path} is not a layer set of version {_VERSION}")
    if data.get("num_layers") != num_layers:
        raise ModelError(f"{path} is for a model of {data.get('num_layers')} layers, not {num_layers}")
    if not all(type(layer) is int and 0 <= layer < num_layers for layer in data["skip"]):
        raise ModelError(f"{path}: skip must list layers between 0 and {num_layers - 1}")
    return frozenset(data["skip"])
