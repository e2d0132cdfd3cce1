"""Settings of a client: where it connects, how long it waits for what, how often it tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from yarl import URL


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the client waits, in seconds, by what it waits for. ValueError names one that is not positive.

    Example::

        patient = AsyncClient(timeout=Timeouts(connect_s=2, answer_s=900, event_s=30))
    """

    connect_s: float = 5.0
    """For a connection to the server."""
    pool_s: float = 600.0
    """For a free connection, while all that `ConnectionLimits` allow are in use."""
    answer_s: float = 600.0
    """For a whole answer, in each attempt."""
    first_event_s: float = 600.0
    """For the first event of a stream, in each attempt."""
    event_s: float = 600.0
    """For every further event of a stream; a stream as a whole may last as long as it likes."""

    def __post_init__(self) -> None:
        for name in ("connect_s", "pool_s", "answer_s", "first_event_s", "event_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"timeout: {name} must be a positive number of seconds, not {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a client keeps, all its streams together. ValueError names a limit that is not positive.

    Example::

        modest = AsyncClient(limits=ConnectionLimits(max_connections=8))
    """

    max_connections: int = 1000
    """Open at once; further calls wait, at most `Timeouts.pool_s`."""
    keep_alive_s: float = 15.0
    """Seconds that an unused connection is kept."""

    def __post_init__(self) -> None:
        for name in ("max_connections", "keep_alive_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"limits: {name} must be positive, not {getattr(self, name)!r}")


class CallOptions(TypedDict, total=False):
    """What a client may be given anew by `with_options`.

    Example::

        options: CallOptions = {"timeout": 30, "max_retries": 0}
        hurried = client.with_options(**options)
    """

    api_key: str | None
    """Sent as a bearer token; None sends none."""
    timeout: float | Timeouts
    """One number of seconds stands for a whole answer, the first event and every further one. 600 by default."""
    max_retries: int
    """Attempts after the first; 2 by default."""
    model: str | None
    """Model of calls that name none; None takes the first that the server lists."""
    headers: Mapping[str, str]
    """Sent with every request."""
    proxy: str | None
    """Address of an HTTP proxy."""


class ClientOptions(CallOptions, total=False):
    """All settings of a client but its address.

    Example::

        options: ClientOptions = {"limits": ConnectionLimits(max_connections=8), "trust_env": True}
        client = AsyncClient("http://127.0.0.1:8000/v1", **options)
    """

    limits: ConnectionLimits
    trust_env: bool
    """Take proxies from HTTP_PROXY, HTTPS_PROXY and NO_PROXY where `proxy` names none."""


@dataclass(frozen=True, slots=True)
class Options:
    """All settings of a client, with their defaults."""

    base_url: str
    api_key: str | None = None
    timeout: float | Timeouts = 600.0
    max_retries: int = 2
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    limits: ConnectionLimits = ConnectionLimits()
    trust_env: bool = False

    def __post_init__(self) -> None:
        for name, address in (("base_url", self.base_url), ("proxy", self.proxy)):
            url = None if address is None else URL(address)
            if url is not None and (url.scheme not in ("http", "https") or not url.host):
                raise ValueError(f"{name} must be an http or https address, not {address!r}")
        if not isinstance(self.timeout, Timeouts) and not self.timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {self.timeout!r}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {self.max_retries!r}")

    @property
    def timeouts(self) -> Timeouts:
        """The limits by what is waited for; one number stands for all."""
        if isinstance(self.timeout, Timeouts):
            return self.timeout
        return Timeouts(answer_s=self.timeout, first_event_s=self.timeout, event_s=self.timeout)

    @property
    def root(self) -> str:
        """The server's own address, where the routes outside of `/v1` are."""
        return self.base_url.rstrip("/").removesuffix("/v1")
