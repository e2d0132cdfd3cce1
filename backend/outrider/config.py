"""Configuration: frozen sections with visible defaults; the only reader of the file and of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from outrider.core import Priority
from outrider.errors import ConfigError
from outrider.profiles import DEFAULT_MODEL as DEFAULT_MODEL
from outrider.profiles import TOKEN_MAP as TOKEN_MAP
from outrider.profiles import AnyLane, Section
from outrider.profiles import LaneSection as LaneSection
from outrider.profiles import SGLangSection as SGLangSection
from outrider.profiles import UrlSection as UrlSection

_T = TypeVar("_T")

_SHARES: Mapping[Priority, float] = {"interactive": 8, "default": 4, "bulk": 1}


class ServerSection(Section):
    """The gateway's HTTP edge."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is all of the machine's."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free port."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Larger requests are refused with 413."""
    max_header_bytes: Annotated[int, Field(ge=256)] = 8190
    """Of one header, its name included, and of the request line."""
    idle_timeout_s: Annotated[float, Field(gt=0)] = 75.0
    """How long a connection may be there without a request, and the head of one may take to arrive. Longer than
    a balancer in front keeps idle ones, which is often a minute."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """How long a body may take to arrive."""
    shutdown_grace_s: Annotated[float, Field(ge=0)] = 10.0
    """How long running requests may finish after the stop signal."""
    tls_certificate: Path | None = None
    """PEM file with the certificate chain; with it the gateway serves HTTPS."""
    tls_key: Path | None = None
    """PEM file with the private key; None when it stands in the certificate's file."""


class AdmissionSection(Section):
    """Order and limits before a request is sent to a lane; the lanes of each model have places and a queue apart."""

    max_in_flight: Annotated[int, Field(ge=1)] = 256
    """Requests at the lanes of one model at one time."""
    max_queued: Annotated[int, Field(ge=0)] = 1024
    """Requests that wait for the lanes of one model; a more urgent one takes the place of a less urgent one, others
    are refused."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest wait for a place."""
    request_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Deadline of requests that bring none."""
    max_retries: Annotated[int, Field(ge=0, le=5)] = 1
    """How often a request is sent again, when its lane failed or was full and nothing of the answer was delivered."""
    shares: Mapping[Priority, Annotated[float, Field(gt=0)]] = _SHARES
    """Places that waiting requests of each priority get, in proportion; one that is left out has 1."""


class KeySection(Section):
    """One API key and what it may do. Limits are off when null."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Stands in logs and metrics; the key itself never does."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hexadecimal SHA-256 of the key."""
    tenant: str | None = None
    """Keys of one tenant share its turn in the queue; None takes the key's name."""
    priority: Priority = "interactive"
    """The most urgent one that its requests may ask for."""
    requests_per_min: Annotated[int, Field(ge=1)] | None = None
    """None is no limit."""
    tokens_per_min: Annotated[int, Field(ge=1)] | None = None
    """Prompt and completion; the prompt is estimated, and charged with the completion when a request ends."""
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    """Requests of this key at one time, waiting ones too; None is no limit."""
    is_admin: bool = False
    """May use the routes under `/outrider/`."""
    allowed_fields: tuple[str, ...] = ()
    """Request fields that are refused by default: SGLang's internal ones."""


class AuthSection(Section):
    """Who may ask. Without any key everybody may, and nobody is an administrator."""

    keys: tuple[KeySection, ...] = ()
    """Without any, and without `keys_file`, everybody may ask."""
    keys_file: Path | None = None
    """YAML file with a list like `keys`; read again on SIGHUP."""


#: Stands for the folder of policies that ship with the package.
SHIPPED = Path("shipped")


class PolicySection(Section):
    """Where policies come from."""

    directories: Annotated[tuple[Path, ...], Field(min_length=1)] = (SHIPPED,)
    """Folders of `*.yaml`; a workload of a later one takes the place of that of an earlier one. `shipped` stands for
    the policies that ship with the package."""
    default: str = "default"
    """Workload that decides when no other matches."""
    learning: Path | None = None
    """SQLite file of what is learnt, kept over restarts, and of the last requests; None: no file."""


