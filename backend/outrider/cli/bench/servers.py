"""Servers of `outrider bench gateway`, each in a process of its own: the scripted lane, our gateway, a bare relay."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.console import run_async
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Recorded, Reply, default_reply, event, json_reply
from outrider.workloads.wire import fetch, get

if TYPE_CHECKING:
    from outrider.runtimes.lane import Lane

MODEL = "scripted"
CHAT = "/v1/chat/completions"
API_KEY = "bench-key"
#: What stands in a prompt to have the lane do it; a tag follows.
HANG, HANG_BEGUN, TICK = "bench hang ", "bench begin ", "bench tick "
#: Followed by a number of events and the milliseconds between two of them.
PACE = "bench pace "
#: The lane tells here who left and when.
DEPARTURES = "/generate"
NUM_TICKS = 40
TICK_S = 0.02

#: The moment at which the lane wrote an event that ticks or keeps pace.
STAMP = re.compile(rb"@(\d+\.\d+)")

_EVENTS = (("Content-Type", "text/event-stream"),)
_TAG = re.compile(rb"bench (?:hang|begin|tick) (\w+)")
_PACE = re.compile(rb"bench pace (\d+) (\d+)")
_START_TIMEOUT_S = 60.0
#: Places of the gateway: what is measured is not its queue.
_MAX_IN_FLIGHT = 100_000


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    url: str
    pid: int

    @property
    def resident_mb(self) -> float:
        """Memory of the process and its children, in MB."""
        pids = [self.pid, *descendants(self.pid)]
        return sum(_resident_kb(pid) for pid in pids) / 1024


async def metrics_page(gateway: Server) -> str:
    """What it says of itself now."""
    return (await fetch(gateway.url, get("/metrics", API_KEY))).decode()


def _resident_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return 0 if found is None else int(found[1])


def descendants(pid: int) -> list[int]:
    """Children of the process, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


@contextmanager
def ended_with_block(process: subprocess.Popen[bytes], grace_s: float) -> Iterator[None]:
    """Asked to end, and killed when it has not after the grace."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Ticks(Sequence[bytes | float | Fault]):
    """Events that carry the moment at which the lane writes them, with pauses between."""

    def __init__(self, num: int = NUM_TICKS, pause_s: float = TICK_S) -> None:
        self._num, self._pause_s = num, pause_s

    def __len__(self) -> int:
        return 2 * self._num + 1

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)
        if index == len(self) - 1:
            return b"data: [DONE]\n\n"
        return self._pause_s if index % 2 else _delta(f"@{time.monotonic():.6f}")


def _delta(text: str) -> bytes:
    return event({
        "id": "bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": MODEL,
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    })  # fmt: skip


def _scripted(lane: ScriptedLane) -> Callable[[Recorded], Reply]:
    def reply(request: Recorded) -> Reply:
        if request.path == DEPARTURES:
            left = [(_TAG.search(one.body), one.at_s) for one in lane.disconnects]
            return json_reply({tag[1].decode(): at_s for tag, at_s in left if tag})
        is_stream = b'"stream":true' in request.body
        if HANG.encode() in request.body:
            return Reply(200, _EVENTS if is_stream else (("Content-Type", "application/json"),), (Fault.HANG,))
        if HANG_BEGUN.encode() in request.body:
            return Reply(200, _EVENTS, (_delta("a"), Fault.HANG))
        if pace := _PACE.search(request.body):
            return Reply(200, _EVENTS, _Ticks(int(pace[1]), int(pace[2]) / 1000))
        if TICK.encode() in request.body:
            return Reply(200, _EVENTS, _Ticks())
        return default_reply(request)

    return reply


@asynccontextmanager
async def _lane() -> AsyncIterator[str]:
    with suppress(ValueError):  # a peer probed it in a protocol that it does not speak
        async with ScriptedLane(model=MODEL) as lane:
            lane.reply = _scripted(lane)
            yield lane.url


def _gateway(lane_url: str) -> AbstractAsyncContextManager[str]:
    from outrider.config import AdmissionSection
    from outrider.runtimes.lane import Lane

    return _serving(Lane(MODEL, lane_url), admission=AdmissionSection(max_in_flight=_MAX_IN_FLIGHT))


def _embedded(model: str) -> AbstractAsyncContextManager[str]:
    """Gateway and engine as `outrider serve` starts them without a configuration."""
    from outrider.config import LaneSection

    return _serving(None, lanes=(LaneSection(model=model),))


@asynccontextmanager
async def _serving(own: Lane | None, **sections: Any) -> AsyncIterator[str]:
    """With a key of its own, as those that the environment may hold are in force too, and its limits, policies and
    metrics on."""
    from outrider.app import serving
    from outrider.config import AuthSection, Config, KeySection, ServerSection

    digest = sha256(API_KEY.encode()).hexdigest()
    key = KeySection(name="bench", sha256=digest, requests_per_min=10**9, tokens_per_min=10**12)
    config = Config(server=ServerSection(port=0), auth=AuthSection(keys=(key,)), **sections)
    async with serving(config, lanes=None if own is None else [own]) as gateway:
        for lane in gateway.pool.lanes:
            await lane.wait_until_ready()
        gc.freeze()  # as `outrider serve` does
        yield gateway.url


@asynccontextmanager
async def _relay(lane_url: str) -> AsyncIterator[str]:
    """What the HTTP library costs by itself: parse, dump, pass on; no limits, no errors, no aborts."""
    import aiohttp
    import orjson
    from aiohttp import web

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = orjson.dumps(orjson.loads(await request.read()))
            headers = {"Content-Type": "application/json"}
            async with session.post(lane_url + request.path, data=body, headers=headers) as upstream:
                if not upstream.content_type.startswith("text/event-stream"):
                    return web.Response(body=await upstream.read(), content_type="application/json")
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                async for data in upstream.content.iter_any():
                    await response.write(data)
                await response.write_eof()
                return response

        app = web.Application()
        app.router.add_post("/{path:.*}", relay)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


_KINDS: dict[str, Callable[..., Any]] = {
    "direct": _lane, "outrider": _gateway, "aiohttp relay": _relay, "embedded": _embedded,
}  # fmt: skip


def _serve(kind: str, arguments: tuple[str, ...], pipe: Connection) -> None:
    """The child's main: say the URL, serve until the parent closes its end; Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def main() -> None:
        async with _KINDS[kind](*arguments) as url:
            pipe.send(url)
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
            await ended.wait()

    run_async(main())


@contextmanager
def server(kind: str, *arguments: str) -> Iterator[Server]:
    """A server of that kind in a new process for the block."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(kind, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise TimeoutError(f"the {kind} did not start within {_START_TIMEOUT_S:g} s")
        yield Server(kind, ours.recv(), process.pid or 0)
    finally:
        ours.close()
        process.join(5)
        process.kill()
