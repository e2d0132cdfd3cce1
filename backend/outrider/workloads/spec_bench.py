"""Questions of Spec-Bench (arXiv 2401.07851): one JSON object a line, read, checked and sampled by category."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import ConfigError
from outrider.workloads.files import read_lines


class Question(BaseModel):
    """One line of the file; keys that are not needed here, as reference answers, are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    question_id: int
    category: Annotated[str, Field(min_length=1)]
    turns: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """What the user says, turn by turn."""


def load_questions(path: Path) -> list[Question]:
    """ConfigError names the file, the line and what is wrong with it; empty lines are passed over."""
    questions = read_lines(path, Question)
    if not questions:
        raise ConfigError(f"{path}: holds no questions")
    return questions


def sample(questions: Sequence[Question], seed: int) -> list[Question]:
    """All questions in an order of which every beginning is a fair sample: one of each category, then a second, ...

    Within a category the seed decides; categories stay in the order of the file.
    """
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    for category, members in by_category.items():
        random.Random(f"{seed} {category}").shuffle(members)
    dealt = chain.from_iterable(zip_longest(*by_category.values()))
    return [question for question in dealt if question is not None]
