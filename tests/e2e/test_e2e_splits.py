"""One stream cut at every byte: through the gateway and in both SDKs, same bytes, text, calls and counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import openai
import pytest

from gateway.world import MESSAGES, world
from outrider import AsyncClient
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Reply
from outrider.sdk.results import OtherDelta, TextDelta

EVENTS = (("Content-Type", "text/event-stream"),)
#: Long enough for the reader to wake between the two parts of a cut stream.
PAUSE_S = 0.0003
TEXT = "grüße 世界 🎉 and more than one token"
STATS = {
    "spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 6,
    "spec_correct_drafts_histogram": [0, 1, 1, 0],
}  # fmt: skip
USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
CALLS = {0: ("call_a", "weather", '{"city": "Köln"}'), 1: ("call_b", "time", '{"zone": "東京"}')}


def _chunk(delta: Mapping[str, Any] | None, finish: str | None = None, end: str = "\n", **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    data = json.dumps(head | {"choices": choices} | fields, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}{end}{end}".encode()


def _call(index: int, arguments: str, *, is_first: bool) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": CALLS[index][1]} if is_first else {})
    return {"index": index, "function": function} | ({"id": CALLS[index][0], "type": "function"} if is_first else {})


def _calls(part: slice, *, is_first: bool) -> list[dict[str, Any]]:
    return [_call(index, CALLS[index][2][part], is_first=is_first) for index in CALLS]


#: Comments, both line ends, several tokens in a delta, two calls in a delta, and what comes after the finish.
STREAM = b"".join([
    b": ping\r\n\r\n",
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": TEXT[:7]}, end="\r\n"),
    _chunk({"content": TEXT[7:], "reasoning_content": "wäge ab"}),
    b": still here\n\n",
    _chunk({"tool_calls": _calls(slice(0, 10), is_first=True)}),
    _chunk({"tool_calls": _calls(slice(10, None), is_first=False)}, end="\r\n"),
    _chunk({}, "tool_calls"),
    _chunk(None, sglext={"spec_tokens_details": STATS}),
    _chunk(None, usage=USAGE),
    b"data: [DONE]\n\n",
])  # fmt: skip
#: Between the bytes of characters too.
EVERYWHERE = range(len(STREAM))
INSIDE_CHARACTERS = [at for at in EVERYWHERE if STREAM[at] & 0xC0 == 0x80]


def cut(at: int) -> Reply:
    """The stream in two packets, the second from byte `at`; 0 sends it whole, every event in one packet."""
    return Reply(200, EVENTS, (STREAM[:at], PAUSE_S, STREAM[at:]) if at else (STREAM,))


def joined(parts: Iterable[Mapping[str, Any]]) -> dict[int, tuple[str, str, str]]:
    """Tool calls put together from their deltas."""
    calls: dict[int, tuple[str, str, str]] = {}
    for part in parts:
        before = calls.get(part["index"], ("", "", ""))
        function = part["function"]
        now = (part.get("id") or "", function.get("name") or "", function.get("arguments") or "")
        calls[part["index"]] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
    return calls


async def test_the_gateway_gives_the_same_bytes_for_every_cut() -> None:
    """Not a byte depends on packets, and the counts in the report do not either."""
    async with world() as w:
        seen: dict[bytes, int] = {}
        for at in EVERYWHERE:
            w.scripted.reply = lambda _, at=at: cut(at)
            async with w.chat(stream=True, outrider={"drafter": "ngram", "k": 3}) as response:
                # The policy learns from answer to answer, and says so.
                seen.setdefault(re.sub(rb'"reasons":\[.*?\]', b"", await response.read()), at)
        assert len(seen) == 1, sorted(seen.values())
        raw = next(iter(seen))
        assert {outcome.num_completion_tokens for _, outcome in w.outcomes} == {USAGE["completion_tokens"]}
        assert {outcome.stats.num_accepted for _, outcome in w.outcomes} == {3}
        finish, _, rest = raw.partition(b'"finish_reason":"tool_calls"')
        assert finish.startswith(STREAM.partition(b'"finish_reason":"tool_calls"')[0])
        assert rest.endswith(_chunk(None, usage=USAGE) + b"data: [DONE]\n\n")


@pytest.mark.parametrize("is_direct", [True, False], ids=["its reader alone", "through the gateway"])
async def test_our_sdk_reads_the_same_from_every_cut(is_direct: bool) -> None:
    """Text, reasoning, both calls, usage, and the counts of speculation."""
    async with world() as w, ScriptedLane() as lane:
        source = lane if is_direct else w.scripted
        async with AsyncClient((lane.url if is_direct else w.gateway.url) + "/v1", model="scripted") as client:
            for at in EVERYWHERE if is_direct else [*INSIDE_CHARACTERS, *EVERYWHERE[:: len(STREAM) // 200]]:
                source.reply = lambda _, at=at: cut(at)
                async with client.chat_stream(MESSAGES, drafter="ngram", k=3) as stream:
                    events = [event async for event in stream]
                texts = [event.text for event in events if isinstance(event, TextDelta)]
                others = [event.fields for event in events if isinstance(event, OtherDelta)]
                calls = joined(part for fields in others for part in fields.get("tool_calls") or [])
                assert ("".join(texts), calls) == (TEXT, CALLS), at
                assert [fields["reasoning_content"] for fields in others if "reasoning_content" in fields] == [
                    "wäge ab"
                ]
                assert (stream.finish_reason, stream.usage.completion_tokens) == ("tool_calls", 9), at
                if not is_direct:
                    assert stream.report.observed.num_accepted == 3, at


async def test_the_openai_sdk_reads_the_same_from_every_kind_of_cut() -> None:
    """Inside every character, and at bytes all over the stream, through the gateway."""
    async with world() as w, openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none") as client:
        for at in [*INSIDE_CHARACTERS, *EVERYWHERE[:: len(STREAM) // 60]]:
            w.scripted.reply = lambda _, at=at: cut(at)
            stream = await client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
            chunks = [chunk async for chunk in stream]
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            calls = joined(part.model_dump() for delta in deltas for part in delta.tool_calls or [])
            assert ("".join(delta.content or "" for delta in deltas), calls) == (TEXT, CALLS), at
            assert chunks[-1].usage.completion_tokens == 9
