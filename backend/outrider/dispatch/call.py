"""A checked request on its way in: what the gateway hands to the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from outrider.core import Hints
from outrider.dispatch.admission import ANYBODY, Claim
from outrider.dispatch.keys import Key
from outrider.runtimes.splice import splice

#: Fields by which a client keeps cached texts apart, whole or one for each prompt.
_SALTS = ("cache_salt", "extra_key")


@dataclass(slots=True)
class Call:
    """One generation request whose known fields have been checked."""

    request_id: str
    path: str
    """The route, the same at the lane."""
    raw: bytes
    """The body as the client sent it."""
    body: Mapping[str, Any]
    """The parsed body, as the policy reads it; it has every name that `raw` has at its top, and may have more."""
    hints: Hints
    model: str | None
    """None means the only model."""
    is_stream: bool
    wants_stats: bool
    """The client itself asked for the lane's statistics."""
    num_choices: int
    """How many choices will finish: `n` times the number of prompts."""
    arrived_at_s: float
    """`time.monotonic()` of the arrival."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers to forward to the lane."""
    client_headers: Mapping[str, str] = field(default_factory=dict)
    """All that the client sent, for workloads that match on them; found by names in lower case."""
    claim: Claim = ANYBODY
    """Priority, tenant and deadline."""
    key: Key | None = None
    """The API key; None when none are in force."""

    @property
    def lane_raw(self) -> bytes:
        """The body for the lane: tenants that chose the same salt by chance, or on purpose, still share no text."""
        salts = [] if self.key is None else [name for name in _SALTS if self.body.get(name)]
        return splice(self.raw, salts, {name: self._own(self.body[name]) for name in salts}) if salts else self.raw

    def _own(self, salt: object) -> bytes:
        def own(one: object) -> object:
            return orjson.dumps([self.claim.tenant, one]).decode() if isinstance(one, str) and one else one

        return orjson.dumps([own(one) for one in salt] if isinstance(salt, list) else own(salt))
