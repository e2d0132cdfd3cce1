"""The target writes in large batches: answers to prompts, or questions too, with the states that it had meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from outrider.engine.attention import Segment
from outrider.engine.kv_cache import BLOCK_SIZE, KeyValueMemory, SequenceCache, blocks_for
from outrider.engine.model import LlamaModel
from outrider.engine.taps import Taps
from outrider.engine.tokenizer import Tokenizer
from outrider.training.prompts import TrainingPrompt

#: Texts written at once: a product of so many rows is as fast a token as any.
BATCH = 128
#: Tokens of an answer at most; of a question that the target asks itself; and its temperature.
MAX_ANSWER, MAX_QUESTION, QUESTION_TEMPERATURE = 192, 96, 0.9
#: Tokens of a longer prompt that are left out, at its beginning.
MAX_PROMPT = 320


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A prompt with its answer."""

    prompt: TrainingPrompt
    """Of a question that the target asked itself, with its words."""
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    states: torch.Tensor
    """[n, len(points) * hidden] fp16, of all its tokens."""


@dataclass(slots=True, eq=False)
class _Sheet:
    """What one row of the batch is writing."""

    prompt: TrainingPrompt
    cache: SequenceCache
    unread: list[int]
    """Tokens that the next step reads."""
    token_ids: list[int]
    num_template: int
    """Tokens before a question that the target still asks; 0 when it has its prompt."""
    num_prompt: int = 0
    is_done: bool = False
    states: list[torch.Tensor] = field(default_factory=list)

    @property
    def temperature(self) -> float:
        return QUESTION_TEMPERATURE if self.num_template else self.prompt.temperature


class Writer:
    """Batches over the target's own forward pass: as an engine's, but all tokens of a step are chosen at once."""

    def __init__(self, model: LlamaModel, tokenizer: Tokenizer, points: tuple[int, ...], seed: int) -> None:
        self._model, self._tokenizer, self._points = model, tokenizer, points
        self._stops = frozenset(model.config.eos_token_ids)
        self._max_prompt = min(MAX_PROMPT, model.config.context_length - MAX_ANSWER - 1)
        self._blocks = blocks_for(self._max_prompt + MAX_ANSWER + 1)
        self._memory = KeyValueMemory(model.config, BATCH * self._blocks, model.placement)
        self._free = list(range(BATCH))
        self._generator = torch.Generator().manual_seed(seed)
        self._before, self._after = _around(tokenizer)

    @property
    def can_ask(self) -> bool:
        """Whether the target can ask itself: something must stand before a question."""
        return bool(self._before)

    def write(self, source: Iterator[TrainingPrompt], is_open: Callable[[int], bool]) -> Iterator[Written]:
        """Texts as they are finished. `is_open` says whether another is begun beside so many; those are finished."""
        sheets: list[_Sheet] = []
        while True:
            while self._free and is_open(len(sheets)) and (prompt := next(source, None)) is not None:
                sheets.append(self._begin(prompt))
            if not sheets:
                return
            chosen = self._read(sheets)
            done = [sheet for sheet in sheets if sheet.is_done]
            for sheet, token in zip(sheets, chosen, strict=True):
                if not sheet.is_done:
                    self._put(sheet, token)
            sheets = [sheet for sheet in sheets if sheet not in done and not self._is_lost(sheet)]
            for sheet in done:
                self._free.append(sheet.cache.blocks[0] // self._blocks)
                count, ids = sheet.num_prompt, tuple(sheet.token_ids)
                yield Written(sheet.prompt, ids[:count], ids[count:], torch.cat(sheet.states))

    def _begin(self, prompt: TrainingPrompt) -> _Sheet:
        place = self._free.pop()
        cache = SequenceCache(self._model.config, self._blocks * BLOCK_SIZE, self._memory)
        cache.place(list(range(place * self._blocks, (place + 1) * self._blocks)))
        if prompt.text:
            ids = self._tokenizer.encode_chat([{"role": "user", "content": prompt.text}])[-self._max_prompt :]
            return _Sheet(prompt, cache, list(ids), list(ids), 0, len(ids))
        return _Sheet(prompt, cache, list(self._before), list(self._before), len(self._before))

    def _read(self, sheets: list[_Sheet]) -> list[int]:
        """One step of all; the token that each chooses next."""
        taps = Taps(self._points)
        logits = self._model.forward([Segment(s.cache, tuple(s.unread), 1) for s in sheets], taps=taps)
        counts = [len(sheet.unread) for sheet in sheets]
        states = taps.features(self._points, range(sum(counts))).half().cpu()
        for sheet, own in zip(sheets, torch.split(states, counts), strict=True):
            sheet.states.append(own)
        chosen = logits.argmax(dim=-1)
        warm = [i for i, sheet in enumerate(sheets) if sheet.temperature > 0]
        if warm:
            heat = torch.tensor([sheets[i].temperature for i in warm]).unsqueeze(1)
            chosen[warm] = self._draw((logits[warm] / heat).softmax(dim=-1))
        return chosen.tolist()

    def _draw(self, laws: torch.Tensor) -> torch.Tensor:
        """laws [n, V] -> [n]: by inversion, which takes one number a row where `multinomial` takes V."""
        sums = laws.cumsum(dim=-1)
        drawn = torch.rand(len(laws), 1, generator=self._generator) * sums[:, -1:]
        return torch.searchsorted(sums, drawn, right=True).squeeze(1).clamp(max=laws.shape[1] - 1)

    def _put(self, sheet: _Sheet, token: int) -> None:
        sheet.token_ids.append(token)
        sheet.unread = [token]
        is_stop = token in self._stops
        if not sheet.num_template:
            sheet.is_done = is_stop or len(sheet.token_ids) == sheet.num_prompt + MAX_ANSWER
        elif is_stop:
            question = self._tokenizer.decode(sheet.token_ids[sheet.num_template : -1]).strip()
            old = sheet.prompt
            sheet.prompt = TrainingPrompt(old.index, old.task, question, old.temperature)
            sheet.token_ids += self._after
            sheet.unread += self._after
            sheet.num_template, sheet.num_prompt = 0, len(sheet.token_ids)

    def _is_lost(self, sheet: _Sheet) -> bool:
        """A question without words, or without an end, is left out, and its place is free again."""
        is_endless = sheet.num_template > 0 and len(sheet.token_ids) - sheet.num_template > MAX_QUESTION
        if not is_endless and (sheet.num_template or sheet.prompt.text):
            return False
        self._free.append(sheet.cache.blocks[0] // self._blocks)
        return True


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the chat template puts before a question, and after its end."""
    one, other = (tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ("A", "7"))
    first = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return one[:first], one[first + 2 :]
