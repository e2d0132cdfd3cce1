"""Prompt sets in YAML: read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.core import Task
from outrider.errors import ConfigError


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
        return [{"role": "user", "content": self.text}]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    prompts: Annotated[list[Prompt], Field(min_length=1)]


def load_prompts(path: Path) -> list[Prompt]:
    """ConfigError names the file and the key that is wrong."""
    try:
        return _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).prompts
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
