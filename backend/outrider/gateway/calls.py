"""From a route, a body and headers to a checked call, whether they come from a client or from the store of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.config import AdmissionSection
from outrider.core import Hints
from outrider.dispatch.call import Call
from outrider.dispatch.keys import Key
from outrider.gateway.access import claim_of, refuse_internal
from outrider.gateway.schema import parse_body

#: Client headers that go on to the lane.
_FORWARDED = ("traceparent", "tracestate")
_NO_HINTS = Hints()


@dataclass(slots=True)
class Arrival:
    """A request but for its body: who sent it where, and when."""

    path: str
    headers: Mapping[str, str]
    """Found by names in lower case."""
    request_id: str
    key: Key | None
    at_s: float


def read_call(arrival: Arrival, raw: bytes, limits: AdmissionSection) -> Call:
    """The call. InvalidRequest, Forbidden."""
    path, headers, key = arrival.path, arrival.headers, arrival.key
    parsed = parse_body(path, raw)
    fields = parsed.fields
    refuse_internal(parsed.body, key)
    forwarded = {name: headers[name] for name in _FORWARDED if name in headers}
    return Call(
        request_id=arrival.request_id,
        path=path,
        raw=raw,
        body=fields.for_policy(parsed.body),
        hints=fields.outrider or _NO_HINTS,
        model=fields.model,
        is_stream=fields.stream is True,
        wants_stats=parsed.body.get("return_spec_tokens_details") is True,
        num_choices=fields.num_choices,
        arrived_at_s=arrival.at_s,
        headers=forwarded | {"x-request-id": arrival.request_id},
        client_headers=headers,
        claim=claim_of(headers, key, limits),
        key=key,
    )
