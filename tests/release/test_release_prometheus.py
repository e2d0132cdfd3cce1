"""Prometheus itself, as Debian has it: it reads the files that ship, scrapes a gateway, and answers every query."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from not_run import not_run
from outrider.app import serving
from outrider.config import Config, RunsSection, ServerSection
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from release.processes import asked, ran
from shipping.dashboards import queries
from shipping.dockerfiles import DOCKER

pytestmark = pytest.mark.release

CONFIG, ALERTS = DOCKER / "prometheus" / "prometheus.yml", DOCKER / "prometheus" / "alerts.yml"
_START_S = 60.0


@pytest.fixture(autouse=True)
def prometheus() -> None:
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        not_run("Prometheus' own reading of alerts and queries: apt-get install prometheus")


def test_promtool_accepts_the_files() -> None:
    """The configuration, and every alert."""
    ran("promtool", "check", "config", "--syntax-only", CONFIG)
    ran("promtool", "check", "rules", ALERTS)


@asynccontextmanager
async def scraping(gateway: str, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A Prometheus for the block, set up as it ships but for where things are; and a client of it."""
    config = CONFIG.read_text(encoding="utf-8")
    for shipped, here in (
        ("scrape_interval: 10s", "scrape_interval: 1s\n  evaluation_interval: 1s"),
        ("/etc/prometheus/alerts.yml", str(ALERTS)),
        ("gateway:8000", urlsplit(gateway).netloc),
    ):
        assert shipped in config
        config = config.replace(shipped, here)
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}",
        f"--web.listen-address={address}",
    )
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec("prometheus", *options, stdout=log, stderr=log)
    try:
        async with aiohttp.ClientSession(f"http://{address}") as http:
            yield http
    finally:
        process.terminate()
        await process.wait()


async def answer(http: aiohttp.ClientSession, path: str, **query: str) -> Any:
    """What its API says."""
    async with http.get(f"/api/v1/{path}", params=query) as response:
        found = await response.json()
    assert found["status"] == "success", f"{query}: {found}"
    return found["data"]


async def until(http: aiohttp.ClientSession, query: str) -> None:
    """Wait until it has started and the query has a result."""
    async with asyncio.timeout(_START_S):
        while True:
            with suppress(aiohttp.ClientError):
                if (await answer(http, "query", query=query))["result"]:
                    return
            await asyncio.sleep(0.2)


async def test_it_scrapes_a_gateway_and_answers_every_query(tmp_path: Path) -> None:
    """What dashboard and alerts ask can be answered, and no alert fires for a healthy gateway."""
    config = Config(server=ServerSection(port=0), runs=RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite"))
    async with ScriptedLane() as scripted, serving(config, lanes=[Lane("a", scripted.url)]) as gateway:
        await asked(gateway.url)
        async with scraping(gateway.url, tmp_path) as http:
            await until(http, 'outrider_requests_total{job="outrider"} > 0')
            for expression in queries().values():
                await answer(http, "query", query=expression.replace("$__rate_interval", "5m"))
            async with asyncio.timeout(_START_S):
                while True:
                    (group,) = (await answer(http, "rules"))["groups"]
                    if all(rule["health"] != "unknown" for rule in group["rules"]):
                        break
                    await asyncio.sleep(0.2)
            assert [rule for rule in group["rules"] if rule["health"] != "ok"] == []
            assert [rule["name"] for rule in group["rules"] if rule["state"] != "inactive"] == []
