"""The client for programs without an event loop: the asynchronous one, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar, Unpack

from outrider.sdk.client import AsyncClient
from outrider.sdk.options import ClientOptions
from outrider.sdk.request import CallFields, ChatFields, Messages
from outrider.sdk.results import ChatResult, Response, StreamEvent
from outrider.sdk.stream import ChatStream
from outrider.sdk.wire import Model

T = TypeVar("T")


class Client:
    """AsyncClient for programs without an event loop, of one thread. Settings, times in seconds, errors are the same.

    RuntimeError where an event loop runs already: use AsyncClient there.

    Example::

        with Client("http://127.0.0.1:8000/v1") as client:
            print(client.chat("Say hello.", max_tokens=16).text)
            run = client.wait(client.asynchronous.runs.start("Write a long story."))
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8000/v1", **options: Unpack[ClientOptions]) -> None:
        self.asynchronous = AsyncClient(base_url, **options)
        self._runner = asyncio.Runner()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of any coroutine of `asynchronous`, of a run or of an agent. Raises what it raises.

        Example::

            result = client.wait(Agent(client.asynchronous, [add]).run("What is 17 + 4?"))
        """
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Close all connections; does nothing the second time. Raises nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.wait(self.asynchronous.close())
            self._runner.close()

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
    ) -> BlockingStream:
        """As of AsyncClient, with the same errors.

        Example::

            with client.chat_stream("Count to ten.") as stream:
                for event in stream:
                    print(event)
        """
        return BlockingStream(self, self.asynchronous.chat_stream(messages, counts_tokens=counts_tokens, **fields))

    def completions(self, prompt: str | Sequence[int], **fields: Unpack[CallFields]) -> ChatResult:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.completions("def add(a, b):", max_tokens=32).text)
        """
        return self.wait(self.asynchronous.completions(prompt, **fields))

    def responses(self, input: Messages, **fields: Unpack[CallFields]) -> Response:
        """As of AsyncClient, with the same errors.

        Example::

            print(client.responses("Say hello.").text)
        """
        return self.wait(self.asynchronous.responses(input, **fields))


class BlockingStream:
    """A ChatStream, waited for; errors are the same.

    Example::

        with client.chat_stream("Count to ten.") as stream:
            print(stream.result().text)
    """

    def __init__(self, client: Client, stream: ChatStream) -> None:
        self._client = client
        self.asynchronous = stream

    def __enter__(self) -> Self:
        self._client.wait(self.asynchronous.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._client.wait(self.asynchronous.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return self._client.wait(self.asynchronous.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> ChatResult:
        """As of ChatStream, with the same errors.

        Example::

            print(stream.result().usage)
        """
        return self._client.wait(self.asynchronous.result())
