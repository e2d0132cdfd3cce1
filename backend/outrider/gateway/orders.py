"""What every process of a gateway does when an operator asks one: read files again, spare a lane, show figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outrider.errors import RouteNotFound
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import Metrics

#: Has every process carry out an order, with these values; the answers, which JSON can say.
Every = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Mapping[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Orders:
    """Carries them out in this process."""

    pool: Pool
    metrics: Metrics
    reload: Callable[[], str | None]
    """Reads policies and keys again; says what is wrong with them, None when nothing is."""
    look: Callable[[], None]
    """Sees at once which runs of ours are to be cancelled."""

    def carry_out(self, order: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """`problem` in the answer says why it could not be done."""
        match order:
            case "reload":
                return {"problem": self.reload()}
            case "drain":
                return self._drain(given["lane"], is_draining=given["is_draining"])
            case "look":
                self.look()
                return {}
            case "page":
                return {"page": self._page()}
        return {"problem": f"there is no order {order}"}

    async def here(self, order: str, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """An `Every` of a gateway that is one process."""
        return [self.carry_out(order, given)]

    def _drain(self, name: str, *, is_draining: bool) -> Mapping[str, Any]:
        # Names of lanes that come and go may differ between processes for a while; the order holds when it comes.
        with suppress(RouteNotFound):
            self.pool.drain(name, is_draining=is_draining)
        return {}

    def _page(self) -> str:
        lanes = self.pool.lanes
        return self.metrics.render(
            {one.name: one.state for one in lanes},
            {one.name: one.gpus for one in lanes},
            {one.name: one.breaker.is_open for one in lanes},
        ).decode()
