from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import packaged_data
from outrider.core import Hints, LaneAbility, LaneView, Outcome
from outrider.dispatch.call import Call
from outrider.dispatch.replays import Kept
from outrider.dispatch.run import Run
from outrider.gateway.stream import StreamRelay
from outrider.policy.features import extract_features
from outrider.policy.loader import Source, load_policies
from outrider.runtimes.client import LaneClient
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.lane import Lane
from outrider.sse import SSEDecoder
from outrider.telemetry.metrics import Metrics

LANE = LaneAbility.embedded("lane")
POLICIES = load_policies(Source([packaged_data("policies")]))
DONE = b"data: [DONE]\n\n"
DETAILS = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 1, 1]}


def make_run(*, num_choices=1, wants_stats=False, **hints):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    asked = Hints(**hints)
    decision = POLICIES.decide(extract_features(body, asked), asked, [LaneView(LANE, None)], 0.0)
    call = Call(
        request_id="r", path="/v1/chat/completions", raw=b"{}", body=body, hints=asked, model=None, is_stream=True,
        wants_stats=wants_stats, num_choices=num_choices, arrived_at_s=0.0,
    )  # fmt: skip
    return Run(call, LaneClient(Metrics()), Lane("lane"), "http://nowhere", "m", decision, Outcome(500))


def relayed(run, raw: bytes, cut: int | None = None) -> bytes:
    """The client's bytes for a lane's stream that comes in pieces of `cut` bytes."""
    decoder, relay = SSEDecoder(), StreamRelay(run)
    size = cut or max(len(raw), 1)
    out = b"".join(relay.feed(decoder.feed(raw[at : at + size])) for at in range(0, len(raw), size))
    return out + relay.end()


def chunk(**fields) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(content="a", index=0):
    return chunk(choices=[{"index": index, "delta": {"content": content}, "finish_reason": None}])


def finish(index=0, reason="stop"):
    return chunk(choices=[{"index": index, "delta": {}, "finish_reason": reason}])


def parsed(raw: bytes) -> list[dict]:
    datas = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part.startswith(b"data")]
    return [json.loads(data) for data in datas if data != b"[DONE]"]


STATS = chunk(choices=[], sglext={"spec_tokens_details": DETAILS})
USAGE = chunk(choices=[], usage={"completion_tokens": 5})


def test_what_passes_is_kept_where_it_is_to_teach():
    """As it came, whether or not the relay had to read it."""
    run = make_run()
    run.kept = Kept()
    relayed(run, text("b") + text("c") + finish() + DONE)
    assert dialect_of(run.call.path).streamed_text([json.loads(data) for data in run.kept.events[:-1]]) == "bc"
    assert run.kept.events[-1] == b"[DONE]"


def test_the_report_stands_in_the_finish_chunk_with_the_statistics_that_come_after_it():
    """And the statistics' own chunk is gone."""
    run = make_run(drafter="ngram", k=3)
    got = relayed(run, text() + finish() + STATS + USAGE + DONE)
    events = parsed(got)
    assert [sorted(event) for event in events] == [
        ["choices"], ["choices", "metrics", "outrider"], ["choices", "usage"],
    ]  # fmt: skip
    assert events[1]["outrider"]["observed"]["num_accepted"] == 3
    assert got.endswith(USAGE + DONE)
    assert run.outcome.num_completion_tokens == 5


@pytest.mark.parametrize("tail", [DONE, USAGE + DONE, STATS + DONE])
def test_every_way_a_stream_can_end_carries_one_report(tail):
    """With and without usage and statistics."""
    got = parsed(relayed(make_run(), text() + finish() + tail))
    assert sum("outrider" in event for event in got) == 1


def test_only_the_last_of_several_choices_gets_the_report():
    """An early finish of another choice is not held up by texts that still come."""
    run = make_run(num_choices=2)
    relay, decoder = StreamRelay(run), SSEDecoder()
    assert relay.feed(decoder.feed(finish(1))) == b""
    assert relay.feed(decoder.feed(text())) == finish(1) + text()
    got = relay.feed(decoder.feed(finish(0) + STATS + DONE))
    assert parsed(got)[0]["outrider"]["observed"]
    assert "metrics" not in parsed(got)[0]


def test_two_finishes_in_a_row():
    """The first goes as it came, the second has the report."""
    got = relayed(make_run(num_choices=2), finish(0) + finish(1) + DONE)
    assert got.startswith(finish(0))
    assert "outrider" in parsed(got)[1]


