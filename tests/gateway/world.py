"""A gateway over one scripted lane, started through the runner that `outrider serve` uses."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import orjson

from outrider.app import Gateway, serving
from outrider.config import AdmissionSection, AuthSection, Config, PolicySection, RunsSection, ServerSection
from outrider.core import Outcome
from outrider.dispatch.call import Call
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
#: Looks that a departure may take, of which a machine that stands still makes none; the promise is 50 ms.
SOON = 50


@dataclass
class World:
    scripted: ScriptedLane
    lane: Lane
    gateway: Gateway
    http: aiohttp.ClientSession
    outcomes: list[tuple[Call, Outcome]] = field(default_factory=list)

    def post(self, body, path=CHAT, **options):
        """Send a body (a value, or bytes as they are) to a generation route."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        return self.http.post(self.gateway.url + path, data=data, headers=headers, **options)

    def chat(self, headers=None, **fields):
        """A chat request with one message."""
        return self.post({"messages": MESSAGES} | fields, headers=headers or {})

    async def metric(self, line: str) -> float:
        """The value of the metric whose name and labels are `line`; 0.0 when it is not there."""
        async with self.http.get(self.gateway.url + "/metrics") as response:
            page = await response.text()
        values = [one.rpartition(" ")[2] for one in page.splitlines() if one.rpartition(" ")[0] == line]
        return float(values[0]) if values else 0.0

    @property
    def upstream(self):
        """The last generation request that the lane got."""
        return [one for one in self.scripted.requests if one.path in (CHAT, COMPLETIONS)][-1]


@asynccontextmanager
async def world(reply=None, *, admission=None, auth=None, server=None, policy=None, runs=None, **lane_options):
    """The gateway, ready to take requests."""
    section = ServerSection(**({"port": 0, "shutdown_grace_s": 0.2} | (server or {})))
    config = Config(
        server=section,
        admission=admission or AdmissionSection(),
        auth=auth or AuthSection(),
        policy=policy or PolicySection(),
        runs=runs or RunsSection(),
    )
    outcomes = []
    async with (
        ScriptedLane(reply, **lane_options) as scripted,
        serving(
            config,
            lanes=[lane := Lane("scripted", scripted.url)],
            on_outcome=lambda call, outcome: outcomes.append((call, outcome)),
        ) as gateway,
        aiohttp.ClientSession() as http,
    ):
        async with asyncio.timeout(60):
            await lane.wait_until_ready()
        yield World(scripted, lane, gateway, http, outcomes)


async def eventually(condition):
    """Wait until `condition()` is true; returns after how many looks it was, 5 ms apart on a free machine."""
    ends_s, num_looks = time.monotonic() + 60, 0
    while not condition():
        assert time.monotonic() < ends_s, "did not happen in time"
        await asyncio.sleep(0.005)
        num_looks += 1
    return num_looks
