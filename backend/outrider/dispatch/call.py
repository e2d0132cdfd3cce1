"""A checked request on its way in: what the gateway hands to the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.core import Hints
from outrider.dispatch.admission import ANYBODY, Claim
from outrider.dispatch.keys import Key


@dataclass(slots=True)
class Call:
    """One generation request whose known fields have been checked."""

    request_id: str
    path: str
    """The route, the same at the lane."""
    raw: bytes
    """The body as the client sent it."""
    body: Mapping[str, Any]
    """The parsed body, as the policy reads it."""
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
