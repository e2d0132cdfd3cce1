"""Who may ask for what: API keys, administrators, priorities, deadlines and the fields that are not for everybody."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from outrider.config import AdmissionSection
from outrider.core import PRIORITIES, Priority
from outrider.dispatch.admission import Claim
from outrider.dispatch.keys import Key, KeyRing
from outrider.dispatch.run import DEADLINE
from outrider.errors import Forbidden, InvalidRequest

KEY = web.RequestKey("key", Key)
PRIORITY = "x-outrider-priority"

#: Of a number of milliseconds: thirty years.
_MAX_DIGITS = 12
#: What probes, scrapers and makers of clients ask for.
OPEN_PATHS = frozenset({"/live", "/ready", "/health", "/metrics", "/openapi.json"})
_ADMIN = "/outrider/"
#: Open to every key: each sees its own.
_OWN = "/outrider/runs/"
#: Fields by which parts of a fleet speak to each other, and those that run code, bypass tokenizer, queue or counts,
#: or name what is in a cache.
INTERNAL_FIELDS = frozenset({
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "custom_logit_processor",
    "data_parallel_rank", "decode_tp_size", "disagg_prefill_dp_rank", "encoder_urls", "external_trace_header",
    "http_worker_ipc", "input_embeds", "kv_hints", "log_metrics", "lora_id", "mm_content_hashes", "mm_hashes",
    "need_wait_for_mm_inputs", "num_items_assigned", "positional_embed_overrides", "priority", "received_time",
    "return_bytes", "return_hidden_states", "routed_dp_rank", "routing_key", "session_params",
})  # fmt: skip

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(keys: KeyRing) -> Middleware:
    """Lets through who has a key, where one is needed; under `/outrider/` administrators only."""

    @web.middleware
    async def middleware(request: web.Request, handler: _Handler) -> web.StreamResponse:
        path = request.path
        if not keys.is_open and path not in OPEN_PATHS:
            # Anthropic's clients send the key in a header of its own.
            secret = _bearer(request.headers.get("Authorization", "")) or request.headers.get("x-api-key")
            request[KEY] = keys.find(secret)
        is_guarded = path.startswith(_ADMIN) and not f"{path}/".startswith(_OWN)
        if is_guarded and (KEY not in request or not request[KEY].section.is_admin):
            raise Forbidden("only an administrator's key may do this")
        return await handler(request)

    return middleware


def _bearer(value: str) -> str | None:
    scheme, _, secret = value.partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None


def refuse_internal(body: Mapping[str, Any], key: Key | None) -> None:
    """InvalidRequest names a field that only some keys may send."""
    if INTERNAL_FIELDS.isdisjoint(body):
        return
    allowed = () if key is None else key.section.allowed_fields
    for name in sorted(INTERNAL_FIELDS & body.keys()):
        if name not in allowed and body[name] is not None:
            raise InvalidRequest(f"{name} is not open to this caller", param=name)


def seen_tenant(key: Key | None) -> str | None:
    """Whose runs and responses the caller may see; None: all, for an administrator's key."""
    return None if key is not None and key.section.is_admin else tenant_of(key)


def tenant_of(key: Key | None) -> str:
    """For metrics; `none` where no key was needed."""
    return "none" if key is None else key.tenant


def claim_of(headers: Mapping[str, str], key: Key | None, limits: AdmissionSection) -> Claim:
    """Priority, tenant and deadline, from the headers and the key. InvalidRequest, Forbidden."""
    return Claim(_priority(headers.get(PRIORITY), key), tenant_of(key), _deadline_s(headers.get(DEADLINE), limits))


def _priority(asked: str | None, key: Key | None) -> Priority:
    if asked is None:
        return "default" if key is None else key.usual_priority
    highest = PRIORITIES[0] if key is None else key.section.priority
    for priority in PRIORITIES:
        if priority == asked:
            if PRIORITIES.index(priority) < PRIORITIES.index(highest):
                raise Forbidden(f"{PRIORITY}: this key may ask for {highest} at most")
            return priority
    raise InvalidRequest(f"{PRIORITY}: expected one of {', '.join(PRIORITIES)}", param=PRIORITY)


def _deadline_s(given: str | None, limits: AdmissionSection) -> float | None:
    if given is None:
        limit_s = limits.request_timeout_s
        return None if limit_s is None else time.monotonic() + limit_s
    if not (given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS and int(given)):
        raise InvalidRequest(f"{DEADLINE}: expected a positive whole number of milliseconds", param=DEADLINE)
    return time.monotonic() + int(given) / 1000
