"""OpenAI's responses: made, streamed, and those that the gateway keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, Unpack
from urllib.parse import quote

from outrider.errors import ConnectionFailed, from_wire
from outrider.sdk.request import RESPONSES, Messages, ResponseFields, responses_ask
from outrider.sdk.results import Response, parse_json, parsed
from outrider.sdk.source import RESPONSE_NUMBER, KeptSource, Source
from outrider.sdk.stream import Stream
from outrider.sdk.transport import Ask, Query, Transport
from outrider.sdk.wire import InputItem, InputPage, ResponseEvent
from outrider.sse import DONE

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_PAGE = 100


class ResponseStream(Stream[ResponseEvent, Response]):
    """The events of one response; `text` joins those of its text, `result()` waits for the whole.

    Enter, leave and iterate it as a ChatStream, with the same errors; a response that failed raises its error.

    Example::

        async with client.responses.stream("Count to ten.") as stream:
            async for event in stream:
                print(event.type, event.delta)
            print((await stream.result()).usage)
    """

    def __init__(self, open_source: Callable[[], Awaitable[Source]]) -> None:
        super().__init__(open_source)
        self._raw: dict[str, Any] = {}

    @property
    def id(self) -> str | None:
        """Of the response; None before its first event was read."""
        return self._raw.get("id")

    def _result(self) -> Response:
        return Response.read(self._raw, self.head)

    def _take(self, data: bytes) -> bool:
        if data == DONE and not self._raw:  # of one that is kept, nothing is behind what was asked for
            return True
        wire = parse_json(data)
        if not isinstance(wire, dict):
            raise ConnectionFailed("the server sent an event that is no object")
        kind = wire.get("type")
        if isinstance(wire.get("response"), dict):
            # The report stands beside the response in the last event, and inside a whole one.
            self._raw = wire["response"] | {key: wire[key] for key in ("outrider",) if key in wire}
        if wire.get("error") is not None or kind in ("error", "response.failed"):
            error = from_wire(None, wire.get("error") or self._raw.get("error") or wire)
            error.request_id = self.request_id
            raise error
        event = parsed(ResponseEvent, wire)
        if event.type == "response.output_text.delta":
            self._text.append(str(event.delta))
        self._pending.append(event)
        return event.type in _LAST


class Responses:
    """`client.responses`: called, it asks OpenAI's responses route; its methods are for responses that are kept.

    A gateway keeps responses where it has a store. Calls and methods raise what those of AsyncClient raise;
    RunNotFound, a 404, for a response that is not known or not kept any more. With `background` a request is sent
    once only: after a ConnectionFailed there may be a response already.

    Example::

        response = await client.responses("Say hello.", instructions="Answer in French.")
        print(response.text)
        response = await client.responses("And in German?", previous_response_id=response.id)
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def __call__(self, input: Messages, **fields: Unpack[ResponseFields]) -> Response:
        """One answer; text stands for one user message. Raises what the class says."""
        return await self._response(responses_ask(input, fields, is_stream=False))

    def stream(self, input: Messages, **fields: Unpack[ResponseFields]) -> ResponseStream:
        """The same, event by event: enter the stream to send the request, then iterate. Raises what the class says.

        Example::

            async with client.responses.stream("Count to ten.") as stream:
                response = await stream.result()
        """
        return ResponseStream(partial(self._transport.opened, responses_ask(input, fields, is_stream=True)))

    async def get(self, id: str) -> Response:
        """The response as it is now. Raises what the class says.

        Example::

            response = await client.responses.get("resp_1")
            print(response.status, response.error)
        """
        return await self._response(_ask("GET", id))

    def events(self, id: str, *, after: int = -1) -> ResponseStream:
        """Events of a response that was streamed with `background`: those behind the one with `sequence_number`
        `after`, those to come too; a connection that breaks is taken up again. Raises what the class says.

        Example::

            async with client.responses.events("resp_1", after=120) as stream:
                async for event in stream:
                    print(stream.last_event_id, event.type)
        """

        async def open_behind(after: int, max_retries: int) -> Source | None:
            query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
            return await self._transport.open_stream(_ask("GET", id, query=query), max_retries)

        max_retries = self._transport.options.max_retries
        return ResponseStream(KeptSource(open_behind, after, max_retries, RESPONSE_NUMBER).open)

    async def input_items(self, id: str, *, order: Literal["asc", "desc"] = "asc") -> list[InputItem]:
        """All that the response was asked, the first item first or last. Raises what the class says.

        Example::

            items = await client.responses.input_items("resp_1")
        """
        items: list[InputItem] = []
        has_more = True
        while has_more:
            query = {"limit": _PAGE, "order": order} | ({"after": items[-1].id} if items else {})
            answer = await self._transport.fetch(_ask("GET", id, "/input_items", query))
            page = parsed(InputPage, answer.json())
            known = {item.id for item in items}
            new = [item for item in page.data if item.id not in known]
            items += new
            has_more = page.has_more and bool(new)
        return items

    async def cancel(self, id: str) -> Response:
        """End a response in the background; gives it as it is then. Raises what the class says.

        Example::

            response = await client.responses.cancel("resp_1")
        """
        return await self._response(_ask("POST", id, "/cancel"))

    async def delete(self, id: str) -> None:
        """Cancel the response and forget it. Raises what the class says.

        Example::

            await client.responses.delete("resp_1")
        """
        await self._transport.fetch(_ask("DELETE", id))

    async def _response(self, ask: Ask) -> Response:
        answer = await self._transport.fetch(ask)
        return Response.read(answer.json(), answer.head)


def _ask(method: str, id: str, tail: str = "", query: Query | None = None) -> Ask:
    return Ask(method, f"{RESPONSES}/{quote(id, safe='')}{tail}", query=query or {})
