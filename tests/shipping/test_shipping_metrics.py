"""Dashboards, alerts and autoscalers ask for metrics that a running gateway has."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from outrider.app import serving
from outrider.config import Config, RunsSection, ServerSection
from outrider.engine.loop import EngineLoad
from outrider.engine.metrics import EngineMetrics
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.sdk.client import AsyncClient
from shipping.dashboards import queries
from shipping.dockerfiles import DOCKER, ROOT

_NAME = re.compile(r"\b(?:outrider_|sglang:)\w+")
#: Given by Prometheus, or by a histogram.
_ALWAYS = {"le", "instance", "job"}


def scaled_by() -> list[str]:
    """Names of metrics in the autoscalers."""
    found = []
    for one in yaml.safe_load_all((ROOT / "k8s" / "scaling.yaml").read_text(encoding="utf-8")):
        for metric in one["spec"]["metrics"]:
            if metric["type"] != "Resource":
                found.append(metric[metric["type"].lower()]["metric"]["name"])
    return found


def known(page: str) -> dict[str, set[str] | None]:
    """Every name of the page -> its labels; None where nothing was counted, so that they do not show."""
    found: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(page):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        for end in ends:
            labels = [set(sample.labels) for sample in family.samples]
            found[family.name + end] = set().union(*labels) if labels else None
    return found


async def page_of_a_gateway(folder: Path) -> str:
    """After one answered request, with a store of runs."""
    runs = RunsSection(url=f"sqlite+aiosqlite:///{folder}/runs.sqlite")
    config = Config(server=ServerSection(port=0), runs=runs)
    async with ScriptedLane() as scripted, serving(config, lanes=[lane := Lane("a", scripted.url)]) as gateway:
        await lane.wait_until_ready()
        async with AsyncClient(f"{gateway.url}/v1") as client, aiohttp.ClientSession() as http:
            await client.chat("Hello", max_tokens=8)
            async with http.get(f"{gateway.url}/metrics") as response:
                return await response.text()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str] | None]:
    """Of a gateway and of a lane: name -> labels."""
    page = asyncio.run(page_of_a_gateway(tmp_path_factory.mktemp("runs")))
    return known(page) | known(EngineMetrics().render(EngineLoad()).decode())


def test_every_query_asks_for_what_is_there(metrics: dict[str, set[str] | None]) -> None:
    """Names are those of the page, and labels those that its samples carry."""
    asked = queries()
    assert len(asked) > 30
    for where, expression in asked.items():
        names = _NAME.findall(expression)
        assert set(names) <= metrics.keys(), where
        grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
        labels = grouped | set(re.findall(r"[{,]\s*(\w+)\s*=", expression))
        shown = [has for name in names if (has := metrics[name]) is not None]
        if len(shown) == len(names):
            assert labels <= _ALWAYS.union(*shown), where


def test_autoscalers_ask_for_the_queue(metrics: dict[str, set[str] | None]) -> None:
    """By the name under which the gateway tells it."""
    assert scaled_by() == ["outrider_queued"]
    assert set(scaled_by()) <= metrics.keys()


def test_every_metric_of_requests_is_on_the_dashboard(metrics: dict[str, set[str] | None]) -> None:
    """What is counted can be seen, but for what only lanes have that the gateway starts itself."""
    text = (DOCKER / "grafana" / "dashboards" / "outrider.json").read_text(encoding="utf-8")
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _NAME.findall(text)}
    counted = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metrics if name.startswith("outrider_")}
    counted = {name for name in counted if not name.endswith("_created")}
    left_out = {"outrider_gpu_utilisation", "outrider_gpu_memory_used_bytes"}
    assert counted - shown == left_out


def test_provisioning_finds_the_dashboard() -> None:
    """The folder that Grafana reads is the one that compose mounts, and panels ask the data source that is there."""
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/outrider.yaml").read_text(encoding="utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    compose = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text(encoding="utf-8"))
    assert f"./grafana/dashboards:{folder}:ro" in compose["services"]["grafana"]["volumes"]
    source = DOCKER / "grafana/provisioning/datasources/prometheus.yaml"
    (known_source,) = yaml.safe_load(source.read_text(encoding="utf-8"))["datasources"]
    panels = json.loads(Path(DOCKER / "grafana/dashboards/outrider.json").read_text(encoding="utf-8"))["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {known_source["uid"]}
