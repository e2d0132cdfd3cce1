"""How answers of a lane's own routes end, well or not; lanes that lack the route."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest

from gateway.test_gateway_lane_routes import (
    BODIES,
    EVENTS,
    GENERATE,
    MESSAGE_EVENTS,
    MESSAGES,
    NGRAM,
    RESPONSE,
    RESPONSE_EVENTS,
    RESPONSES,
    generated,
    named,
    parsed,
    sglang,
)
from gateway.world import CHAT, world
from outrider.config import RunsSection
from outrider.runtimes.scripted_replies import SENTENCE, Reply, event, json_reply
from outrider.sse import SSEDecoder
from runs.databases import locked


@pytest.mark.parametrize(("path", "events"), [(RESPONSES, RESPONSE_EVENTS), (MESSAGES, MESSAGE_EVENTS)])
async def test_streams_without_done_end_with_their_last_event(path, events):
    """The lane's bytes, the last event with the report."""
    async with sglang(path, Reply(200, EVENTS, events)) as w:
        async with w.post(BODIES[path] | {"stream": True}, path) as response:
            raw = await response.read()
        outcome = w.outcomes[-1][1]
    assert raw.startswith(b"".join(events[:-1]) + events[-1][:-3] + b',"outrider":')
    assert parsed(raw)[-1]["outrider"]["effective"] == {"drafter": "ngram", "k": 7}
    assert (outcome.status, outcome.num_completion_tokens) == (200, 4)


async def test_an_error_event_of_openai_s_shape_ends_a_stream_of_responses():
    """Its fields are at the top of the event; it is told once, with the lane's code."""
    failed = named("error", code="server_error", message="out of memory", param=None)
    async with sglang(RESPONSES, Reply(200, EVENTS, (*RESPONSE_EVENTS[:2], 0.05, failed))) as w:
        async with w.post(BODIES[RESPONSES] | {"stream": True}, RESPONSES) as response:
            raw = await response.read()
        assert (w.outcomes[-1][1].status, w.outcomes[-1][1].error_code) == (500, "server_error")
    assert [one["message"] for one in parsed(raw) if one["type"] == "error"] == ["out of memory"]


async def test_responses_without_a_count_are_complete_too():
    """A last event is one by its type."""
    last = named("response.completed", response={"object": "response", "usage": None})
    async with sglang(RESPONSES, Reply(200, EVENTS, (*RESPONSE_EVENTS[:2], last))) as w:
        async with w.post(BODIES[RESPONSES] | {"stream": True}, RESPONSES) as response:
            raw = await response.read()
        assert (w.outcomes[-1][1].status, w.outcomes[-1][1].num_completion_tokens) == (200, None)
    assert "outrider" in parsed(raw)[-1]


@pytest.mark.parametrize(
    ("path", "steps", "kind"),
    [
        (RESPONSES, RESPONSE_EVENTS[:2], "error"),
        (RESPONSES, (RESPONSE_EVENTS[0], named("response.failed", response={"error": {"message": "no"}})), "error"),
        (MESSAGES, MESSAGE_EVENTS[:2], "error"),
        (MESSAGES, (MESSAGE_EVENTS[0], named("error", error={"type": "api_error", "message": "no"})), "error"),
        (GENERATE, (event(generated("a")), event({"error": {"message": "no", "code": 503}})), None),
    ],
)
async def test_a_stream_that_breaks_says_so_in_the_route_s_shape(path, steps, kind):
    """An event named error on the two newer routes, a bare one on SGLang's own."""
    async with sglang(path, Reply(200, EVENTS, (steps[0], 0.05, *steps[1:]))) as w:
        async with w.post(BODIES[path] | {"stream": True}, path) as response:
            raw = await response.read()
        assert w.outcomes[-1][1].status in (502, 503)
    last = SSEDecoder().feed(raw)[-1]
    body = json.loads(last.data)
    assert (last.event, body.get("type")) == (kind, kind)
    assert (body if path == RESPONSES else body["error"])["message"]


async def test_errors_of_messages_are_anthropic_s():
    """The envelope and the name by the status; our code stands in it too."""
    async with sglang(MESSAGES, json_reply({"type": "error", "error": {"type": "x", "message": "bad"}}, 400)) as w:
        async with w.post(BODIES[MESSAGES], MESSAGES) as response:
            theirs = response.status, await response.json()
        async with w.post(BODIES[MESSAGES] | {"model": "other"}, MESSAGES) as response:
            ours = response.status, await response.json()
    assert theirs[0] == 400 and theirs[1]["type"] == "error"
    assert theirs[1]["error"]["type"] == "invalid_request_error" and theirs[1]["error"]["message"] == "bad"
    assert (ours[0], ours[1]["error"]["type"]) == (404, "not_found_error")
    assert ours[1]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_a_lane_without_the_route_is_asked_by_way_of_chat(path):
    """With a plan, which chat carries."""
    async with world() as w, w.post(BODIES[path], path) as response:
        assert response.status == 200
        assert (await response.json())["outrider"]["effective"]
        assert w.scripted.requests[-1].path == CHAT
        assert "custom_params" in w.scripted.requests[-1].json()


