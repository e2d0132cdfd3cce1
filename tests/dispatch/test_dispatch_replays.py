"""Finished answers teach look-ups, streamed or whole, within bounds of memory and time."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from dispatch.test_dispatch_dispatcher import make_call
from outrider.core import Outcome
from outrider.dispatch.replays import Kept, Replays
from outrider.gateway.schema import parse_body

PROMPT = {"messages": [{"role": "user", "content": "Say: the cat"}]}


class Lessons:
    """What was to be learnt, in so many bits a text."""

    def __init__(self, num_bits=1):
        self.num_bits, self.found = num_bits, []

    def __call__(self, decision, written):
        for _ in range(self.num_bits):
            yield
        self.found.append(written)


def chunk(text):
    return orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


def whole(text="the cat sat"):
    return Outcome(200, text=text)


async def rest(replays):
    while not replays.is_free:
        await asyncio.sleep(0.001)


async def test_whole_and_streamed_answers_teach_the_same():
    """In pieces beside the prompt's; what is in a stream beside text is passed over."""
    lessons = Lessons()
    replays = Replays(lessons)
    replays.end(make_call(body=PROMPT), whole(), None, None)
    await rest(replays)
    call = make_call(body=PROMPT, is_stream=True)
    kept = replays.keep(call)
    for data in (chunk("the cat"), b"{broken", b'{"usage": {}}', chunk(" sat"), b"[DONE]"):
        kept.add(data)
    replays.end(call, Outcome(200), None, kept)
    await rest(replays)
    assert lessons.found == [([b"Say", b":", b" the", b" cat"], [b"the", b" cat", b" sat"])] * 2


@pytest.mark.parametrize("outcome", [Outcome(499, text="the cat"), Outcome(200)])
async def test_only_answers_with_text_teach(outcome):
    """What was broken off does not, nor what has no text."""
    lessons = Lessons()
    replays = Replays(lessons)
    replays.end(make_call(body=PROMPT), outcome, None, None)
    await asyncio.sleep(0.01)
    assert lessons.found == []


async def test_one_at_a_time_and_then_a_rest():
    """Others run in between, and what comes meanwhile or too soon is let go."""
    lessons = Lessons(num_bits=20_000)
    replays = Replays(lessons)
    replays.end(make_call(body=PROMPT), whole(), None, None)
    num_turns = 0
    while not lessons.found:
        replays.end(make_call(body=PROMPT), whole("other"), None, None)
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 3
    await asyncio.sleep(0)
    assert not replays.is_free
    replays.end(make_call(body=PROMPT), whole("other"), None, None)
    await rest(replays)
    assert len(lessons.found) == 1


def test_what_is_kept_of_streams_is_bounded():
    """In events and bytes of one, and in streams; those of several choices are not kept."""
    replays = Replays(Lessons())
    call = make_call(body=PROMPT, is_stream=True)
    assert replays.keep(make_call(body=PROMPT)) is None
    assert replays.keep(make_call(body=PROMPT, is_stream=True, num_choices=2)) is None
    all_kept = [replays.keep(call) for _ in range(100)]
    assert sum(kept is not None for kept in all_kept) == 16
    for kept in all_kept:
        replays.end(call, Outcome(499), None, kept)
    assert replays.keep(call) is not None
    few, many = Kept(), Kept()
    for _ in range(1000):
        few.add(b"x" * 10_000)
        many.add(b"x")
    assert few.num_bytes < 80_000
    assert len(many.events) == 300


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "Say: the cat"}),
        ("/v1/responses", {"input": "Say: the cat"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Say: the cat"}]}),
    ],
)
async def test_whole_answers_of_every_route_teach(path, body):
    """The prompt is read from the body as its route writes it."""
    lessons = Lessons()
    replays = Replays(lessons)
    parsed = parse_body(path, orjson.dumps(body))
    replays.end(make_call(path=path, body=parsed.fields.for_policy(parsed.body)), whole(), None, None)
    await rest(replays)
    [written] = lessons.found
    assert b"".join(written.prompt).strip() == b"Say: the cat"
    assert written.answer == [b"the", b" cat", b" sat"]


async def test_a_prompt_in_token_ids_teaches_nothing():
    """Its drafts come from text that is not known here: an answer alone would look as if they were never right."""
    lessons = Lessons()
    replays = Replays(lessons)
    replays.end(make_call(body={"prompt": [1, 2, 3]}), whole(), None, None)
    await rest(replays)
    assert lessons.found == [([], [])]
