"""Streamed chats: typed events in order, tokens counted piece by piece, and the message that they add up to."""

from __future__ import annotations

from typing import Any

import pytest
from sdk_wire import DONE, REPORT, USAGE, delta, stream_of

from outrider import ChatStream, ConnectionFailed, Finished, OtherDelta, StreamState, TextDelta
from outrider.runtimes.scripted_replies import SENTENCE, chat_reply, event

STREAM = chat_reply(stream=True, include_usage=True)


async def collect(stream: ChatStream) -> list[Any]:
    async with stream:
        return [event async for event in stream]


async def test_events_in_order(connect: Any) -> None:
    """Text piece by piece, then one end with reason, usage and report; then nothing."""
    async with connect(STREAM) as (lane, client):
        stream = client.chat_stream("hi", k=2)
        *pieces, end = await collect(stream)
        assert pieces == [TextDelta(piece, None) for piece in SENTENCE]
        assert isinstance(end, Finished) and end.finish_reason == "stop"
        assert end.usage.completion_tokens == len(SENTENCE) and end.report is None
        assert (stream.text, stream.usage, stream.state) == ("".join(SENTENCE), end.usage, StreamState.ENDED)
        sent = lane.requests[0].json()
        assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
        assert (sent["model"], sent["outrider"]) == ("m", {"k": 2})


@pytest.mark.parametrize("where", ["finish", "later"])
async def test_the_report_is_taken_from_whichever_chunk_has_it(connect: Any, where: str) -> None:
    """In the chunk with the reason, or in one without choices after it."""
    top = {"outrider": REPORT}
    ending = (
        [delta("stop", top=top)]
        if where == "finish"
        else [delta("stop"), event({"choices": [], "usage": USAGE} | top)]
    )
    reply = stream_of(delta(content="a"), *ending, DONE)
    async with connect(reply) as (_, client), client.chat_stream("hi") as stream:
        result = await stream.result()
    assert result.report.lane == "embedded" and stream.report is result.report
    assert (result.text, result.finish_reason, result.request_id) == ("a", "stop", "q9")
    assert (result.usage is not None) is (where == "later")


async def test_the_result_reads_what_is_left_and_keeps_unknown_fields(connect: Any) -> None:
    """After some events `result` gives the whole text, and the last value of every top-level field."""
    chunks = [delta(content="a"), delta(content="b"), delta("stop"), event({"choices": [], "sglext": {"x": 1}}), DONE]
    async with connect(stream_of(*chunks)) as (_, client), client.chat_stream("hi") as stream:
        assert await anext(stream) == TextDelta("a", None)
        result = await stream.result()
        assert await stream.result() == result
    assert result.text == "ab"
    assert result.raw == {"id": "c1", "sglext": {"x": 1}}


async def test_tokens_are_counted_when_the_server_counts(connect: Any) -> None:
    """Usage on every chunk gives the number of tokens of each piece."""
    counts = [{**USAGE, "completion_tokens": n} for n in (1, 4, 4)]
    chunks = [delta(usage=counts[0], content="a"), delta(usage=counts[1], content="bcd"), delta("stop", counts[2])]
    async with connect(stream_of(*chunks, DONE)) as (_, client):
        events = await collect(client.chat_stream("hi"))
    assert events[:2] == [TextDelta("a", 1), TextDelta("bcd", 3)]
    assert events[2].usage.completion_tokens == 4


async def test_what_is_not_text_is_not_lost(connect: Any) -> None:
    """Tool calls and reasoning come as their own events; nulls and roles are no events."""
    calls = [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]
    first = delta(role="assistant", content="", reasoning_content=None)
    both = delta(content="x", reasoning_content="why")
    async with connect(stream_of(first, both, delta(tool_calls=calls), delta("tool_calls"), DONE)) as (_, client):
        events = await collect(client.chat_stream("hi"))
    assert events[:3] == [
        TextDelta("x", None),
        OtherDelta({"reasoning_content": "why"}),
        OtherDelta({"tool_calls": calls}),
    ]
    assert events[3].finish_reason == "tool_calls"


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 3\n\n", b'data: {"choices": 3}\n\n'])
async def test_an_event_that_is_no_chunk(connect: Any, data: bytes) -> None:
    """Nonsense in the stream is a failure, not an empty piece."""
    async with connect(stream_of(data, DONE)) as (_, client):
        with pytest.raises(ConnectionFailed, match=r"no chunk|not JSON"):
            await collect(client.chat_stream("hi"))


