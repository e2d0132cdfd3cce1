"""Runs in the background: begun, followed from any event on, cancelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack
from urllib.parse import quote

from outrider.sdk.chat_stream import ChatStream
from outrider.sdk.request import ChatFields, Messages, chat_ask
from outrider.sdk.results import ChatResult, parsed
from outrider.sdk.source import RUN_NUMBER, KeptSource, Source
from outrider.sdk.transport import Ask, Transport
from outrider.sdk.wire import Run


class Runs:
    """`client.runs`: answers that the gateway works out while nobody is connected, and keeps for a time.

    Its methods raise what those of AsyncClient raise; RunNotFound, a 404, for a run that is not known or not kept any
    more, InvalidRequest where the gateway keeps no runs. Times in a Run are seconds since the epoch.

    Example::

        run = await client.runs.start("Write a long story.", max_tokens=2000)
        result = await client.runs.result(run.id)
        print(result.text)
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def start(self, messages: Messages, **fields: Unpack[ChatFields]) -> Run:
        """Begin a chat; arguments and errors as of `AsyncClient.chat`.

        It is tried again only where no run can have begun: without a connection, or refused with 429 or 503. After
        another failure there may be a run already; `GET /outrider/runs` lists those that there are.

        Example::

            run = await client.runs.start("Write a long story.", priority="bulk")
        """
        ask = chat_ask(messages, fields, is_stream=True)
        ask.body["outrider"] = ask.body.get("outrider", {}) | {"background": True}
        return parsed(Run, (await self._transport.fetch(replace(ask, is_once=True))).json())

    async def get(self, id: str) -> Run:
        """The run as it is now. Raises what the class says.

        Example::

            shown = await client.runs.get(run.id)
            print(shown.status, shown.num_events)
        """
        return await self._run("GET", id)

    async def cancel(self, id: str) -> Run:
        """End the run, unless it has ended; gives it as it is then. Raises what the class says.

        Example::

            ended = await client.runs.cancel(run.id)
            print(ended.status, ended.error)
        """
        return await self._run("POST", id, "/cancel")

    async def delete(self, id: str) -> None:
        """Cancel the run and forget it. Raises what the class says.

        Example::

            await client.runs.delete(run.id)
        """
        await self._transport.fetch(_ask("DELETE", id))

    def events(self, id: str, *, after: int = 0) -> ChatStream:
        """The run's events behind number `after`, those to come too; a connection that breaks is taken up again.

        A run that failed or was cancelled raises its error at the end, as any stream. `result()` of a stream that
        begins in the middle has the rest of the text only. Raises what the class says.

        Example::

            async with client.runs.events(run.id, after=120) as stream:
                async for event in stream:
                    print(stream.last_event_id, event)
        """

        async def open_behind(after: int, max_retries: int) -> Source | None:
            headers = {"Last-Event-ID": str(after)} if after else {}
            return await self._transport.open_stream(_ask("GET", id, "/events", headers), max_retries)

        return ChatStream(KeptSource(open_behind, after, self._transport.options.max_retries, RUN_NUMBER).open)

    async def result(self, id: str) -> ChatResult:
        """Wait for the run's end; its whole answer. Raises what the class says, and the run's own error.

        Example::

            result = await client.runs.result(run.id)
        """
        async with self.events(id) as stream:
            return await stream.result()

    async def _run(self, method: str, id: str, tail: str = "") -> Run:
        return parsed(Run, (await self._transport.fetch(_ask(method, id, tail))).json())


def _ask(method: str, id: str, tail: str = "", headers: dict[str, Any] | None = None) -> Ask:
    return Ask(method, f"/outrider/runs/{quote(id, safe='')}{tail}", None, headers or {}, is_of_root=True)
