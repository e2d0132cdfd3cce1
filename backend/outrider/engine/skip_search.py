"""Finds the layers that `layer_skip` leaves out: by expected tokens per second on some texts, checked on others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from outrider.core import SpecStats
from outrider.cost import CostTable
from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_model import step_s
from outrider.engine.drafters.layer_skip import LayerSet, Trial, Worth
from outrider.engine.engine import Engine
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

#: Output matrices that are tried: of the first tokens only, in a BPE vocabulary the most frequent, or of all.
HEADS = (8192, 16384, None)
KS = (1, 2, 3, 4, 5, 6, 8)
#: Tokens of a prompt and of its answer, in the search and in the check, at most.
MAX_PROMPT, MAX_ANSWER, MAX_CHECKED = 96, 32, 48
#: After the first round, only so many of the layers that did best in the round before are tried.
WIDTH = 4
#: Of the time that all takes, the part that the search takes; the check takes the rest.
_SEARCH_SHARE = 0.9
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the model's own greedy answer to it: what greedy drafts are compared with."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


def accept_length(agreements: Sequence[Sequence[bool]], k: int) -> float:
    """Tokens per step that greedy drafts of `k` tokens give.

    `agreements[i][j]`: whether the draft of answer token j, made after the tokens before it, is right. At temperature
    0 the text does not depend on the drafts, so this replays the steps that the engine would make.
    """
    num_tokens = num_steps = 0
    for right in agreements:
        at = 1  # the first token comes with the prompt
        while at < len(right):
            step = 0
            while step < k and at + step < len(right) and right[at + step]:
                step += 1
            at += step + 1
            num_steps += 1
        num_tokens += len(right) - 1
    return num_tokens / num_steps if num_steps else 1.0


def expected_speedup(
    agreements: Sequence[Sequence[bool]], draft_s: float, round_s: Callable[[int], float]
) -> tuple[float, int]:
    """Tokens per second over those without speculation, and the k where they are the most.

    `draft_s`: seconds of a draft step; `round_s(rows)`: of a round without its drafts.
    """
    return max((accept_length(agreements, k) * round_s(1) / (round_s(k + 1) + k * draft_s), k) for k in KS)


def search_layers(
    num_layers: int, trial: Callable[[frozenset[int]], Trial], progress: Progress = lambda what, fraction: None
) -> list[Trial]:
    """The best set of each size that leaving out one more layer at a time finds, up to half of the layers.

    Greedy after Draft & Verify (arXiv 2309.08168), which searches the same space. It goes on while values fall: one
    layer alone never pays for itself, several together may. The first and the last layer stay.
    """
    layers, found = list(range(1, num_layers - 1)), list[Trial]()
    num_rounds = min(len(layers), num_layers // 2)
    num_trials = len(layers) + sum(min(WIDTH, len(layers) - i) for i in range(1, num_rounds))
    num_done = 0
    skip: frozenset[int] = frozenset()
    for i in range(num_rounds):
        trials = dict[int, Trial]()
        for layer in layers if i == 0 else layers[:WIDTH]:
            progress(f"layers to skip: {i + 1} of {num_rounds}", num_done / num_trials)
            trials[layer] = trial(skip | {layer})
            num_done += 1
        layers.sort(key=lambda layer: -trials[layer].expected_speedup if layer in trials else 0.0)
        best = layers.pop(0)
        found.append(trials[best])
        skip |= {best}
    return found


class SkipSearch:
    """One search on one engine: what its texts and its costs are."""

    def __init__(self, engine: Engine, table: CostTable, texts: Sequence[Text]) -> None:
        self._model = engine.model
        self._texts = texts
        context = sum(len(text.prompt_ids) + len(text.answer_ids) / 2 for text in texts) / len(texts)
        self._round_s: Callable[[int], float] = lambda rows: table.at(1, rows, context)
        config = self._model.config
        self._heads = [n for n in HEADS if n is None or (config.has_tied_embeddings and n < config.vocab_size)]
        self._step_s = {head: _LayerCost.measured(self._model, head) for head in self._heads}

    def step_s(self, skip: frozenset[int], head: int | None) -> float:
        """Seconds of a draft step."""
        return self._step_s[head].at(self._model.config.num_layers - len(skip))

    def trial(self, skip: frozenset[int]) -> Trial:
        """The best head and k for this set, by agreement on the texts and by costs."""
        texts = self._texts
        segments = [
            Segment(
                self._model.new_cache(len(t.prompt_ids) + len(t.answer_ids)),
                t.prompt_ids + t.answer_ids[:-1],
                len(t.answer_ids),
            )
            for t in texts
        ]
        logits = self._model.forward(segments, skip)
        answers = torch.tensor([token for t in texts for token in t.answer_ids])
        best: Trial | None = None
        for head in self._heads:
            right = iter((logits[:, :head].argmax(dim=-1) == answers).tolist())
            agreements = [list(itertools.islice(right, len(t.answer_ids))) for t in texts]
            speedup, k = expected_speedup(agreements, self.step_s(skip, head), self._round_s)
            if best is None or speedup > best.expected_speedup:
                best = Trial(skip=tuple(sorted(skip)), num_head_tokens=head, k=k, expected_speedup=speedup)
        assert best is not None
        return best


@dataclass(frozen=True, slots=True)
class _LayerCost:
    """Seconds of a one-row pass: linear in the number of layers, which are all of one size."""

    fixed_s: float
    layer_s: float

    @classmethod
    def measured(cls, model: LlamaModel, num_head_tokens: int | None) -> _LayerCost:
        count = model.config.num_layers
        head = None if num_head_tokens is None else model.narrow_head(num_head_tokens)
        whole, half = (
            step_s(model, partial(model.forward, skip=frozenset(range(kept, count)), head=head))
            for kept in (count, count // 2)
        )
        layer_s = max(0.0, whole - half) / (count - count // 2)
        return cls(whole - count * layer_s, layer_s)

    def at(self, num_layers: int) -> float:
        return self.fixed_s + num_layers * self.layer_s


def find_layers(
    engine: Engine,
    table: CostTable,
    prompts: Sequence[Sequence[int]],
    progress: Progress = lambda what, fraction: None,
) -> LayerSet:
    """Search on every second prompt, then draft with the set for the others and measure; minutes on a real model.

    The engine drafts with what was found from then on. The model has three layers or more, and there are two prompts
    or more.
    """
    assert len(prompts) > 1, len(prompts)
    progress("answers to compare drafts with", 0.0)
    ends = [tuple(prompt[-MAX_PROMPT:]) for prompt in prompts]
    texts = [Text(prompt, _answer(engine, prompt, PLAN_OFF, MAX_ANSWER).token_ids) for prompt in ends[::2]]
    search = SkipSearch(engine, table, texts)
    trials = search_layers(
        engine.model.config.num_layers, search.trial, lambda what, done: progress(what, _SEARCH_SHARE * done)
    )
    best = max(trials, key=lambda one: one.expected_speedup)
    layers = LayerSet(
        num_layers=engine.model.config.num_layers,
        skip=best.skip,
        num_head_tokens=best.num_head_tokens,
        key=table.key,
        trials=tuple(trials),
    )
    engine.drafters.use_layers(layers)
    progress("what the best set is worth", _SEARCH_SHARE)
    step_cost = search.step_s(frozenset(best.skip), best.num_head_tokens) / search.step_s(frozenset(), None)
    layers = layers.model_copy(update={"worth": _worth(engine, ends[1::2], best.k, step_cost)})
    engine.drafters.use_layers(layers)
    return layers


@dataclass(frozen=True, slots=True)
class _Answer:
    token_ids: tuple[int, ...]
    decode_s: float
    """From the first token to the last."""
    stats: SpecStats | None


def _worth(engine: Engine, prompts: Sequence[Sequence[int]], k: int, step_cost: float) -> Worth | None:
    """Decode speed with and without drafts, prompt by prompt, so that a slow spell of the machine hits both.

    None when no answer had more than the token that its prompt gives.
    """
    plain_s = drafted_s = 0.0
    num_plain = num_drafted = num_tokens = num_steps = 0
    for prompt in prompts:
        plain = _answer(engine, prompt, PLAN_OFF, MAX_CHECKED)
        drafted = _answer(engine, prompt, Plan("layer_skip", k), MAX_CHECKED)
        plain_s += plain.decode_s
        drafted_s += drafted.decode_s
        num_plain += len(plain.token_ids) - 1
        num_drafted += len(drafted.token_ids) - 1
        if drafted.stats is not None:
            num_tokens += drafted.stats.num_accepted + drafted.stats.num_verify_steps
            num_steps += drafted.stats.num_verify_steps
    if not (num_plain and num_steps):
        return None
    speedup = (num_drafted / drafted_s) / (num_plain / plain_s)
    return Worth(
        k=k, accept_length=num_tokens / num_steps, speedup=speedup, step_cost=step_cost, num_tokens=num_drafted
    )


def _answer(engine: Engine, prompt: Sequence[int], plan: Plan, num_tokens: int) -> _Answer:
    """The greedy answer, one request alone; a salt of its own keeps it from finding its prompt in the cache."""
    eos = frozenset(engine.model.config.eos_token_ids)
    salt = f"{plan.drafter} {num_tokens}"
    engine.add(
        GenerateRequest(
            "search", tuple(prompt), SamplingLaw(0.0), num_tokens, plan, 0, stop_token_ids=eos, cache_salt=salt
        )
    )
    tokens: tuple[int, ...] = ()
    times, stats = list[float](), None
    while engine.has_work:
        for output in engine.step():
            times.append(time.perf_counter())
            tokens += output.token_ids
            stats = output.stats
    return _Answer(tokens, times[-1] - times[0], stats)
