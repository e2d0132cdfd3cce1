"""What is kept of one run, and how a run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Life of a run, in OpenAI's words.
Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
OPEN: tuple[Status, ...] = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class Record:
    """One run, as it is stored. Times are seconds since the epoch, since they outlive the process."""

    id: str
    path: str
    """The client's route."""
    tenant: str
    key: str | None
    """Name of the API key; None when none were in force."""
    request_id: str
    body: bytes
    """As the client sent it."""
    headers: Mapping[str, str]
    """As the client sent them, without those that may be secrets."""
    created_at: float
    deadline_at: float | None = None
    status: Status = "queued"
    owner: str | None = None
    """The process that looks after it; None when none does."""
    beat_at: float = 0.0
    """When the owner last said that it is alive."""
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    is_cancelling: bool = False
    num_events: int = 0
    """Events are numbered from 1."""
    answer: bytes | None = None
    """The whole answer as JSON, where it is one object; a stream of chunks has none."""
    error: Mapping[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Nothing more will come of it."""
        return self.status not in OPEN


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends: stored in one piece, so that the last event and the status agree."""

    status: Status
    events: list[bytes] = field(default_factory=list)
    """The last ones."""
    answer: bytes | None = None
    error: Mapping[str, Any] | None = None
