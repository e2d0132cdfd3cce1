"""The client for programs without an event loop: the asynchronous one, waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Self, TypeVar, Unpack

from outrider.sdk.client import AsyncClient
from outrider.sdk.options import CallOptions, ClientOptions
from outrider.sdk.request import CallFields, ChatFields, Messages, ResponseFields
from outrider.sdk.responses import Responses
from outrider.sdk.results import ChatResult, RawResponse, Response, StreamEvent
from outrider.sdk.runs import Runs
from outrider.sdk.transport import Query
from outrider.sdk.waiting import BlockingStream, Waiter
from outrider.sdk.wire import InputItem, Model, ResponseEvent, Run

T = TypeVar("T")
BlockingChat = BlockingStream[StreamEvent, ChatResult]
BlockingEvents = BlockingStream[ResponseEvent, Response]


class Client:
    """AsyncClient for programs without an event loop, of one thread. Settings, times in seconds, errors are the same.

    RuntimeError where an event loop runs already: use AsyncClient there.

    Example::

        with Client("http://127.0.0.1:8000/v1") as client:
            print(client.chat("Say hello.", max_tokens=16).text)
            run = client.runs.start("Write a long story.")
            print(client.runs.result(run.id).text)
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8000/v1", **options: Unpack[ClientOptions]) -> None:
        self._use(AsyncClient(base_url, **options), Waiter())

    def _use(self, asynchronous: AsyncClient, waiter: Waiter) -> None:
        self.asynchronous = asynchronous
        self._waiter = waiter
        self.responses = BlockingResponses(waiter, asynchronous.responses)
        self.runs = BlockingRuns(waiter, asynchronous.runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of any coroutine of `asynchronous`, or of an agent. Raises what it raises.

        RuntimeError when the client is closed.

        Example::

            result = client.wait(Agent(client.asynchronous, [add]).run("What is 17 + 4?"))
        """
        return self._waiter.wait(coroutine)

    def iterate(self, stream: AbstractAsyncContextManager[AsyncIterator[T]]) -> AbstractContextManager[Iterator[T]]:
        """The events of an agent's stream, for a block; left early, the run is cancelled. Raises what it raises.

        The loop stands still while the block holds an event, though tools' time runs on: a tool that is at work then
        may be told as late. RuntimeError when the client is closed.

        Example::

            agent = Agent(client.asynchronous, [add])
            with client.iterate(agent.stream("What is 17 + 4?")) as events:
                for event in events:
                    print(event)
        """
        return self._waiter.iterate(stream)

    def close(self) -> None:
        """Close all connections, also of clients made by `with_options`; nothing the second time. Raises nothing."""
        self._waiter.close(self.asynchronous.close())

    def with_options(self, **options: Unpack[CallOptions]) -> Client:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.with_options(timeout=5, max_retries=0).chat("Say hello.").text)
        """
        other = object.__new__(type(self))
        other._use(self.asynchronous.with_options(**options), self._waiter)
        return other

    def models(self) -> list[Model]:
        """As of AsyncClient, with the same errors.

        Example::

            print([model.id for model in client.models()])
        """
        return self.wait(self.asynchronous.models())

    def chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> ChatResult:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.chat("Say hello.").text)
        """
        return self.wait(self.asynchronous.chat(messages, **fields))

    def chat_stream(
        self, messages: Messages, *, counts_tokens: bool = False, **fields: Unpack[ChatFields]
    ) -> BlockingChat:
        """As of AsyncClient, with the same errors.

        Example::

            with client.chat_stream("Count to ten.") as stream:
                for event in stream:
                    print(event)
        """
        stream = self.asynchronous.chat_stream(messages, counts_tokens=counts_tokens, **fields)
        return BlockingStream(self._waiter, stream)

    def completions(self, prompt: str | Sequence[int], **fields: Unpack[CallFields]) -> ChatResult:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.completions("def add(a, b):", max_tokens=32).text)
        """
        return self.wait(self.asynchronous.completions(prompt, **fields))

    def completions_stream(
        self, prompt: str | Sequence[int], *, counts_tokens: bool = False, **fields: Unpack[CallFields]
    ) -> BlockingChat:
        """As of AsyncClient, with the same errors.

        Example::

            with client.completions_stream("def add(a, b):", max_tokens=32) as stream:
                print(stream.result().text)
        """
        stream = self.asynchronous.completions_stream(prompt, counts_tokens=counts_tokens, **fields)
        return BlockingStream(self._waiter, stream)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Query | None = None,
    ) -> RawResponse:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.request("GET", "/outrider/runs").json())
        """
        return self.wait(
            self.asynchronous.request(method, path, body, extra_headers=extra_headers, extra_query=extra_query)
        )


class BlockingResponses:
    """`client.responses` of a Client: Responses, waited for; errors are the same.

    Example::

        response = client.responses("Say hello.", store=True)
        print(client.responses.get(response.id).text)
    """

    def __init__(self, waiter: Waiter, asynchronous: Responses) -> None:
        self._waiter = waiter
        self._asynchronous = asynchronous

    def __call__(self, input: Messages, **fields: Unpack[ResponseFields]) -> Response:
        """As of Responses, with the same errors."""
        return self._waiter.wait(self._asynchronous(input, **fields))

    def stream(self, input: Messages, **fields: Unpack[ResponseFields]) -> BlockingEvents:
        """As of Responses, with the same errors."""
        return BlockingStream(self._waiter, self._asynchronous.stream(input, **fields))

    def get(self, id: str) -> Response:
        """As of Responses, with the same errors."""
        return self._waiter.wait(self._asynchronous.get(id))

    def events(self, id: str, *, after: int = -1) -> BlockingEvents:
        """As of Responses, with the same errors."""
        return BlockingStream(self._waiter, self._asynchronous.events(id, after=after))

    def input_items(self, id: str, *, order: Literal["asc", "desc"] = "asc") -> list[InputItem]:
        """As of Responses, with the same errors."""
        return self._waiter.wait(self._asynchronous.input_items(id, order=order))

    def cancel(self, id: str) -> Response:
        """As of Responses, with the same errors."""
        return self._waiter.wait(self._asynchronous.cancel(id))

    def delete(self, id: str) -> None:
        """As of Responses, with the same errors."""
        self._waiter.wait(self._asynchronous.delete(id))


class BlockingRuns:
    """`client.runs` of a Client: Runs, waited for; errors are the same.

    Example::

        run = client.runs.start("Write a long story.")
        with client.runs.events(run.id) as stream:
            for event in stream:
                print(stream.last_event_id, event)
    """

    def __init__(self, waiter: Waiter, asynchronous: Runs) -> None:
        self._waiter = waiter
        self._asynchronous = asynchronous

    def start(self, messages: Messages, **fields: Unpack[ChatFields]) -> Run:
        """As of Runs, with the same errors."""
        return self._waiter.wait(self._asynchronous.start(messages, **fields))

    def get(self, id: str) -> Run:
        """As of Runs, with the same errors."""
        return self._waiter.wait(self._asynchronous.get(id))

    def events(self, id: str, *, after: int = 0) -> BlockingChat:
        """As of Runs, with the same errors."""
        return BlockingStream(self._waiter, self._asynchronous.events(id, after=after))

    def result(self, id: str) -> ChatResult:
        """As of Runs, with the same errors."""
        return self._waiter.wait(self._asynchronous.result(id))

    def cancel(self, id: str) -> Run:
        """As of Runs, with the same errors."""
        return self._waiter.wait(self._asynchronous.cancel(id))

    def delete(self, id: str) -> None:
        """As of Runs, with the same errors."""
        self._waiter.wait(self._asynchronous.delete(id))
