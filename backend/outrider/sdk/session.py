"""A conversation that grows only at its end, so that a lane finds its beginning in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.sdk.phase import Phase
    from outrider.sdk.tool import ToolAnswer


class Session:
    """An agent's conversation over several runs.

    Messages are added and never rewritten, and only whole steps are: a call of tools with all its answers, or an
    answer. So each request begins with all of the one before it, which the lane need not compute again, and a run
    that failed or was cancelled leaves nothing half-said. One run at a time: RuntimeError for a second one.

    Example::

        session = Session()
        await agent.run("Read notes.txt.", session=session)
        result = await agent.run("Now fix its typos.", session=session)
        print(len(session.messages))
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        """`messages` begin it, in OpenAI's form."""
        self._messages = [dict(message) for message in messages]
        self._sources: dict[Phase, ToolAnswer] = {}
        self._is_in_use = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the conversation so far. Raises nothing."""
        return list(self._messages)

    def add(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Put messages at the end. Raises nothing."""
        self._messages += [dict(message) for message in messages]

    @property
    def sources(self) -> tuple[ToolAnswer, ...]:
        """What tools gave to be edited or quoted so far: the last of each kind. Raises nothing."""
        return tuple(self._sources.values())

    def take(self, messages: Sequence[Mapping[str, Any]], answers: Sequence[ToolAnswer]) -> None:
        """A turn's messages, and the answers of its tools. Raises nothing."""
        self.add(messages)
        for answer in answers:
            if answer.leads_to in ("edit", "quote") and answer.error is None:
                self._sources[answer.leads_to] = answer

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Around a run; RuntimeError when another one is on its way."""
        if self._is_in_use:
            raise RuntimeError("the session is in use by another run")
        self._is_in_use = True
        try:
            yield
        finally:
            self._is_in_use = False
