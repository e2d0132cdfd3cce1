"""Lanes that somebody else runs: one for each URL, or for each address of its host name, as long as it is there."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

from outrider.profiles import UrlSection
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.load import LaneWatch, log_failure
from outrider.runtimes.pool import Pool

logger = logging.getLogger(__name__)

#: All addresses of a host; OSError when it has none.
Resolver = Callable[[str, int], Awaitable[list[str]]]


async def addresses_of(host: str, port: int) -> list[str]:
    """By the system's resolver, sorted."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class Roll:
    """Keeps the pool's lanes of one profile in step with the addresses that there are."""

    def __init__(
        self, profile: UrlSection, pool: Pool, client: LaneClient, resolver: Resolver = addresses_of
    ) -> None:
        self._profile = profile
        self._pool = pool
        self._client = client
        self._resolver = resolver
        self._found: dict[str, list[str]] = {}
        """What each URL of the profile stood for when its name was last resolved."""
        self._watches: dict[str, tuple[Lane, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Until cancelled; the lanes are stopped then. Names are resolved once unless the profile says `resolve`."""
        try:
            while True:
                urls = [one for url in self._profile.urls for one in await self._urls(url)]
                self._keep(urls)
                await asyncio.sleep(self._profile.refresh_s)
        finally:
            for url in list(self._watches):
                self._end(url)

    async def _urls(self, url: str) -> list[str]:
        """What `url` stands for now; what it stood for before when its name cannot be resolved at the moment."""
        url = url.rstrip("/")
        if not self._profile.resolve:
            return [url]
        parts = urlsplit(url)
        port = parts.port or 80
        try:
            found = await self._resolver(parts.hostname or "", port)
        except OSError as error:
            logger.warning("lane %s: %s cannot be resolved: %s", self._profile.name, parts.hostname, error)
            return self._found.get(url, [])
        user = "".join(parts.netloc.rpartition("@")[:2])
        hosts = (f"[{address}]" if ":" in address else address for address in found)
        urls = [urlunsplit((parts.scheme, f"{user}{host}:{port}", parts.path, "", "")) for host in hosts]
        self._found[url] = urls
        return urls

    def _keep(self, urls: list[str]) -> None:
        for url in [url for url in self._watches if url not in urls]:
            self._leave(url)
        for url in urls:
            if url not in self._watches:
                self._begin(url)
            elif (lane := self._watches[url][0]) not in self._pool.lanes:
                self._pool.add(lane)

    def _leave(self, url: str) -> None:
        """No new requests; what runs there would wait for ever if nobody saw the lane fail."""
        lane = self._watches[url][0]
        if lane in self._pool.lanes:
            logger.info("lane %s: %s is gone", self._profile.name, _address(url))
            self._pool.remove(lane)
        if not lane.num_in_flight:
            self._end(url)

    def _begin(self, url: str) -> None:
        is_only = len(self._profile.urls) == 1 and not self._profile.resolve
        name = self._profile.name if is_only else f"{self._profile.name}@{_address(url)}"
        lane = Lane(name, url, self._profile)
        self._pool.add(lane)
        watch: asyncio.Task[None] = asyncio.create_task(LaneWatch(lane, self._client).run(), name=f"watch {name}")
        watch.add_done_callback(log_failure)
        self._watches[url] = lane, watch

    def _end(self, url: str) -> None:
        lane, watch = self._watches.pop(url)
        watch.cancel()
        lane.stops()
        self._pool.remove(lane)


def _address(url: str) -> str:
    """Host and port without the user and password, since names of lanes are shown to everybody."""
    return urlsplit(url).netloc.rpartition("@")[2]
