"""Prompt sets in YAML: read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from outrider.core import Task
from outrider.workloads.files import read_yaml


class Prompt(BaseModel):
    """One prompt as a request would carry it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    task: Task
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_tokens: Annotated[int, Field(ge=1)]
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation."""
        return [{"role": "user", "content": self.text}]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    prompts: Annotated[list[Prompt], Field(min_length=1)]


def load_prompts(path: Path) -> list[Prompt]:
    """ConfigError names the file, the line and the key that is wrong."""
    return read_yaml(path, _File).prompts
