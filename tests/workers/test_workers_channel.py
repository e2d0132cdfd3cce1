"""Asking over a socket, in both directions at once, and what becomes of it when the other side goes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from gateway.world import eventually
from outrider.workers.channel import Channel


async def echo(what, given):
    """The slower the longer it is asked to wait."""
    await asyncio.sleep(given.get("wait_s", 0))
    return [what, given]


@asynccontextmanager
async def pair(answer=echo):
    """Both ends of a channel, reading."""
    ends = [await Channel.over(one) for one in socket.socketpair()]
    reading = [asyncio.create_task(end.run(answer)) for end in ends]
    try:
        yield ends, reading
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_both_ask_and_answers_find_their_question():
    """Also when a later one is answered first."""
    async with pair() as ((one, other), _):
        found = await asyncio.gather(
            one.ask("slow", {"wait_s": 0.05}), one.ask("fast"), other.ask("back", {"a": [1, "é\n"]})
        )
    assert found == [["slow", {"wait_s": 0.05}], ["fast", {}], ["back", {"a": [1, "é\n"]}]]


async def test_the_first_line_comes_before_all_questions():
    """It is not one."""
    ours, theirs = [await Channel.over(one) for one in socket.socketpair()]
    ours.say(b"hello")
    reading = [asyncio.create_task(ours.run(echo))]
    asking = asyncio.create_task(ours.ask("x"))
    assert await theirs.first_line() == b"hello\n"
    reading.append(asyncio.create_task(theirs.run(echo)))
    assert await asking == ["x", {}]
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_news_are_taken_in_order_without_an_answer():
    """All of them."""
    seen = []

    async def answer(what, given):
        seen.append((what, given["n"]))

    async with pair(answer) as ((one, _), _):
        for n in range(50):
            one.tell("news", {"n": n})
        await eventually(lambda: len(seen) == 50)
    assert seen == [("news", n) for n in range(50)]


async def test_who_waits_hears_when_the_other_side_goes():
    """And nobody can ask any more."""
    async with pair() as ((one, _), (reading, others)):
        asking = asyncio.create_task(one.ask("never", {"wait_s": 60}))
        await asyncio.sleep(0.05)
        others.cancel()
        with pytest.raises(ConnectionError):
            await asking
        await reading
        with pytest.raises(ConnectionError):
            await one.ask("x")
        with pytest.raises(ConnectionError):
            one.tell("x", {})


async def test_a_page_of_metrics_fits():
    """It is far over the default limit of a line."""
    page = "x" * 3_000_000
    async with pair() as ((one, _), _):
        assert await one.ask("page", {"page": page}) == ["page", {"page": page}]


async def test_who_asks_hears_of_a_failure_and_the_channel_goes_on(caplog):
    """Of the answer itself, and of one that cannot be written."""

    async def answer(what, given):
        return "\ud800" if what == "unwritable" else {"found": given["key"]}

    async with pair(answer) as ((one, _), _):
        for what in ("unwritable", "anything"):
            with pytest.raises(ConnectionError, match="the other process failed"):
                async with asyncio.timeout(60):
                    await one.ask(what)
        assert await one.ask("again", {"key": 1}) == {"found": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "unwritable could not be answered", "anything could not be answered",
    ]  # fmt: skip
