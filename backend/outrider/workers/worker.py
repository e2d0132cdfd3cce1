"""A worker: a gateway without lanes of its own, run by its parent with a channel as standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from outrider.app import Gateway, run
from outrider.cli.console import run_async, set_up_logging
from outrider.errors import SetupError
from outrider.runtimes.guard import die_with_parent
from outrider.workers.channel import Channel
from outrider.workers.member import LaneNews, Member, Setup, lanes_of

#: How long the parent may take to ask all workers, for their figures and for orders; more than it gives them.
_PAGE_S, _EVERY_S = 3.0, 7.0


def main() -> None:
    """Exit status 1 when the set-up is wrong; the parent has been told then."""
    die_with_parent()
    end = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        run_async(_work(end))
    except SetupError:
        sys.exit(1)


async def _work(end: socket.socket) -> None:
    channel = await Channel.over(end)
    line = await channel.first_line()
    if not line:
        return  # the parent has gone already
    setup = Setup.model_validate_json(line)
    set_up_logging(verbose=setup.verbose, access_log=setup.access_log, worker=setup.index)

    async def every(order: str, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        is_page = order == "page"
        try:
            async with asyncio.timeout(_PAGE_S if is_page else _EVERY_S):
                found: list[Mapping[str, Any]] = await channel.ask("every", {"order": order, "with": given})
                return found
        except (TimeoutError, ConnectionError):
            own = ready.result().orders.carry_out(order, given) if is_page and ready.done() else None
            return [own or {"problem": "the parent does not answer"}]

    ready: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()
    member = Member(setup.share, lanes_of(setup), every, setup.drained)

    async def answer(order: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if order == "lane":
            member.hear(given["lane"], LaneNews.model_validate(given["news"]))
            return {}
        if order == "alive":
            return {}
        gateway = await asyncio.shield(ready)
        return gateway.orders.carry_out(order, given)

    reading = asyncio.create_task(channel.run(answer))

    async def on_ready(gateway: Gateway) -> None:
        ready.set_result(gateway)
        with suppress(ConnectionError):
            await channel.ask("ready", {"worker": setup.index, "url": gateway.url})
        await asyncio.wait([reading])  # it ends with the parent
        gateway.stop_at_once()
        signal.raise_signal(signal.SIGTERM)

    try:
        await run(setup.config, on_ready=on_ready, member=member)
    except SetupError as error:
        with suppress(ConnectionError):
            await channel.ask("problem", {"worker": setup.index, "message": error.message})
        raise
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


if __name__ == "__main__":
    main()