@pytest.mark.parametrize(
    ("path", "fields"), [(MESSAGES, {"service_tier": "x"}), (RESPONSES, {"previous_response_id": "resp_x"})]
)
async def test_a_lane_that_is_down_is_not_one_without_the_route(path, fields):
    """What its own route may take is not refused in its absence, but to be tried again."""
    async with sglang(path, json_reply({})) as w:
        w.scripted.is_ready = False
        w.lane.fails("broke")
        async with w.post(BODIES[path] | fields, path) as response:
            assert (response.status, response.headers["x-should-retry"]) == (503, "true")


async def test_a_response_in_the_background_is_told_by_us_and_shown_whole(tmp_path):
    """In our own way of asking too, and where the lane has the route: its events are not kept as an object."""
    async with world(runs=RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite")) as w:
        w.scripted.info, w.scripted.overrides[RESPONSES] = dict(NGRAM), Reply(200, EVENTS, RESPONSE_EVENTS)
        w.lane.fails("asked again")
        await w.lane.wait_until_ready()
        fields = {"stream": True, "outrider": {"background": True}}
        async with w.post(BODIES[RESPONSES] | fields, RESPONSES) as response:
            made = await response.json()
        async with w.http.get(f"{w.gateway.url}/outrider/runs/{made['id']}/events") as events:
            await events.read()
        async with w.http.get(f"{w.gateway.url}/v1/responses/{made['id']}") as response:
            shown = await response.json()
    assert (shown["status"], shown["id"]) == ("completed", made["id"])
    assert shown["output"][0]["content"][0]["text"] == "".join(SENTENCE)


def told_by_the_lane(request):
    """A response with the id that the request gives it, as SGLang has it."""
    body = request.json()
    part = {"type": "output_text", "text": "hi", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    response = RESPONSE | {"id": body["request_id"], "output": [item]}
    if body.get("stream"):
        last = named("response.completed", response=response, sequence_number=7)
        return Reply(200, EVENTS, (*RESPONSE_EVENTS[:2], last))
    return json_reply(response)


@asynccontextmanager
async def stored(folder, **options):
    """A lane that has the route, behind a gateway that has a store."""
    runs = RunsSection(url=f"sqlite+aiosqlite:///{folder}/runs.sqlite", **options)
    async with world(runs=runs) as w:
        w.scripted.info, w.scripted.overrides[RESPONSES] = dict(NGRAM), told_by_the_lane
        w.lane.fails("asked again")
        await w.lane.wait_until_ready()
        yield w


async def test_responses_of_the_lane_s_own_route_are_got_listed_continued_and_deleted(tmp_path):
    """Lanes forget them: they are kept as they were told, before the client hears of their end."""
    async with stored(tmp_path) as w:

        async def ask(way, path, **params):
            async with w.http.request(way, f"{w.gateway.url}{RESPONSES}/{path}", params=params) as response:
                return response.status, await response.json()

        async with w.post(BODIES[RESPONSES], RESPONSES) as response:
            whole = await response.json()
        async with w.post(BODIES[RESPONSES] | {"stream": True}, RESPONSES) as response:
            raw = await response.read()
            streamed = parsed(raw)[-1]["response"]
        assert b"".join(RESPONSE_EVENTS[:2]) in raw and "outrider" in parsed(raw)[-1]
        for made in (whole, streamed):
            assert await ask("GET", made["id"]) == (200, made)
            items = (await ask("GET", made["id"] + "/input_items"))[1]["data"]
            assert [item["content"][0]["text"] for item in items] == ["hello"]
            assert await ask("POST", made["id"] + "/cancel") == (200, made)
        more = {"input": "go on", "model": "scripted", "previous_response_id": streamed["id"]}
        async with w.post(more, RESPONSES) as response:
            assert response.status == 200
        said = [(one["role"], one["content"]) for one in w.upstream.json()["messages"]]
        assert said == [("user", "hello"), ("assistant", "hi"), ("user", "go on")]
        assert (await ask("DELETE", whole["id"]))[1]["deleted"] is True
        async with w.post(BODIES[RESPONSES] | {"store": False}, RESPONSES) as response:
            unkept = await response.json()
        for missing in (whole["id"], unkept["id"]):
            assert (await ask("GET", missing))[0] == 404


@pytest.mark.parametrize("answer", [RESPONSE | {"id": "../1"}, [RESPONSE], RESPONSE | {"id": None}])
async def test_a_response_without_an_id_of_ours_is_told_and_stored_nowhere(tmp_path, answer):
    """Which is an error only where it was to be stored."""
    async with stored(tmp_path) as w:
        w.scripted.overrides[RESPONSES] = lambda request: json_reply(answer)
        for store, code in ((None, 200), (True, 503)):
            async with w.post(BODIES[RESPONSES] | {"store": store}, RESPONSES) as response:
                raw = await response.read()
            assert response.status == code, raw
            assert (b"no id" in raw) == (code == 503)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_that_is_to_be_stored_and_cannot_be_is_an_error(tmp_path, is_stream):
    """One that need not be is told all the same."""
    async with stored(tmp_path, timeout_s=0.2) as w:
        db = await locked(tmp_path)
        for store, is_told in ((None, True), (True, False)):
            body = BODIES[RESPONSES] | {"stream": is_stream, "store": store}
            async with w.post(body, RESPONSES) as response:
                raw = await response.read()
            assert (b'"status":"completed"' in raw) == is_told
            assert (b"store_unavailable" in raw) != is_told
        db.close()
