"""What is done for a call: by the lane's own route where it has it, by way of chat where it has not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any

import orjson

from outrider.dispatch.call import Call
from outrider.dispatch.run import Run
from outrider.errors import APIError, InvalidRequest, RouteNotFound, RunNotFound, StoreUnavailable
from outrider.gateway.access import seen_tenant
from outrider.gateway.relay import Relay, whole_body
from outrider.gateway.stream import Keep, KeptRelay, StreamRelay
from outrider.gateway.translate import messages_request, responses_request
from outrider.gateway.translate.messages_answer import MessagesAnswer
from outrider.gateway.translate.relayed import Answer, Messages, Responses, TranslatedRelay, translated_body
from outrider.gateway.translate.responses_answer import ResponsesAnswer
from outrider.runs.book import RunBook
from outrider.runs.record import Record
from outrider.runtimes.dialects import MESSAGES, RESPONSES
from outrider.runtimes.pool import Pool

_CHAT = "/v1/chat/completions"
#: Headers that may be secrets, by what stands in their names.
_SECRET = re.compile(r"auth|cookie|key|secret|token")
#: Of responses that can be asked for in a path.
_GOOD_ID = re.compile(r"resp_[A-Za-z0-9_-]{1,59}")


@dataclass(slots=True)
class Job:
    """A call on its way to a lane, and how its answer is told."""

    id: str | None
    """Of the run that is taken up again, or of the response; None: a run gets a new one."""
    client: Call
    """As the client means it."""
    call: Call
    """As the lane gets it."""
    answer: Callable[[], Answer] | None = None
    """Begins the answer, anew for each attempt; None: the lane's own words."""
    keep: Keep | None = None
    """Stores the lane's own words, where they are a response; None: nobody does."""

    @property
    def is_background(self) -> bool:
        """Whether the client asked for a run in the background, in either way."""
        return self.client.hints.background or self.is_background_response

    @property
    def is_background_response(self) -> bool:
        """In OpenAI's own way."""
        return is_background_response(self.client)

    def relay(self, run: Run) -> Relay:
        """What turns the lane's events into the client's bytes."""
        if self.answer is not None:
            return TranslatedRelay(run, self.answer())
        return StreamRelay(run) if self.keep is None else KeptRelay(run, self.keep)

    async def body(self, run: Run) -> tuple[bytes, Mapping[str, str]]:
        """The whole answer and headers. As `whole_body`; StoreUnavailable when it was to be stored and is not."""
        raw, headers = await whole_body(run)
        told = raw if self.answer is None else await translated_body(raw, self.answer())
        if self.keep is not None:
            await self.keep(raw)
        run.succeed()
        return told, headers

    def record(self) -> Record:
        """What is stored of it."""
        return record_of(self.client, self.id or f"run_{token_hex(16)}")


