"""Watches lanes: asks whether they are ready and how loaded they are. Starts and stops nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NoReturn

from prometheus_client.parser import text_string_to_metric_families

from outrider.core import GpuLoad, LaneLoad, LaneState
from outrider.errors import LaneFailed, LaneUnavailable
from outrider.profiles import SGLangSection
from outrider.runtimes.abilities import Abilities, read_abilities
from outrider.runtimes.client import LaneClient
from outrider.runtimes.gpus import read_gpus
from outrider.runtimes.lane import Lane, ModelCard

logger = logging.getLogger(__name__)

_STARTING_INTERVAL_S = 0.1
_LOAD_INTERVAL_S = 0.5
_ANSWER_TIMEOUT_S = 5.0
#: Polls in a row that must fail before a lane counts as failed: one lost packet is no failure.
_FAILURES_ALLOWED = 3


class LaneWatch:
    """Moves one lane between STARTING, READY, PAUSED and FAILED by what it answers."""

    def __init__(self, lane: Lane, client: LaneClient) -> None:
        self._lane = lane
        self._client = client
        self._num_failures = 0
        self._max_running: int | None = None

    async def run(self) -> NoReturn:
        """Poll until cancelled."""
        while True:
            url = self._lane.url
            if url is not None and self._lane.state is not LaneState.STOPPED:
                await self._poll(url)
            is_ready = self._lane.is_ready
            await asyncio.sleep(_LOAD_INTERVAL_S if is_ready else _STARTING_INTERVAL_S)

    async def _poll(self, url: str) -> None:
        try:
            if self._lane.is_ready:
                status, _ = await self._get(url + "/ready")
                if status != 200:
                    self._refused(url, f"/ready answers {status}")
                    return
                num_before = self._lane.num_in_flight
                load = await self._read_load(url)
                gpus = await self._read_gpus()
                if self._is_same(url):
                    self._lane.gpus = gpus
                    # What ended or began while the lane answered may be in its count or not; it is not another's.
                    self._lane.reports(load, max(num_before, self._lane.num_in_flight))
            else:
                await self._probe(url)
            self._num_failures = 0
        except LaneUnavailable:
            pass  # there are no more connections to be had here, which is no news of the lane
        except LaneFailed as error:
            self._failed(url, error)

    def _failed(self, url: str, error: LaneFailed) -> None:
        if self._is_too_often(url):
            logger.warning("lane %s stopped answering: %s", self._lane.name, error.message)
            self._lane.fails(f"stopped answering: {error.message}")

    def _refused(self, url: str, reason: str) -> None:
        if self._is_too_often(url):
            logger.warning("lane %s is paused: %s", self._lane.name, reason)
            self._lane.pauses(reason)

    def _is_too_often(self, url: str) -> bool:
        """Whether one poll more that failed changes what the lane is."""
        self._num_failures += 1
        was_well = self._lane.state in (LaneState.READY, LaneState.PAUSED)
        return was_well and self._is_same(url) and self._num_failures >= _FAILURES_ALLOWED

    def _is_same(self, url: str) -> bool:
        """False when the lane was restarted or stopped while we waited for the answer."""
        return self._lane.url == url

    async def _probe(self, url: str) -> None:
        status, _ = await self._get(url + "/ready")
        if status != 200:
            self._lane.waits(f"/ready answers {status}")
            return
        status, body = await self._get(url + "/v1/models")
        cards = _model_cards(body) if status == 200 else ()
        if not cards:
            self._lane.waits(f"/v1/models answers {status} and names no model")
            return
        abilities = await self._read_abilities(url)
        if abilities is None:
            return
        self._max_running = abilities.max_running
        load = await self._read_load(url)
        if self._is_same(url):
            self._lane.becomes_ready(cards, abilities)
            self._lane.reports(load)
            logger.info("lane %s is ready: %s", self._lane.name, ", ".join(card.id for card in cards))
            for difference in self._lane.disagreements:
                logger.warning("lane %s: %s", self._lane.name, difference)

    async def _read_abilities(self, url: str) -> Abilities | None:
        """None when the lane cannot be used, and then its reason says why."""
        status, body = await self._get(url + "/server_info")
        if status != 200 or not isinstance(body, dict):
            self._lane.waits(f"/server_info answers {status}, so nothing is known of its abilities")
            return None
        try:
            return read_abilities(body)
        except ValueError as error:
            self._lane.waits(str(error))
            return None

    async def _read_load(self, url: str) -> LaneLoad | None:
        """From `/v1/loads`; from `/metrics` where that route is missing, as in older versions of SGLang."""
        read_at_s = time.monotonic()
        status, body = await self._get(url + "/v1/loads")
        if status == 200:
            return _lane_load(body, read_at_s)
        status, text = await self._client.get_text(self._lane.name, url + "/metrics", timeout_s=_ANSWER_TIMEOUT_S)
        return _load_of_metrics(text, self._max_running, read_at_s) if status == 200 else None

    async def _read_gpus(self) -> tuple[GpuLoad, ...] | None:
        """In a thread: a driver may take its time. Only a server that we launch is known to use the GPUs here."""
        profile = self._lane.profile
        if not isinstance(profile, SGLangSection) or profile.device != "cuda":
            return None
        return await asyncio.to_thread(read_gpus, profile.gpus)

    async def _get(self, url: str) -> tuple[int, Any]:
        return await self._client.get_json(self._lane.name, url, timeout_s=_ANSWER_TIMEOUT_S)


def log_failure(task: asyncio.Task[None]) -> None:
    """For the end of a task that looks after a lane: a fault there must not be silent."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a lane is not looked after any more", exc_info=error)


