"""The gateway's image, built step by step and started as a cluster starts it: not root, on a read-only root."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from not_run import not_run
from outrider.runtimes.scripted import ScriptedLane
from release.images import Image, built, missing
from release.processes import asked, ran, serving, status_of
from shipping.dockerfiles import DOCKER

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Image]:
    if lacking := missing():
        not_run(f"the steps of the gateway's image, for which this lacks {', '.join(lacking)}")
    with built(DOCKER / "gateway.Dockerfile") as image:
        yield image


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
            status = status_of(served.pid)
            assert re.search(r"^Name:\toutrider$", status, re.MULTILINE), "the first process is not the gateway"
            assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
            port = served.url.rsplit(":", 1)[1]
            health = [part.replace(":8000/", f":{port}/") for part in gateway.health]
            await asyncio.to_thread(ran, *gateway.entering(health))
    assert served.status == 0
    assert "Read-only file system" in served.log and '"route":"/v1/chat/completions"' in served.log
