"""Configuration: frozen sections with visible defaults; the only reader of the file and of the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from outrider.errors import ConfigError
from outrider.profiles import DEFAULT_MODEL as DEFAULT_MODEL
from outrider.profiles import AnyLane, Section
from outrider.profiles import LaneSection as LaneSection
from outrider.profiles import SGLangSection as SGLangSection
from outrider.profiles import UrlSection as UrlSection


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


class Config(Section):
    """The whole file."""

    server: ServerSection = ServerSection()
    admission: AdmissionSection = AdmissionSection()
    policy: PolicySection = PolicySection()
    lanes: Annotated[tuple[AnyLane, ...], Field(min_length=1)] = (LaneSection(),)


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
    # After a lane's number pydantic names the member of the union; a key of a file it is not.
    parts = [part for at, part in enumerate(first["loc"]) if not (at == 2 and first["loc"][0] == "lanes")]
    where = ".".join(str(part) for part in parts) or "the file"
    return f"{where}: {first['msg'].removeprefix('Value error, ')} (found {first['input']!r})"


def cache_dir() -> Path:
    """Folder for models: `$OUTRIDER_CACHE`, else the user's cache folder."""
    explicit = os.environ.get("OUTRIDER_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"


def inherited_environment() -> dict[str, str]:
    """The environment that lanes are started with."""
    return dict(os.environ)


def packaged_data(name: str) -> Path:
    """Folder `policies` or `workloads`: inside the wheel, or beside `backend/` in a source tree."""
    inside = Path(__file__).parent / "data" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name
