"""Configuration: frozen sections with visible defaults; the only reader of the file and of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"


class Section(BaseModel):
    """Base of all sections: unknown keys stop the start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSection(Section):
    """The gateway's HTTP edge."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free port."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    shutdown_grace_s: Annotated[float, Field(ge=0)] = 10.0
    """How long running requests may finish after the stop signal."""


class AdmissionSection(Section):
    """Order and limits before a request is sent to a lane."""

    max_in_flight: Annotated[int, Field(ge=1)] = 256
    """Requests sent to lanes at one time."""
    max_queued: Annotated[int, Field(ge=0)] = 1024
    queue_timeout_s: Annotated[float, Field(gt=0)] = 60.0


class PolicySection(Section):
    """Where policies come from."""

    directory: Path | None = None
    """Folder of `*.yaml`; None means the policies that ship with the package."""
    default: str = "default"
    """Workload that decides when no other matches."""
    learning: Path | None = None
    """SQLite file of what is learnt, kept over restarts, and of the last requests; None: no file."""


class LaneSection(Section):
    """One lane: an embedded engine that the gateway launches."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = "embedded"
    kind: Literal["embedded"] = "embedded"
    model: str = DEFAULT_MODEL
    """Name of a pulled model, or the path of a local Hugging Face folder."""
    draft_model: str | None = None
    """A smaller model with the same tokenizer, named like `model`; None means that `draft_model` is not offered."""
    layer_skip: Path | None = None
    """Layer set of the drafter `layer_skip`; None takes a default set."""
    served_model_name: str | None = None
    """Name in `/v1/models`; None takes the model's own."""
    max_running: Annotated[int, Field(ge=1, le=256)] = 16
    max_total_tokens: Annotated[int, Field(ge=256)] = 32768
    """Size of the key/value cache, in tokens over all running requests."""
    context_length: Annotated[int, Field(ge=16)] | None = None
    """None takes the model's own limit."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of the tensor library; None leaves its own choice."""
    ready_timeout_s: Annotated[float, Field(gt=0)] = 180.0


class Config(Section):
    """The whole file."""

    server: ServerSection = ServerSection()
    admission: AdmissionSection = AdmissionSection()
    policy: PolicySection = PolicySection()
    lanes: Annotated[tuple[LaneSection, ...], Field(min_length=1)] = (LaneSection(),)


def load_config(path: Path | None) -> Config:
    """Read a YAML file (None: the defaults). ConfigError names the file and the key."""
    if path is None:
        return Config()
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).replace(chr(10), ' ')}") from error
    try:
        config = Config.model_validate({} if data is None else data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error)}") from error
    names = [lane.name for lane in config.lanes]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: lanes: two lanes have the same name")
    return config


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    return f"{where}: {first['msg']} (found {first['input']!r})"


def cache_dir() -> Path:
    """Folder for models: `$OUTRIDER_CACHE`, else the user's cache folder."""
    explicit = os.environ.get("OUTRIDER_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"


def environment() -> Mapping[str, str]:
    """For what refers to it by name, as policy files do."""
    return os.environ


def packaged_data(name: str) -> Path:
    """Folder `policies` or `workloads`: inside the wheel, or beside `backend/` in a source tree."""
    inside = Path(__file__).parent / "data" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name
