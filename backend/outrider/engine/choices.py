"""The choices of one request: sequences of their own that share its prompt, and their outputs in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from outrider.engine.engine import Output
from outrider.engine.loop import EngineLoop, Stream
from outrider.engine.sequence import GenerateRequest
from outrider.errors import ServiceError
from outrider.speculation.noise import choice_seed


def choice_id(rid: str, index: int) -> str:
    """The first choice has the request's id; no request can have another's, since ids hold no #."""
    return rid if index == 0 else f"{rid}#{index}"


def choice_of(request: GenerateRequest, index: int) -> GenerateRequest:
    """The first choice is the request itself, so its text is that of a request for one."""
    return replace(request, rid=choice_id(request.rid, index), seed=choice_seed(request.seed, index))


@asynccontextmanager
async def generating(loop: EngineLoop, request: GenerateRequest, count: int) -> AsyncIterator[Choices]:
    """Run so many choices; leaving aborts those that have not ended."""
    async with AsyncExitStack() as stack:
        choices = Choices(loop, stack, [choice_of(request, i) for i in range(count)])
        await choices.start(1)
        yield choices


class Choices:
    """All choices but the first start when it has read the prompt: then they find it in the cache."""

    def __init__(self, loop: EngineLoop, stack: AsyncExitStack, requests: list[GenerateRequest]) -> None:
        self._loop = loop
        self._stack = stack
        self._requests = requests
        self._num_started = 0
        self._index = {request.rid: i for i, request in enumerate(requests)}
        self._stream: Stream = asyncio.Queue()

    async def start(self, count: int) -> None:
        """Start choices until so many have been."""
        for request in self._requests[self._num_started : count]:
            await self._stack.enter_async_context(self._loop.generate(request, self._stream))
        self._num_started = max(self._num_started, count)

    async def _start_rest(self) -> None:
        """An abort of the first choice is one of the request: those that have not started never do."""
        finish = self._loop.abort_of(self._requests[0].rid)
        if finish is None:
            await self.start(len(self._requests))
        for request in self._requests[self._num_started :]:
            self._stream.put_nowait(Output(request.rid, "", (), finish))
        self._num_started = len(self._requests)

    async def next(self) -> list[tuple[int, Output]]:
        """What has happened since the last look, merged by choice: a slow reader gets larger pieces, not more."""
        merged: dict[str, Output] = {}
        output = await self._stream.get()
        await self._start_rest()
        while True:
            earlier = merged.get(output.rid)
            merged[output.rid] = output if earlier is None else earlier.merged(output)
            if self._stream.empty():
                return [(self._index[rid], found) for rid, found in merged.items()]
            output = self._stream.get_nowait()


def raise_if_aborted(outputs: list[tuple[int, Output]]) -> None:
    """ServiceError with the status that the engine gave, when one of these choices was aborted."""
    for _, output in outputs:
        if output.finish is not None and output.finish.kind == "abort":
            error = ServiceError(output.finish.message or "aborted")
            error.status = output.finish.status
            error.code = "aborted"
            raise error
