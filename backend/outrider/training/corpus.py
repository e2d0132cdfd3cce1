"""Texts to train on: prompts with the target's own answers, kept on disk and continued after a kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from outrider.engine.engine import Engine
from outrider.engine.sequence import GenerateRequest
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError
from outrider.policy.plan import PLAN_OFF
from outrider.speculation.target import SamplingLaw
from outrider.training.prompts import TrainingPrompt, is_held_out, prompts

Progress = Callable[[str, float], None]
#: Tokens of an answer at most, and answers written at once.
MAX_ANSWER = 192
BATCH = 32
#: Tokens of a piece of natural text, and the number of the first one, beyond those of all prompts.
PIECE, FIRST_NATURAL = 256, 10_000_000


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its answer."""

    index: int
    task: str
    temperature: float
    prompt: str
    """Empty for natural text."""
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]

    @property
    def is_held_out(self) -> bool:
        return not self.is_natural and is_held_out(self.prompt)

    @property
    def is_natural(self) -> bool:
        """Whether people wrote it, and not the target."""
        return self.index >= FIRST_NATURAL

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.answer_ids


class Corpus:
    """A file of texts, one JSON object a line, in the order in which they were finished."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "texts.jsonl"
        self.texts = list(self._read())

    def _read(self) -> Iterator[Text]:
        """What a kill left of a last line is cut off; ModelError when a line is no text of this form."""
        if not self.path.is_file():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                fields = json.loads(line)
                yield Text(**fields | {name: tuple(fields[name]) for name in ("prompt_ids", "answer_ids")})
            except (ValueError, TypeError, KeyError) as error:
                raise ModelError(
                    f"{self.path}:{number} is no text of this version ({error}); remove the file"
                ) from error

    @property
    def num_tokens(self) -> int:
        return sum(len(text.token_ids) for text in self.texts)

    def extend(self, engine: Engine, num_tokens: int, seconds: float, progress: Progress, seed: int = 0) -> None:
        """Let the target answer prompts that have no answer yet, until there are so many tokens or time is up;
        answers that were begun are finished."""
        deadline, before = time.monotonic() + seconds, self.num_tokens
        done = {text.prompt for text in self.texts}
        source = (prompt for prompt in prompts(seed) if prompt.text not in done)
        count = before
        waiting: dict[str, tuple[TrainingPrompt, tuple[int, ...]]] = {}
        answers: dict[str, tuple[int, ...]] = {}
        with self.path.open("a", encoding="utf-8") as file:
            while (is_open := count < num_tokens and time.monotonic() < deadline) or waiting:
                for prompt in islice(source, BATCH - len(waiting) if is_open else 0):
                    request = _request(engine, prompt)
                    waiting[request.rid] = prompt, request.prompt_ids
                    engine.add(request)
                for output in engine.step():
                    answers[output.rid] = answers.get(output.rid, ()) + output.token_ids
                    if output.finish is not None:
                        text = _text(*waiting.pop(output.rid), answers.pop(output.rid))
                        self.texts.append(text)
                        file.write(json.dumps(asdict(text)) + "\n")
                        file.flush()
                        count += len(text.token_ids)
                progress(f"the target writes: {count} tokens", _share(count, num_tokens, deadline, seconds))


def natural_texts(tokenizer: Tokenizer, path: Path, num_tokens: int) -> list[Text]:
    """A file, or the files of a folder, in pieces of `PIECE` tokens, `num_tokens` in all at most: they are read ten
    times faster than the target writes. No piece is held out: what counts is how its own text is drafted."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    found: list[Text] = []
    for file in files:
        try:
            ids = tokenizer.encode(file.read_text(encoding="utf-8"), add_special_tokens=False)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file} cannot be read as text: {error}") from error
        for start in range(0, len(ids), PIECE):
            if len(found) * PIECE >= num_tokens:
                return found
            index = FIRST_NATURAL + len(found)
            found.append(Text(index, "natural", 0.0, "", (), tuple(ids[start : start + PIECE])))
    return found


def _share(count: int, num_tokens: int, deadline: float, seconds: float) -> float:
    return min(1.0, max(count / num_tokens, 1 - (deadline - time.monotonic()) / max(seconds, 1e-9)))


def _request(engine: Engine, prompt: TrainingPrompt) -> GenerateRequest:
    ids = tuple(engine.tokenizer.encode_chat([{"role": "user", "content": prompt.text}]))
    room = engine.context_length - MAX_ANSWER
    return GenerateRequest(
        f"train-{prompt.index}", ids[-room:], SamplingLaw(prompt.temperature), MAX_ANSWER, PLAN_OFF, prompt.index,
        stop_token_ids=frozenset(engine.model.config.eos_token_ids),
    )  # fmt: skip


def _text(prompt: TrainingPrompt, prompt_ids: tuple[int, ...], answer_ids: tuple[int, ...]) -> Text:
    return Text(prompt.index, prompt.task, prompt.temperature, prompt.text, prompt_ids, answer_ids)
