"""An event loop of one's own, in which the asynchronous client is waited for, and its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from typing import Any, Generic, Self, TypeVar

from outrider.sdk.stream import EventT, ResultT, Stream

T = TypeVar("T")


class Waiter:
    """Runs coroutines of one client, and of those made from it; used by one thread at a time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._is_closed = False

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives. RuntimeError when closed, or inside an event loop."""
        try:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            return self._runner.run(coroutine)
        finally:
            coroutine.close()  # one that was not begun would warn; another is over

    @contextmanager
    def iterate(self, stream: AbstractAsyncContextManager[AsyncIterator[T]]) -> Iterator[Iterator[T]]:
        """Entered and left with the block, whose errors it is told; each event is waited for when it is asked for."""
        events = self.wait(stream.__aenter__())
        with ExitStack() as stack:
            stack.push(lambda *error: self.wait(stream.__aexit__(*error)))
            yield self._each(events)

    def _each(self, events: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(events)

        while True:
            try:
                event = self.wait(following())
            except StopAsyncIteration:
                return
            yield event

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Wait for `last`, then end the loop; does nothing the second time."""
        if self._is_closed:
            last.close()
            return
        self.wait(last)
        self._is_closed = True
        self._runner.close()


class BlockingStream(Generic[EventT, ResultT]):
    """A ChatStream or a ResponseStream, waited for; errors are the same.

    Example::

        with client.chat_stream("Count to ten.") as stream:
            for event in stream:
                print(event)
            print(stream.result().text)
    """

    def __init__(self, waiter: Waiter, stream: Stream[EventT, ResultT]) -> None:
        self._waiter = waiter
        self.asynchronous = stream

    def __enter__(self) -> Self:
        self._waiter.wait(self.asynchronous.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._waiter.wait(self.asynchronous.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventT:
        try:
            return self._waiter.wait(self.asynchronous.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def last_event_id(self) -> int | None:
        """As of ChatStream."""
        return self.asynchronous.last_event_id

    def result(self) -> ResultT:
        """As of ChatStream, with the same errors.

        Example::

            print(stream.result().head.headers)
        """
        return self._waiter.wait(self.asynchronous.result())
