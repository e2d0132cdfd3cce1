"""Two processes ask each other over a socket, one JSON object a line. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson

logger = logging.getLogger(__name__)

#: A line at most: pages of metrics stand in some.
_MAX_LINE_BYTES = 64 * 1024 * 1024

#: What the other side asks and with what; gives the answer, which JSON can say.
Answer = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class Channel:
    """One end. Nothing is read or answered before `run` runs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """On a stream socket, which is the channel's from here on."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE_BYTES))

    async def first_line(self) -> bytes:
        """What the other side said before anything is asked; empty when it has gone."""
        return await self._reader.readline()

    def say(self, line: bytes) -> None:
        """For the other side's `first_line`."""
        self._writer.write(line + b"\n")

    async def run(self, answer: Answer) -> None:
        """Take in what comes until the other side has gone; who waits for an answer then gets ConnectionError."""
        try:
            while line := await self._reader.readline():
                self._take(orjson.loads(line), answer)
        except (ConnectionError, orjson.JSONDecodeError):  # the last line of a process that was killed
            pass
        finally:
            self._is_closed = True
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the other process has gone"))
            for task in self._tasks:
                task.cancel()

    def _take(self, message: dict[str, Any], answer: Answer) -> None:
        if "ask" not in message:
            waiting = self._waiting.get(message["id"])
            if waiting is None or waiting.done():
                return
            if "failed" in message:
                waiting.set_exception(ConnectionError(f"the other process failed: {message['failed']}"))
            else:
                waiting.set_result(message["answer"])
            return
        task = asyncio.create_task(self._answer(message, answer))
        self._tasks.add(task)
        task.add_done_callback(partial(self._answered, message))

    def _answered(self, message: Mapping[str, Any], task: asyncio.Task[None]) -> None:
        """Who waits for an answer hears of a fault of ours, too."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("%s could not be answered", message["ask"], exc_info=error)
        if message["id"] and not self._is_closed:
            self._send({"id": message["id"], "failed": type(error).__name__})

    async def _answer(self, message: dict[str, Any], answer: Answer) -> None:
        given = await answer(message["ask"], message["with"])
        if message["id"]:
            self._send({"id": message["id"], "answer": given})

    async def ask(self, what: str, given: Mapping[str, Any] | None = None) -> Any:
        """The answer. ConnectionError when the other side fails at it, or goes or has gone before it comes."""
        number = next(self._numbers)
        self._waiting[number] = waiting = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "ask": what, "with": given or {}})
            return await waiting
        finally:
            del self._waiting[number]

    def tell(self, what: str, given: Mapping[str, Any]) -> None:
        """Ask without waiting for an answer. ConnectionError when the other side has gone."""
        self._send({"id": 0, "ask": what, "with": given})

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._is_closed:
            raise ConnectionResetError("the other process has gone")
        self._writer.write(orjson.dumps(message) + b"\n")
