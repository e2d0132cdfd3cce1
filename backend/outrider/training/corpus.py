"""Texts to train on: prompts with the target's own answers, kept on disk and continued after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError
from outrider.training.prompts import is_held_out

Progress = Callable[[str, float], None]
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
        """Whether figures are taken on it and nothing is learnt from it."""
        return not self.is_natural and is_held_out(self.prompt)

    @property
    def is_natural(self) -> bool:
        """Whether people wrote it, and not the target."""
        return self.index >= FIRST_NATURAL

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt_ids + self.answer_ids


class Corpus:
    """A file of texts, one JSON object a line, in the order in which they were finished."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "texts.jsonl"
        self.texts = list(self._read())
        self.num_tokens = sum(len(text.token_ids) for text in self.texts)

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

    def append(self, text: Text) -> None:
        """Keep a text, in memory and at the end of the file."""
        self.texts.append(text)
        self.num_tokens += len(text.token_ids)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(text)) + "\n")


def natural_texts(tokenizer: Tokenizer, path: Path, num_tokens: int) -> list[Text]:
    """A file, or the files of a folder, in pieces of `PIECE` tokens, `num_tokens` in all at most: they are read
    faster than the target writes. No piece is held out: what counts is how its own text is drafted."""
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
