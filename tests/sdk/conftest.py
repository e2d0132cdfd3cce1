"""The world of the client's tests: a scripted lane stands for the gateway, which speaks the same routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from outrider import AsyncClient
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Recorded, Reply

Script = Callable[[Recorded], Reply]
Connect = Callable[..., AbstractAsyncContextManager[tuple[ScriptedLane, AsyncClient]]]


@pytest.fixture
def connect() -> Connect:
    """`connect(replies, **options)`: a lane that gives these replies in turn (the last one stays), and a client."""

    @asynccontextmanager
    async def connected(*replies: Reply, **options: Any) -> AsyncIterator[tuple[ScriptedLane, AsyncClient]]:
        left = list(replies)

        def script(_: Recorded) -> Reply:
            return left.pop(0) if len(left) > 1 else left[0]

        async with (
            ScriptedLane(script if replies else None, model="first-model") as lane,
            AsyncClient(lane.url + "/v1", **({"model": "m"} | options)) as client,
        ):
            yield lane, client

    return connected


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Any]:
    """Wait until a condition holds, a minute at most."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.002)

    return wait
