"""A scripted lane in a process of its own whose events come at known moments and say when they were written."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outrider.cli.console import run_async
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Recorded, Reply, default_reply, event

_PACE = re.compile(rb"pace ([\d.]+) ([\d.]+) (\d+) (\d+)")
#: The moments in a text, `time.monotonic()` of every process of this machine.
STAMP = re.compile(r"@([\d.]+)")
_HEAD = {"id": "paced", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "paced"}


def pace(first_ms: float, gap_ms: float, num_events: int, num_tokens: int = 1) -> str:
    """What a prompt says to have the first event after so long, further ones so far apart, each of so many tokens."""
    return f"pace {first_ms} {gap_ms} {num_events} {num_tokens}"


class _Paced(Sequence[Any]):
    """Pauses up to the moment at which an event is due, so that what the lane itself takes does not add up."""

    def __init__(self, asked_s: float, first_s: float, gap_s: float, num_events: int, num_tokens: int) -> None:
        self._due_s = [asked_s + first_s + i * gap_s for i in range(num_events)]
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return 2 * len(self._due_s) + 1

    def __getitem__(self, index: Any) -> Any:
        number = index // 2
        if index >= len(self):
            raise IndexError(index)
        if number == len(self._due_s):
            return b"data: [DONE]\n\n"
        if index % 2 == 0:
            return max(self._due_s[number] - time.monotonic(), 0.0)
        count = self._num_tokens * (number + 1)
        choice = {"index": 0, "delta": {"content": f"@{time.monotonic():.6f} "}, "finish_reason": None}
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        return event(_HEAD | {"choices": [choice], "usage": usage})


def reply(request: Recorded) -> Reply:
    """Paced when the prompt says so; a warm-up of one token comes at once."""
    found = _PACE.search(request.body)
    if found is None or request.json()["max_tokens"] == 1:
        return default_reply(request)
    first_ms, gap_ms, num_events, num_tokens = map(float, found.groups())
    paced = _Paced(request.at_s, first_ms / 1000, gap_ms / 1000, int(num_events), int(num_tokens))
    return Reply(200, (("Content-Type", "text/event-stream"),), paced)


@contextmanager
def paced_lane() -> Iterator[str]:
    """Its address, for the block."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as lane:
        try:
            yield lane.stdout.readline().strip()
        finally:
            lane.stdin.close()
            lane.wait(10)


async def _serve() -> None:
    async with ScriptedLane(reply, model="paced") as lane:
        print(lane.url, flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        await ended.wait()


if __name__ == "__main__":
    run_async(_serve())
