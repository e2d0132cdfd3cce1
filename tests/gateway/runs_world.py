"""Runs in the background as tests begin, follow and read them."""

from __future__ import annotations

import json
import re

from outrider.config import RunsSection
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, chat_reply
from outrider.sse import SSEDecoder

TEXT = "".join(SENTENCE)
RUNS = "/outrider/runs/"
EVENTS = (("Content-Type", "text/event-stream"),)
BACKGROUND = {"outrider": {"background": True}}


def section(folder, **options):
    given = {"url": f"sqlite+aiosqlite:///{folder}/runs.sqlite", "lease_s": 0.4, "timeout_s": 20.0}
    return RunsSection(**(given | options))


def hang_after(num):
    """So many pieces of the sentence, then silence."""
    steps = chat_reply(stream=True).steps
    return Reply(200, EVENTS, (*steps[: num + 1], Fault.HANG))


def paced(delay_s=0.004):
    return lambda request: chat_reply(stream=bool(request.json().get("stream")), delay_s=delay_s)


async def start(w, stream=True, **fields):
    """Begin a run; its id."""
    headers = fields.pop("headers", None)
    async with w.chat(headers=headers, stream=stream, **BACKGROUND, **fields) as response:
        body = await response.json()
        assert response.status == 202, body
        assert response.headers["Location"] == RUNS + body["id"]
        return body["id"]


async def show(w, run, headers=None):
    async with w.http.get(w.gateway.url + RUNS + run, headers=headers) as response:
        return await response.json() | {"http": response.status}


async def read_events(w, run, after=0, most=None):
    """(number, data) of what comes behind `after`; leaves the connection after `most` events."""
    events, decoder = [], SSEDecoder()
    headers = {"Last-Event-ID": str(after)} if after else {}
    async with w.http.get(f"{w.gateway.url}{RUNS}{run}/events", headers=headers) as response:
        if response.status == 204:
            return events
        assert response.status == 200
        async for piece in response.content.iter_any():
            for event in decoder.feed(piece):
                if event.data is not None:
                    number = re.match(rb"id: (\d+)\n", event.raw)
                    events.append((int(number[1]), event.data))
            if most is not None and len(events) >= most:
                response.close()
                return events[:most]
    return events


def text_of(events):
    chunks = [json.loads(data) for _, data in events if data.startswith(b"{")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


def error_of(events):
    return json.loads(events[-1][1])["error"]
