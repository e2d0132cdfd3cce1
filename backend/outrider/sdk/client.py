"""The client: what to ask; how it travels is the transport's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from pydantic import BaseModel, ValidationError

from outrider.core import Hints
from outrider.errors import ConnectionFailed, ModelNotFound
from outrider.sdk.request import ChatRequest, HintFields, merged_hints
from outrider.sdk.results import Answer, ChatResult, Model, ModelList
from outrider.sdk.stream import ChatStream
from outrider.sdk.transport import EventSource, Options, Transport

W = TypeVar("W", bound=BaseModel)


class AsyncClient:
    """Talks to an Outrider gateway: `async with AsyncClient() as client: result = await client.chat("Hello")`.

    `base_url` ends in `/v1`. `timeout` (seconds) is for a whole answer, in streams for the wait between events;
    `connect_timeout` is for the connection alone. Connection errors and statuses 408, 409, 429 and 5xx are tried
    again up to `max_retries` times, as the server asks (`x-should-retry`, `retry-after-ms`, `retry-after`), but a
    stream never after its first event. `model` is the default of the calls; None takes the first that the server
    lists.

    Calls raise APIError for an error that the server reports (its classes are in `outrider.errors`, `request_id` is
    set), ConnectionFailed or ConnectionTimeout when no answer came, TypeError or ValueError for a wrong argument.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000/v1",
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 5.0,
        max_retries: int = 2,
        model: str | None = None,
    ) -> None:
        self._transport = Transport(Options(base_url, api_key, timeout, connect_timeout, max_retries))
        self._model = model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; streams that are still open fail."""
        await self._transport.close()

    async def models(self) -> list[Model]:
        """The models that the server offers."""
        answer = await self._transport.fetch("GET", "/models")
        return _parsed(ModelList, answer.value).data

    async def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        hints: Hints | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **fields: Unpack[HintFields],
    ) -> ChatResult:
        """One whole answer. Text stands for one user message.

        Hints are given as an object or by keyword (`task`, `drafter`, `k`, `off`, `verbose`); a wrong one is a
        TypeError or ValueError that names it. `extra_body` holds any other field of the protocol.
        """
        request = ChatRequest(messages, merged_hints(hints, fields), temperature, max_tokens, extra_body)
        body = request.body(is_stream=False)
        body["model"] = await self._model_for(model)
        answer = await self._transport.fetch("POST", "/chat/completions", body)
        parsed = _parsed(Answer, answer.value)
        choice = parsed.choices[0]
        return ChatResult(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason,
            usage=parsed.usage,
            report=parsed.outrider,
            request_id=answer.request_id,
            raw=answer.value,
        )

    def chat_stream(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        hints: Hints | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **fields: Unpack[HintFields],
    ) -> ChatStream:
        """The same, event by event: enter the stream to send the request, then iterate. Arguments as for `chat`."""
        request = ChatRequest(messages, merged_hints(hints, fields), temperature, max_tokens, extra_body)
        body = request.body(is_stream=True)

        async def open_source() -> EventSource:
            body["model"] = await self._model_for(model)
            return await self._transport.open_stream("/chat/completions", body)

        return ChatStream(open_source)

    async def _model_for(self, model: str | None) -> str:
        if model is not None:
            return model
        if self._model is None:
            models = await self.models()
            if not models:
                raise ModelNotFound("the server lists no models")
            self._model = models[0].id
        return self._model


def _parsed(kind: type[W], value: object) -> W:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ConnectionFailed(f"the server's answer has an unexpected form: {error}") from error