def test_what_comes_between_the_finish_and_the_end_keeps_its_order():
    """Hidden states and comments wait behind the finish chunk."""
    hidden = chunk(choices=[{"index": 0, "delta": {"hidden_states": [1]}, "finish_reason": None}])
    got = relayed(make_run(), finish() + hidden + b": c\n\n" + USAGE + DONE)
    assert got.endswith(hidden + b": c\n\n" + USAGE + DONE)
    assert "outrider" in parsed(got)[0]


def test_other_members_of_sglext_survive():
    """Only what we asked for is taken out."""
    both = chunk(choices=[], sglext={"spec_tokens_details": DETAILS, "cached_tokens_details": {"device": 1}})
    got = parsed(relayed(make_run(), finish() + both + DONE))
    assert got[1]["sglext"] == {"cached_tokens_details": {"device": 1}}
    assert got[0]["outrider"]["observed"]


def test_statistics_stay_for_those_who_asked():
    """Byte for byte, after the finish chunk."""
    got = relayed(make_run(wants_stats=True), finish() + STATS + DONE)
    assert got.endswith(STATS + DONE)


def test_a_lanes_own_metrics_are_kept():
    """Ours are put beside them."""
    own = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], metrics={"time": 1.5})
    got = parsed(relayed(make_run(), own + STATS + DONE))
    assert sorted(got[0]["metrics"]) == ["speculative_decoding", "time"]


def test_a_text_that_looks_like_a_chunk_is_a_text():
    """Names inside strings do not matter."""
    odd = text('"finish_reason":"stop","sglext":{},"error":1,"usage":{')
    assert relayed(make_run(), odd + DONE) == odd + DONE


def test_data_over_several_lines_gets_its_report():
    """An event may spread its JSON over lines."""
    spread = b'data: {"choices":\ndata: [{"index":0,"finish_reason":"stop"}]}\n\n'
    got = relayed(make_run(), spread + DONE)
    (event,) = SSEDecoder().feed(got)[:-1]
    assert json.loads(event.data)["outrider"]


def test_comments_before_the_first_event_wait_for_it():
    """So that an early failure finds the head unsent; none is lost."""
    relay, decoder = StreamRelay(make_run()), SSEDecoder()
    assert relay.feed(decoder.feed(b": ping\n\n")) == b""
    assert relay.feed(decoder.feed(text())) == b": ping\n\n" + text()


def test_what_follows_done_is_dropped():
    """[DONE] is the end."""
    assert relayed(make_run(), DONE + text()) == DONE


def test_an_end_without_done_is_a_failure():
    """What was held is given, then the stream counts as broken."""
    relay = StreamRelay(make_run())
    assert relay.feed(SSEDecoder().feed(text() + finish())) == text()
    assert relay.end() == finish()
    assert relay.failure is not None


PIECES = st.sampled_from([text(), text("é"), b": c\n\n", b"id: 1\n" + text(), text().replace(b"\n\n", b"\r\n\r\n")])


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=6), st.integers(1, 60))
def test_any_cut_of_the_bytes_gives_the_same_stream(pieces, cut):
    """Packets are not events; and all but the finish chunk is unchanged."""
    body = b"".join(pieces)
    whole = relayed(make_run(), body + finish() + USAGE + DONE)
    assert relayed(make_run(), body + finish() + USAGE + DONE, cut) == whole
    assert whole.startswith(body + finish()[:-3])
    assert whole.endswith(USAGE + DONE)


CALLS = [
    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}},
    {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]


def test_every_split_at_every_byte_gives_the_same_bytes_and_counts():
    """Several tokens and two tool calls in one delta, characters of several bytes, comments, CRLF."""
    tools = chunk(choices=[{"index": 0, "delta": {"tool_calls": CALLS}, "finish_reason": None}])
    stream = b": hi\r\n\r\n" + text("drei Wörter 世界 🎉") + tools.replace(b"\n\n", b"\r\n\r\n")
    stream += finish(reason="tool_calls") + STATS + USAGE + DONE
    whole = make_run()
    expected = relayed(whole, stream)
    events = SSEDecoder().feed(expected)
    assert json.loads(events[2].data)["choices"][0]["delta"]["tool_calls"] == CALLS
    for at in range(1, len(stream)):
        run, decoder = make_run(), SSEDecoder()
        relay = StreamRelay(run)
        got = relay.feed(decoder.feed(stream[:at])) + relay.feed(decoder.feed(stream[at:])) + relay.end()
        assert got == expected
        assert (run.outcome.num_events, run.outcome.num_completion_tokens) == (whole.outcome.num_events, 5)