async def test_accepted_drafts_of_every_piece(connect: Any) -> None:
    """Where the server counts them as it goes, and the client asked for it."""

    def usage(tokens: int, accepted: int) -> dict[str, Any]:
        return {
            **USAGE,
            "completion_tokens": tokens,
            "completion_tokens_details": {"accepted_draft_tokens": accepted},
        }

    chunks = [delta(usage=usage(1, 0), content="a"), delta(usage=usage(5, 3), content="bcde"), delta("stop"), DONE]
    async with connect(stream_of(*chunks)) as (lane, client):
        events = await collect(client.chat_stream("hi", counts_tokens=True))
        sent = lane.requests[0].json()
    assert events[:2] == [TextDelta("a", 1, 0), TextDelta("bcde", 4, 3)]
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_tool_calls_are_put_together(connect: Any) -> None:
    """Ids and names come once, arguments in pieces, calls mixed."""

    def piece(index: int, **function: str) -> dict[str, Any]:
        head = {"id": f"c{index}"} if "name" in function else {}
        return {"index": index, "function": function, **head}

    chunks = [
        delta(tool_calls=[piece(0, name="f", arguments="")]),
        delta(tool_calls=[piece(0, arguments='{"a"'), piece(1, name="g", arguments="{}")]),
        delta(tool_calls=[piece(0, arguments=": 1}")]),
        delta("tool_calls"),
        DONE,
    ]
    async with connect(stream_of(*chunks)) as (_, client), client.chat_stream("hi") as stream:
        result = await stream.result()
    assert [(c.id, c.function.name, c.function.arguments) for c in result.tool_calls] == [
        ("c0", "f", '{"a": 1}'), ("c1", "g", "{}"),
    ]  # fmt: skip
    assert result.finish_reason == "tool_calls"


async def test_a_tool_call_of_another_form(connect: Any) -> None:
    """It is a failure, not a guess."""
    async with connect(stream_of(delta(tool_calls=[3]), DONE)) as (_, client):
        with pytest.raises(ConnectionFailed, match="tool call"):
            await collect(client.chat_stream("hi"))


async def test_the_message_of_a_stream_keeps_what_is_unknown(connect: Any) -> None:
    """As a whole answer does: texts that come in pieces are joined, parts of objects too; events stay as they are."""
    piece = {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": "{"}, "later": "a"}
    chunks = [
        delta(role="assistant", content="", refusal=None),
        delta(reasoning_content="be", audio={"id": "u", "data": "x"}, notes=[1]),
        delta(content="a", reasoning_content="cause", audio={"data": "y"}, notes=[2], score=1),
        delta(tool_calls=[piece], score=0),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "}", "strict": True}, "later": "b"}]),
        delta("tool_calls"),
        DONE,
    ]
    async with connect(stream_of(*chunks)) as (_, client), client.chat_stream("hi") as stream:
        events = [event async for event in stream]
        message = (await stream.result()).message
    assert message.model_extra == {
        "role": "assistant",
        "refusal": None,
        "reasoning_content": "because",
        "audio": {"id": "u", "data": "xy"},
        "notes": [1, 2],
        "score": 0,
    }
    (call,) = message.tool_calls
    assert (call.id, call.function.arguments, call.model_extra) == ("c0", "{}", {"later": "ab"})
    assert call.function.model_extra == {"strict": True}
    assert events[0] == OtherDelta({"reasoning_content": "be", "audio": {"id": "u", "data": "x"}, "notes": [1]})


async def test_a_tool_call_whose_function_is_no_object(connect: Any) -> None:
    """It is a failure of the server, told as such."""
    async with connect(stream_of(delta(tool_calls=[{"function": 3}]), DONE)) as (_, client):
        with pytest.raises(ConnectionFailed, match="unexpected form"):
            async with client.chat_stream("hi") as stream:
                await stream.result()


async def test_tokens_are_counted_for_the_piece_that_has_them(connect: Any) -> None:
    """Those of reasoning and of calls are not added to the text behind them."""

    def usage(tokens: int, accepted: int) -> dict[str, Any]:
        details = {"accepted_draft_tokens": accepted}
        return {**USAGE, "completion_tokens": tokens, "completion_tokens_details": details}

    chunks = [
        delta(usage=usage(3, 1), reasoning_content="why"),
        delta(usage=usage(5, 2), content="x"),
        delta(usage=usage(9, 5), content="y", reasoning_content="z"),
        delta(usage=usage(9, 5), tool_calls=[{"index": 0, "id": "t", "function": {"name": "f"}}]),
        delta("stop"),
        DONE,
    ]
    async with connect(stream_of(*chunks)) as (_, client):
        *events, end = await collect(client.chat_stream("hi", counts_tokens=True))
    assert [(type(one), one.num_tokens, one.num_accepted) for one in events] == [
        (OtherDelta, 3, 1), (TextDelta, 2, 1), (TextDelta, 4, 3), (OtherDelta, None, None), (OtherDelta, 0, 0),
    ]  # fmt: skip
    assert end.usage.completion_tokens == 9
