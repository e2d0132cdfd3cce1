"""A target of load: any OpenAI-compatible server, with what was found out about it before the load begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from outrider.errors import ConfigError
from outrider.workloads.exchange import Answer, ask, read

#: Longest wait for a connection, in seconds.
_CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered a probe."""

    name: str
    """As results call it: its address, or `embedded`."""
    url: str
    """Up to and with `/v1`."""
    model: str
    session: aiohttp.ClientSession
    is_outrider: bool
    """It takes hints and tells what it did."""
    counts_tokens: bool
    """It says with every event how many tokens there are so far."""

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """Stream a chat completion; `body` is without what is the same for all requests to this target."""
        common = stream_body(self.model, self.counts_tokens)
        return await ask(self.session, f"{self.url}/chat/completions", {**common, **body})


def stream_body(model: str, counts_tokens: bool) -> dict[str, Any]:
    """What every streamed request says, beside its own."""
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if counts_tokens else {})
    return {"model": model, "stream": True, "stream_options": options}


def base_of(url: str) -> str:
    """The address that requests go to, the same for every way to write it. ConfigError when it is no address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--target {url}: expected an http or https address")
    return url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"


@asynccontextmanager
async def opened(
    url: str,
    *,
    name: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
) -> AsyncIterator[Target]:
    """Connect for the block, as many connections as there are streams; an address without a path gets `/v1`.

    ConfigError when the target does not answer.
    """
    base = base_of(url)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        found = model or await _first_model(session, base)
        answer, counts_tokens = await _probe(session, base, found)
        yield Target(name or base, base, found, session, answer.is_outrider, counts_tokens)


async def _first_model(session: aiohttp.ClientSession, base: str) -> str:
    try:
        async with session.get(f"{base}/models") as response:
            response.raise_for_status()
            return str((await response.json(content_type=None))["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{base}: no list of models there ({error}); is it served, or is --model needed?"
        ) from error


async def _probe(session: aiohttp.ClientSession, base: str, model: str) -> tuple[Answer, bool]:
    """A token with running counts, and where these are refused without them."""
    error = ""
    for counts_tokens in (True, False):
        body = {"messages": [{"role": "user", "content": "Say yes."}], "temperature": 0, "max_tokens": 1}
        answer = await ask(session, f"{base}/chat/completions", stream_body(model, counts_tokens) | body)
        reading = read(answer)
        if reading.error is None:
            return answer, any(num is not None for _, num in reading.steps)
        error = reading.error
    raise ConfigError(f"{base}: a request of one token failed: {error}")
