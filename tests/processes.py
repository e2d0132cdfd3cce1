"""The command `outrider serve` as a process of its own, and which processes there are."""

from __future__ import annotations

import asyncio
import os
import re
import sys


def children_of(pid):
    """Process ids of the direct children that are not zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry))
    return found


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def start_command(cache, *arguments):
    """With a cache folder of its own, where it keeps runs."""
    command = [sys.executable, "-m", "outrider", "serve", "--port", "0", *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"OUTRIDER_CACHE": str(cache)},
    )  # fmt: skip


async def read_until(stream, pattern):
    """Output up to the first match of `pattern`."""
    text = ""
    async with asyncio.timeout(60):
        while not (match := re.search(pattern, text)):
            data = await stream.read(4096)
            assert data, f"the command ended: {text}"
            text += data.decode()
    return match