class Desk:
    """Makes jobs of calls."""

    def __init__(self, pool: Pool, book: RunBook | None) -> None:
        self._pool = pool
        self._book = book

    async def job(self, call: Call, run: str | None = None) -> Job:
        """`run` is the id of a run that is taken up again.

        InvalidRequest, StoreUnavailable; ModelNotFound, LaneUnavailable where it depends on the lanes.
        """
        if call.path == RESPONSES:
            return await self._response(call, run or f"resp_{token_hex(16)}")
        if call.path == MESSAGES and not self._has_route(call):
            begin = partial(_messages, call, self._model(call))
            chat = messages_request.to_chat(_said(call))
            return Job(run, call, _as_chat(call, chat), begin)
        return Job(run, call, call)

    async def _response(self, call: Call, response_id: str) -> Job:
        body, is_run = call.body, call.hints.background or is_background_response(call)
        is_ours = is_run or not self._has_route(call)
        has_store = self._book is not None and body.get("store") is not False
        keep = _Keeping(self._book, call, is_run=is_run) if self._book and has_store else None
        history = await self._history(call, is_ours)
        if history is None:
            return Job(response_id, call, call, keep=keep)
        if body.get("store") is True and self._book is None:
            raise InvalidRequest("store: no store is configured (runs.url)", param="store")
        if body.get("store") is False and is_run:
            raise InvalidRequest("store: what runs in the background is stored", param="store")
        begin = partial(ResponsesAnswer, response_id, body, self._model(call), time.time())
        chat = responses_request.to_chat(_said(call), history)
        return Job(response_id, call, _as_chat(call, chat), lambda: Responses(begin(), keep))

    async def _history(self, call: Call, is_ours: bool) -> list[dict[str, Any]] | None:
        """Messages of the conversation that is continued; None when the lane's own route is to know it."""
        previous = call.body.get("previous_response_id")
        if previous is None or self._book is None:
            if previous is not None and is_ours:
                raise _no_previous(previous)
            return [] if is_ours else None
        turns: list[list[dict[str, Any]]] = []
        while previous is not None:
            try:
                record = await self._book.get(str(previous), seen_tenant(call.key))
            except RunNotFound:
                if turns or is_ours:
                    raise _no_previous(previous) from None
                return None
            if record.path != RESPONSES or record.status != "completed" or record.answer is None:
                raise _no_previous(previous)
            body = orjson.loads(record.body)
            turns.append(_turn(body, orjson.loads(record.answer)))
            previous = body.get("previous_response_id")
        return [message for turn in reversed(turns) for message in turn]

    def _has_route(self, call: Call) -> bool:
        """ModelNotFound; LaneUnavailable, since nobody knows what a lane that is down would do."""
        try:
            return bool(self._pool.ready(self._pool.card(call.model).id, call.path))
        except RouteNotFound:
            return False

    def _model(self, call: Call) -> str | None:
        try:
            return self._pool.card(call.model).id
        except APIError:
            return call.model


def _messages(call: Call, model: str | None) -> Messages:
    return Messages(MessagesAnswer(call.body, model))


@dataclass(frozen=True, slots=True)
class _Keeping:
    """Stores a response; one that is asked to be stored and cannot be is an error."""

    book: RunBook
    call: Call
    is_run: bool
    """It is stored already, with its answer when it ends."""

    async def __call__(self, answer: bytes) -> bool:
        if self.is_run:
            return True
        response = orjson.loads(answer)
        response_id = response.get("id") if isinstance(response, dict) else None
        try:
            if not (isinstance(response_id, str) and _GOOD_ID.fullmatch(response_id)):
                raise StoreUnavailable("the lane's response has no id by which it could be asked for")
            await self.book.keep(replace(record_of(self.call, response_id), status="completed", answer=answer))
        except StoreUnavailable:
            if self.call.body.get("store") is True:
                raise
            return False
        return True


def is_background_response(call: Call) -> bool:
    """Whether it is OpenAI's own way to ask for a run in the background."""
    return call.path == RESPONSES and call.body.get("background") is True


def record_of(call: Call, run: str) -> Record:
    """A run of the call that waits to begin."""
    now, deadline_s = time.time(), call.claim.deadline_s
    return Record(
        id=run,
        path=call.path,
        tenant=call.claim.tenant,
        key=None if call.key is None else call.key.section.name,
        request_id=call.request_id,
        body=call.raw,
        headers={k.lower(): v for k, v in call.client_headers.items() if not _SECRET.search(k.lower())},
        created_at=now,
        deadline_at=None if deadline_s is None else now + deadline_s - time.monotonic(),
    )


def _said(call: Call) -> dict[str, Any]:
    """The body as the client sent it, without what was added for the policy."""
    body: dict[str, Any] = orjson.loads(call.raw)
    return body


def _as_chat(call: Call, chat: dict[str, Any]) -> Call:
    return replace(call, path=_CHAT, raw=orjson.dumps(chat), body=chat)


def _turn(body: Mapping[str, Any], answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return responses_request.messages_of([*responses_request.input_items(body), *answer["output"]])


def _no_previous(previous: object) -> InvalidRequest:
    return InvalidRequest(f"the response {previous!r} is not stored", param="previous_response_id")