class RunsSection(Section):
    """Durable runs and stored responses."""

    url: str | None = None
    """SQLAlchemy URL of an asynchronous driver, such as `sqlite+aiosqlite:////var/lib/outrider/runs.sqlite` or
    `postgresql+asyncpg://...`; None: nothing is kept, but that `outrider serve` takes a file in the cache folder."""
    keep_s: Annotated[float, Field(gt=0)] = 24 * 3600.0
    """How long a run is kept after its end, and how long it may wait for its beginning."""
    max_open: Annotated[int, Field(ge=1)] = 1024
    """Runs of this process that have not ended; those that wait for a lane again are among them."""
    lease_s: Annotated[float, Field(gt=0)] = 10.0
    """A process that says nothing for so long has lost its runs to the others."""
    timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """How long the store may take for one operation, waiting for a lock included."""


class TracingSection(Section):
    """Traces of requests for an OpenTelemetry collector; needs the packages of `outrider[tracing]`."""

    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Where OTLP over HTTP is taken, such as http://127.0.0.1:4318/v1/traces; None: nothing is traced."""
    sampled: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced, among those whose caller has not decided it."""


class Config(Section):
    """The whole file."""

    server: ServerSection = ServerSection()
    admission: AdmissionSection = AdmissionSection()
    auth: AuthSection = AuthSection()
    policy: PolicySection = PolicySection()
    runs: RunsSection = RunsSection()
    tracing: TracingSection = TracingSection()
    lanes: Annotated[tuple[AnyLane, ...], Field(min_length=1)] = (LaneSection(),)


def load_config(path: Path | None) -> Config:
    """Read a YAML file (None: the defaults). ConfigError names the file and the key."""
    if path is None:
        return Config()
    config = _read(path, Config)
    names = [lane.name for lane in config.lanes]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: lanes: two lanes have the same name")
    return config


def load_keys(auth: AuthSection) -> tuple[KeySection, ...]:
    """The keys of the section, of its file, and those in `$OUTRIDER_API_KEY` and `$OUTRIDER_ADMIN_KEY`."""
    keys = list(auth.keys)
    if auth.keys_file is not None:
        keys += _read(auth.keys_file, tuple[KeySection, ...])
    for name, variable in (("environment", "OUTRIDER_API_KEY"), ("admin", "OUTRIDER_ADMIN_KEY")):
        if secret := os.environ.get(variable):
            digest = sha256(secret.encode()).hexdigest()
            keys.append(KeySection(name=name, sha256=digest, is_admin=name == "admin"))
    names = [key.name for key in keys]
    if len(set(names)) != len(names):
        raise ConfigError("auth: two API keys have the same name")
    return tuple(keys)


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).replace(chr(10), ' ')}") from error
    try:
        return TypeAdapter(kind).validate_python({} if data is None else data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error, kind)}") from error


def _first_problem(error: ValidationError, kind: object) -> str:
    """Of keys the value is not shown: it may be one."""
    first = error.errors()[0]
    # After a lane's number pydantic names the member of the union; a key of a file it is not.
    parts = [part for at, part in enumerate(first["loc"]) if not (at == 2 and first["loc"][0] == "lanes")]
    where = ".".join(str(part) for part in parts) or "the file"
    is_secret = kind is not Config or first["loc"][:1] == ("auth",)
    found = "" if is_secret else f" (found {first['input']!r})"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}{found}"


def cache_dir() -> Path:
    """Folder for models: `$OUTRIDER_CACHE`, else the user's cache folder."""
    explicit = os.environ.get("OUTRIDER_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"


def inherited_environment() -> dict[str, str]:
    """The environment: lanes are started with it, and policy files may refer to it."""
    return dict(os.environ)


def policy_folders(directories: Sequence[Path]) -> list[Path]:
    """Those that a configuration or a command names."""
    return [packaged_data("policies") if folder == SHIPPED else folder for folder in directories]


def packaged_data(name: str) -> Path:
    """Folder `policies`, `workloads` or `heads`: inside the wheel, or beside `backend/` in a source tree."""
    inside = Path(__file__).parent / "data" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name
