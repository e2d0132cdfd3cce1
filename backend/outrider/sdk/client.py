"""The client: what to ask; how it travels is the transport's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, Unpack

from outrider.sdk.chat_stream import ChatStream
from outrider.sdk.options import CallOptions, ClientOptions, Options
from outrider.sdk.request import CallFields, ChatFields, Messages, chat_ask, completions_ask
from outrider.sdk.responses import Responses
from outrider.sdk.results import ChatResult, RawResponse
from outrider.sdk.runs import Runs
from outrider.sdk.transport import Ask, Connections, Query, Transport
from outrider.sdk.wire import Model

#: Methods that have the same effect however often they are sent.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class AsyncClient:
    """Talks to an Outrider gateway at `base_url`, which ends in `/v1`; most of it works with any OpenAI server.

    Times are in seconds. Connection errors and statuses 408, 409, 429 and 5xx are tried again up to `max_retries`
    times, as the server asks (`x-should-retry`, `retry-after-ms`, `retry-after` up to 120 s), but a stream never
    after its first event, and what begins a run or a POST of `request` only where it had no effect: without a
    connection, or refused with 429 or 503. A client may be used by many tasks of one event loop at once.

    Answers of a model, whole or streamed, have beside them what came: `head` (status, headers, retries, request
    id) and, at the end, `raw` (the JSON). `request` gives the bytes of any route.

    Calls raise APIError for an error that the server reports (its classes are in `outrider.errors`, `request_id` is
    set), ConnectionFailed or ConnectionTimeout when no answer came, TypeError or ValueError for a wrong argument,
    RuntimeError when the client is closed.

    Example::

        async with AsyncClient("http://127.0.0.1:8000/v1", timeout=60) as client:
            result = await client.chat("Say hello.", max_tokens=16)
            print(result.text)
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8000/v1", **options: Unpack[ClientOptions]) -> None:
        """Connects with the first call. ValueError names a wrong setting."""
        settings = Options(base_url, **options)
        self._use(Transport(settings, Connections(settings)))

    def _use(self, transport: Transport) -> None:
        self._transport = transport
        self.responses = Responses(transport)
        self.runs = Runs(transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, also for clients made by `with_options`; open streams fail. Raises nothing."""
        await self._transport.connections.close()

    def with_options(self, **options: Unpack[CallOptions]) -> AsyncClient:
        """A client with other settings over the same connections. TypeError, ValueError for a wrong one.

        Example::

            quick = client.with_options(timeout=5, max_retries=0)
            result = await quick.chat("Say hello.")
        """
        if unknown := sorted(options.keys() - CallOptions.__annotations__.keys()):
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
        other = object.__new__(type(self))
        settings = replace(self._transport.options, **({"model": self._transport.model} | options))
        other._use(Transport(settings, self._transport.connections))
        return other

    async def models(self) -> list[Model]:
        """The models that the server offers. Raises APIError, ConnectionFailed.

        Example::

            print([model.id for model in await client.models()])
        """
        return await self._transport.models()

    async def chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> ChatResult:
        """One whole answer; text stands for one user message. Raises what the class says.

        Example::

            text = "The water will be turned off on Thursday."
            result = await client.chat(f"Quote this: {text}", temperature=0, task="quote", prediction=text)
            if result.report and result.report.observed:
                print(result.report.effective.drafter, result.report.observed.accept_length)
        """
        return ChatResult.read(await self._transport.fetch(chat_ask(messages, fields, is_stream=False)))

    def chat_stream(
        self, messages: Messages, *, counts_tokens: bool = False, **fields: Unpack[ChatFields]
    ) -> ChatStream:
        """The same, event by event: enter the stream to send the request, then iterate. Raises what the class says.

        With `counts_tokens` every piece of text says how many tokens it has and how many of them were drafts.

        Example::

            async with client.chat_stream("Count to ten.", counts_tokens=True) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        print(event.text, event.num_tokens, event.num_accepted)
        """
        return self._stream(chat_ask(messages, fields, is_stream=True), counts_tokens)

    async def completions(self, prompt: str | Sequence[int], **fields: Unpack[CallFields]) -> ChatResult:
        """One continuation of a text or of token ids, without a chat template. Raises what the class says.

        Example::

            result = await client.completions("def add(a, b):", max_tokens=32, task="code")
        """
        return ChatResult.read(await self._transport.fetch(completions_ask(prompt, fields, is_stream=False)))

    def completions_stream(
        self, prompt: str | Sequence[int], *, counts_tokens: bool = False, **fields: Unpack[CallFields]
    ) -> ChatStream:
        """The same, event by event; as `chat_stream`. Raises what the class says.

        Example::

            async with client.completions_stream("def add(a, b):", max_tokens=32) as stream:
                result = await stream.result()
        """
        return self._stream(completions_ask(prompt, fields, is_stream=True), counts_tokens)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Query | None = None,
    ) -> RawResponse:
        """Any route of the server's address, as it answers; `path` begins with a slash. Raises what the class says.

        Example::

            try:
                print((await client.request("GET", "/outrider/runs")).json())
            except APIError as error:
                print(error.status, error.code, error.request_id, error.retry_after_s)
            except OutriderError as error:
                print(error.message)
        """
        is_once = method.upper() not in _REPEATABLE
        ask = Ask(method, path, body, extra_headers or {}, extra_query or {}, is_of_root=True, is_once=is_once)
        return await self._transport.fetch(ask)

    def _stream(self, ask: Ask, counts_tokens: bool) -> ChatStream:
        if counts_tokens:
            ask.body["stream_options"] |= {"continuous_usage_stats": True}
        return ChatStream(partial(self._transport.opened, ask))
