"""A lane that answers from a script: SGLang's protocol on a loopback socket, with every byte and pause in hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.client import responses
from typing import Self
from urllib.parse import urlsplit

from outrider.core import DRAFTERS, MAX_K, SURFACES
from outrider.runtimes.scripted_replies import Fault, Recorded, Reply, default_reply, json_reply

#: What `/v1/loads` says of a lane with nothing to do.
IDLE_LOAD: Mapping[str, object] = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 16}

#: What `/server_info` says of a lane that runs every plan exactly, as the embedded engine's does.
ANY_PLAN: Mapping[str, object] = {
    "outrider": {"drafters": DRAFTERS, "max_k": MAX_K, "exact_surfaces": sorted(SURFACES)}
}

_MAX_HEAD_BYTES = 1024 * 1024
_GARBAGE = b"\x00\xff\xfe no protocol at all\r\n\r\n" * 8


class ScriptedLane:
    """`async with ScriptedLane() as lane:` serves on `lane.url` until the block ends, then drops its connections.

    `reply` answers the generation routes (default: `default_reply`), `overrides` maps the path of any route to its
    reply, or to what makes one; `load` is merged over `IDLE_LOAD`, None makes `/v1/loads` say nothing. These and
    `is_ready` may be changed while it serves. An exception in `reply` breaks its connection and is raised again at
    the block's end.
    """

    def __init__(
        self,
        reply: Callable[[Recorded], Reply] | None = None,
        *,
        model: str = "scripted",
        load: Mapping[str, object] | None = IDLE_LOAD,
        ready: bool = True,
        port: int = 0,
    ) -> None:
        self.reply = reply or default_reply
        self.model = model
        self.info: dict[str, object] = dict(ANY_PLAN)  # merged over what /server_info says
        self.load = load
        self.is_ready = ready
        self.overrides: dict[str, Reply | Callable[[Recorded], Reply]] = {}
        self.port = port  # 0 until the block begins means any free port
        self.requests: list[Recorded] = []
        self.disconnects: list[Recorded] = []  # those whose client left before the reply ended
        self.aborted: list[str] = []  # request ids posted to /abort_request
        self.num_open = 0  # exchanges in progress, on any route
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_closing = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_connections(self) -> int:
        """Connections accepted so far, closed ones too."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=_MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is None:
            return
        self._is_closing = True
        self._server.close()
        for task in self._connections:
            task.cancel()
        ends = await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closing:  # accepted by the kernel before the end of the block, told to us after it
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        task.add_done_callback(lambda _: writer.close())  # also when the task is cancelled before its first step
        self._connections.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The next request is awaited while the reply is on its way: that is how a client's leaving is seen at once.
        incoming = asyncio.create_task(_read_request(reader))
        try:
            while (request := await incoming) is not None:
                incoming = asyncio.create_task(_read_request(reader))
                self.requests.append(request)
                if not await self._exchange(request, writer, incoming):
                    break
        finally:
            incoming.cancel()
            writer.close()  # before any await: the end of the block may cancel this one too
            await asyncio.wait([incoming])
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(
        self, request: Recorded, writer: asyncio.StreamWriter, incoming: asyncio.Task[Recorded | None]
    ) -> bool:
        """Answer one request; False when the connection is not to be used again."""
        sending = asyncio.create_task(_send(self._route(request), writer))
        self.num_open += 1
        try:
            await asyncio.wait([sending, incoming], return_when=asyncio.FIRST_COMPLETED)
            has_left = incoming.done() and incoming.result() is None
            if not sending.done() and has_left:
                sending.cancel()
            await asyncio.wait([sending])
            if sending.cancelled() or isinstance(sending.exception(), ConnectionError):
                self.disconnects.append(replace(request, at_s=time.monotonic()))
                return False
            return sending.result() and request.headers.get("connection", "").lower() != "close"
        finally:
            sending.cancel()
            self.num_open -= 1

    def _route(self, request: Recorded) -> Reply:
        if request.path in self.overrides:
            found = self.overrides[request.path]
            return found if isinstance(found, Reply) else found(request)
        match (request.method, request.path):
            case ("POST", "/v1/chat/completions" | "/v1/completions" | "/generate"):
                return self.reply(request)
            case ("POST", "/abort_request"):
                self.aborted.append(str(request.json().get("rid", "")))
                return Reply()
            case ("GET", "/health" | "/ready"):
                return Reply(200 if self.is_ready else 503)
            case ("GET", "/v1/models"):
                card = {"id": self.model, "object": "model", "created": 1_700_000_000, "owned_by": "sglang"}
                return json_reply({"object": "list", "data": [card | {"root": self.model, "max_model_len": 8192}]})
            case ("GET", "/server_info"):
                return json_reply(self._server_info())
            case ("GET", "/v1/loads"):
                loads = [] if self.load is None else [{**IDLE_LOAD, "dp_rank": 0, **self.load}]
                return json_reply({"timestamp": time.time(), "version": "scripted", "loads": loads})
            case ("GET", "/metrics"):
                return Reply(200, (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),))
        return json_reply({"detail": "Not Found"}, 404)

    def _server_info(self) -> dict[str, object]:
        return {
            "model_path": self.model,
            "served_model_name": self.model,
            "context_length": 8192,
            "max_running_requests": (self.load or IDLE_LOAD).get("max_running_requests", 16),
            "version": "scripted",
            "speculative_algorithm": None,
            "internal_states": [{}],
            **self.info,
        }


async def _read_request(reader: asyncio.StreamReader) -> Recorded | None:
    """The next request; None when the client closed or reset the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")[:-2]
        method, target, _ = start.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await _read_body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    parts = urlsplit(target)
    return Recorded(method, parts.path, parts.query, headers, body, time.monotonic())


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


async def _send(reply: Reply, writer: asyncio.StreamWriter) -> bool:
    """Run the steps; False when one of them broke the connection."""
    head, is_chunked = _head(reply)
    for step in reply.steps:
        if writer.is_closing():  # asyncio drops what is written then, uvloop raises something else
            raise ConnectionResetError("the client has left")
        if isinstance(step, bytes):
            writer.write(head + (b"%x\r\n%b\r\n" % (len(step), step) if is_chunked and step else step))
            head = b""
            await writer.drain()
        elif isinstance(step, Fault):
            await _break(step, writer)
            return False
        elif isinstance(step, asyncio.Event):
            await step.wait()
        else:
            await asyncio.sleep(step)
    writer.write(head + (b"0\r\n\r\n" if is_chunked else b""))
    await writer.drain()
    return True


def _head(reply: Reply) -> tuple[bytes, bool]:
    """Status line and headers, and whether the body is chunked."""
    headers = list(reply.headers)
    is_chunked = False
    if not any(name.lower() == "content-length" for name, _ in headers):
        body_steps = [step for step in reply.steps if not isinstance(step, float | int | asyncio.Event)]
        is_chunked = len(body_steps) > 1
        size = len(body_steps[0]) if body_steps and isinstance(body_steps[0], bytes) else 0
        headers.append(("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", str(size)))
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}", *(f"{n}: {v}" for n, v in headers)]
    return "".join(line + "\r\n" for line in [*lines, ""]).encode("latin-1"), is_chunked


async def _break(fault: Fault, writer: asyncio.StreamWriter) -> None:
    if fault is Fault.HANG:
        await asyncio.Event().wait()
    elif fault is Fault.RESET:
        # A linger time of zero makes the kernel send a reset instead of an orderly end.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif fault is Fault.GARBAGE:
        writer.write(_GARBAGE)
        await writer.drain()