def _model_cards(body: Any) -> tuple[ModelCard, ...]:
    data = body.get("data") if isinstance(body, dict) else None
    entries = data if isinstance(data, list) else []
    return tuple(
        ModelCard(entry["id"], entry)
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"]
    )


def _lane_load(body: Any, read_at_s: float) -> LaneLoad | None:
    """Sum the ranks of `/v1/loads`; None when a count is missing, since unknown is not idle."""
    loads = body.get("loads") if isinstance(body, dict) else None
    if not isinstance(loads, list) or not loads:
        return None
    running, waiting, limit = (
        _sum(loads, key) for key in ("num_running_reqs", "num_waiting_reqs", "max_running_requests")
    )
    if running is None or waiting is None or limit is None:
        return None
    usage = [load["token_usage"] for load in loads if isinstance(load.get("token_usage"), int | float)]
    speed = [load["gen_throughput"] for load in loads if isinstance(load.get("gen_throughput"), int | float)]
    return LaneLoad(
        running,
        waiting,
        limit,
        read_at_s,
        token_usage=max(usage) if len(usage) == len(loads) else None,
        # SGLang fills it in only with metrics on, and says 0 otherwise.
        tokens_per_s=sum(speed) if len(speed) == len(loads) and (any(speed) or not running) else None,
    )


#: Gauges of SGLang that together say what `/v1/loads` says.
_GAUGES = {"running": "sglang:num_running_reqs", "waiting": "sglang:num_queue_reqs"}


def _load_of_metrics(text: str, max_running: int | None, read_at_s: float) -> LaneLoad | None:
    """Sum the ranks of SGLang's gauges; None when one is missing or no number, or the running limit is not known."""
    try:
        families = list(text_string_to_metric_families(text))
        counts = {
            key: [int(sample.value) for family in families for sample in family.samples if sample.name == name]
            for key, name in _GAUGES.items()
        }
    except (ValueError, OverflowError):  # int() of NaN and of infinity
        return None
    if max_running is None or not all(counts.values()):
        return None
    return LaneLoad(sum(counts["running"]), sum(counts["waiting"]), max_running, read_at_s)


def _sum(loads: list[Any], key: str) -> int | None:
    counts = [load.get(key) if isinstance(load, dict) else None for load in loads]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if len(known) == len(counts) else None
