"""The gateway's and the engine's images, step by step, and started as a cluster does: not root, read-only."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from not_run import not_run
from outrider.runtimes.scripted import ScriptedLane
from release.images import Image, built, missing
from release.processes import asked, ran, serving, status_of
from shipping.dockerfiles import DOCKER

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]


def needs_a_builder() -> None:
    """Leaves the test where images cannot be built."""
    if lacking := missing():
        not_run(f"the steps of the gateway's and the engine's image, for which this lacks {', '.join(lacking)}")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Image]:
    needs_a_builder()
    with built(DOCKER / "gateway.Dockerfile") as image:
        yield image


@pytest.fixture(scope="module")
def engine() -> Iterator[Image]:
    """With torch from the index that pip is set up with."""
    needs_a_builder()
    with built(DOCKER / "engine.Dockerfile", "--build-arg", "TORCH_INDEX=") as image:
        yield image


def is_ours(pid: int) -> bool:
    """Whether that process is the command itself, with the image's user."""
    status = status_of(pid)
    return bool(
        re.search(r"^Name:\toutrider$", status, re.MULTILINE)
        and re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
    )


async def is_healthy(image: Image, url: str) -> None:
    """The image's health check, at the port that was taken here."""
    port = url.rsplit(":", 1)[1]
    health = [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", part) for part in image.health]
    await asyncio.to_thread(ran, *image.entering(health))


def test_it_is_small(gateway: Image) -> None:
    """No tensor library, no package installer of ours and no sources beside what is installed."""
    site = next((gateway.root / "opt/outrider/lib").glob("python3*/site-packages"))
    assert (site / "outrider").is_dir() and (site / "asyncpg").is_dir()
    assert not [name for name in ("torch", "numpy", "pip", "transformers", "pytest") if (site / name).exists()]
    assert not (gateway.root / "src").exists()


async def test_it_serves_and_stops(gateway: Image, tmp_path: Path) -> None:
    """Probes, a request, the metrics and the health check; the log on standard output; SIGTERM ends it well."""
    config = gateway.root / "etc/outrider/gateway.yaml"
    config.parent.mkdir(exist_ok=True)
    async with ScriptedLane() as lane:
        config.write_text(f"server: {{port: 0}}\nlanes: [{{name: a, kind: url, urls: ['{lane.url}']}}]\n")
        command = gateway.entering(gateway.argv)
        quiet = asyncio.subprocess.DEVNULL
        async with serving(command, cwd=tmp_path, variables=os.environ, stderr=quiet) as served:
            await asked(served.url)
            assert is_ours(served.pid)
            await is_healthy(gateway, served.url)
    assert served.status == 0
    assert "Read-only file system" in served.log and '"route":"/v1/chat/completions"' in served.log


async def test_the_engine_serves_and_stops(engine: Image, model_folder: Path, tmp_path: Path) -> None:
    """With the model in its volume: an answer, the health check; SIGTERM ends it well."""
    model = shutil.copytree(model_folder, engine.root / "var/lib/outrider/models" / model_folder.name)
    for file in model.iterdir():
        file.chmod(0o644)  # whoever fetched it here, the image's user did not
    command = engine.entering([*engine.argv, "--port", "0"])
    quiet = asyncio.subprocess.DEVNULL
    async with serving(command, cwd=tmp_path, variables=os.environ, stderr=quiet, says="ready on") as served:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
        async with (
            aiohttp.ClientSession(served.url) as http,
            http.post("/v1/chat/completions", json=body) as response,
        ):
            answer = await response.json()
        assert response.status == 200 and answer["choices"][0]["message"]["content"], answer
        assert is_ours(served.pid)
        await is_healthy(engine, served.url)
    assert served.status == 0, served.log
