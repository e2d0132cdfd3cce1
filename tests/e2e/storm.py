"""A storm: many random requests to a gateway whose lanes fail in every way, each written down by a seed."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import aiohttp
import orjson

from e2e.storm_scripts import CHAT, FAULTS, PATIENCE_S, REFUSALS, TENANTS, Script, script_of
from outrider.app import Gateway, serving
from outrider.config import AdmissionSection, AuthSection, Config, KeySection, LaneSection, ServerSection
from outrider.core import Outcome
from outrider.dispatch.call import Call
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Recorded, Reply, chat_reply
from outrider.sse import DONE, SSEDecoder


@dataclass(slots=True)
class Seen:
    """What the client of one request saw of it."""

    status: int | None = None
    """None: it left before there was one."""
    ends: list[str] = field(default_factory=list)
    """`done` and the codes of errors, in the order of their arrival."""
    text: str = ""
    has_left: bool = False
    num_events: int = 0


@dataclass
class Storm:
    """A gateway over lanes that follow scripts, and what came of every request."""

    seed: int
    gateway: Gateway
    lanes: list[ScriptedLane]
    http: aiohttp.ClientSession
    scripts: dict[int, Script] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    """Of each script at scripted lanes; other lanes answer as they like."""
    model_prompt: str = "storm"
    outcomes: defaultdict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[int, Seen] = field(default_factory=dict)

    def reply(self, request: Recorded) -> Reply:
        """What the script of the request says; a second attempt meets a healthy lane."""
        script = self.scripts[int(request.headers["x-request-id"].removeprefix("storm-"))]
        self.attempts[script.number] += 1
        attempt = self.attempts[script.number]
        pieces = [f"<{attempt}>"] + [f" piece{i}" for i in range(1, script.num_pieces)]
        good = chat_reply(pieces, stream=script.is_stream, include_usage=True, delay_s=script.delay_s)
        return FAULTS[script.fault if attempt == 1 else "none"][0](script, good)

    async def run(self, num_runs: int, num_at_once: int, first: int = 0) -> None:
        """`num_runs` requests, at most `num_at_once` of them at one time."""
        numbers = iter(range(first, first + num_runs))

        async def caller() -> None:
            for number in numbers:
                self.scripts[number] = script = script_of(self.seed, number)
                self.seen[number] = await self._ask(script)

        async with asyncio.TaskGroup() as group:
            for _ in range(num_at_once):
                group.create_task(caller())

    async def _ask(self, script: Script) -> Seen:
        seen = Seen()
        await asyncio.sleep(script.starts_after_s)
        leaves_after_s = PATIENCE_S if script.leaves_after_s is None else script.leaves_after_s
        try:
            async with asyncio.timeout(leaves_after_s):
                await self._read(script, seen)
        except TimeoutError:
            seen.has_left = True
        except aiohttp.ClientError as error:
            seen.ends.append(f"{type(error).__name__}: {error}")
        return seen

    async def _read(self, script: Script, seen: Seen) -> None:
        messages = [{"role": "user", "content": self.model_prompt}]
        body = {"messages": messages, "stream": script.is_stream, "max_tokens": 8 * script.num_pieces}
        headers = {
            "Authorization": f"Bearer {script.tenant}",
            "x-request-id": f"storm-{script.number}",
            "x-outrider-priority": script.priority,
        }
        if script.deadline_ms is not None:
            headers["x-outrider-deadline-ms"] = str(script.deadline_ms)
        async with self.http.post(self.gateway.url + CHAT, json=body, headers=headers) as response:
            seen.status = response.status
            if response.headers["Content-Type"].startswith("text/event-stream"):
                await self._read_events(script, response, seen)
                return
            whole = await response.json()
            if response.status == 200:
                seen.ends.append("done")
                seen.text = whole["choices"][0]["message"]["content"]
            else:
                seen.ends.append(whole["error"]["code"])

    async def _read_events(self, script: Script, response: aiohttp.ClientResponse, seen: Seen) -> None:
        decoder = SSEDecoder()
        async for data in response.content.iter_any():
            for event in decoder.feed(data):
                seen.num_events += event.data is not None
                if event.data == DONE:
                    seen.ends.append("done")
                elif event.data is not None:
                    _take(orjson.loads(event.data), seen)
            if script.leaves_after_events is not None and seen.num_events >= script.leaves_after_events:
                seen.has_left = True
                response.close()
                return
        decoder.close()

    def faults_of(self) -> list[str]:
        """Every promise that was broken, in words; none is what is hoped for."""
        return list(itertools.chain.from_iterable(map(self._faults, self.scripts.values())))

    def _faults(self, script: Script) -> list[str]:
        seen, outcomes = self.seen[script.number], self.outcomes.get(f"storm-{script.number}", [])
        attempts, found = self.attempts[script.number], []
        if len(outcomes) != 1 and not (seen.has_left and not outcomes and not attempts):
            found.append(f"{len(outcomes)} outcomes")
        if seen.has_left and script.leaves_after_s is None and script.leaves_after_events is None:
            found.append(f"no end within {PATIENCE_S:g} s")
        if not seen.has_left:
            found += _faults_of_answer(seen, outcomes[0]) if outcomes else []
        if not seen.has_left and outcomes and self.lanes:
            found += _faults_of_script(script, seen, outcomes[0], attempts)
        marks = re.findall(r"<(\d+)>", seen.text)
        if len(marks) > 1 or (marks and int(marks[0]) != attempts):
            found.append(f"text of attempts {marks} of {attempts}: tried again after a delivered byte")
        return [f"seed {self.seed}, {script}: {fault}; {seen}, {outcomes}" for fault in found]


def _take(chunk: dict[str, Any], seen: Seen) -> None:
    if chunk.get("error") is not None:
        seen.ends.append(chunk["error"]["code"])
    for choice in chunk.get("choices") or []:
        seen.text += choice["delta"].get("content") or ""


def _expected(outcome: Outcome) -> str | None:
    return "done" if outcome.error_code is None and outcome.status == 200 else outcome.error_code


def _faults_of_answer(seen: Seen, outcome: Outcome) -> list[str]:
    found = []
    if len(seen.ends) != 1:
        found.append(f"{len(seen.ends)} terminal events")
    if seen.ends[:1] != [_expected(outcome)] or (seen.status != 200 and seen.status != outcome.status):
        found.append("client and outcome disagree")
    return found


def _faults_of_script(script: Script, seen: Seen, outcome: Outcome, attempts: int) -> list[str]:
    """What a scripted lane said is known."""
    found = []
    is_done = _expected(outcome) == "done"
    if is_done and not seen.text.endswith("".join(f" piece{i}" for i in range(1, script.num_pieces))):
        found.append("the text is not whole")
    if (
        script.fault in ("none", "slow head", "closes after")
        and script.deadline_ms is None
        and attempts
        and not is_done
    ):
        found.append("a good lane failed")
    if not attempts and outcome.status not in REFUSALS:
        found.append("refused without a reason")
    return found


def _config(**sections: Any) -> Config:
    """A gateway whose places, queue and keys are all too few at times."""
    keys = tuple(
        KeySection(name=name, sha256=sha256(name.encode()).hexdigest(), max_concurrent=limit)
        for name, limit in zip(TENANTS, (None, 40, 20), strict=True)
    )
    return Config(
        server=ServerSection(port=0, shutdown_grace_s=0.2),
        admission=AdmissionSection(max_in_flight=24, max_queued=24, queue_timeout_s=1.0),
        auth=AuthSection(keys=keys),
        **sections,
    )


@asynccontextmanager
async def storm(seed: int, num_lanes: int = 3, engine: LaneSection | None = None) -> AsyncIterator[Storm]:
    """Over scripted lanes that follow the scripts, or over an engine."""
    async with AsyncExitStack() as stack:
        scripted: list[ScriptedLane] = []
        if engine is None:
            scripted = [await stack.enter_async_context(ScriptedLane()) for _ in range(num_lanes)]
        lanes = [Lane(f"lane{i}", one.url) for i, one in enumerate(scripted)]
        outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

        def on_outcome(call: Call, outcome: Outcome) -> None:
            outcomes[call.request_id].append(outcome)

        config = _config() if engine is None else _config(lanes=(engine,))
        gateway = await stack.enter_async_context(serving(config, lanes=lanes or None, on_outcome=on_outcome))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        async with asyncio.timeout(60):
            await asyncio.gather(*(lane.wait_until_ready() for lane in gateway.pool.lanes))
        made = Storm(seed, gateway, scripted, http, outcomes=outcomes)
        for one in scripted:
            one.reply = made.reply
        yield made
