"""Schemathesis against the OpenAPI document that the gateway serves: what it says is what happens."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from conformance import environment
from outrider.app import serving
from outrider.config import AuthSection, Config, KeySection, RunsSection, ServerSection
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane

pytestmark = pytest.mark.conformance

SECRET = "conformance"
#: What is not checked, and why.
LEFT_OUT = {
    "positive_data_acceptance": "to JSON Schema 1.0 is an integer, here it is not; and a lane may refuse more",
}


async def test_the_document_is_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every route, method, body, status, header and the key, on examples, edges and random data: no failure."""
    key = KeySection(name="admin", sha256=sha256(SECRET.encode()).hexdigest(), is_admin=True)
    runs = RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite")
    config = Config(server=ServerSection(port=0), auth=AuthSection(keys=(key,)), runs=runs)
    async with ScriptedLane() as scripted:
        lane = Lane("scripted", scripted.url)
        async with serving(config, lanes=[lane]) as gateway:
            await lane.wait_until_ready()
            status, out = await environment.TOOLS.run(
                "schemathesis", "run", gateway.url + "/openapi.json", "--checks", "all", "--no-color",
                "--exclude-checks", ",".join(LEFT_OUT), "--phases", "examples,coverage,fuzzing", "-n", "60",
                "--continue-on-failure", "--generation-deterministic",
                "--header", f"Authorization: Bearer {SECRET}", "--warnings", "off", cwd=tmp_path,
            )  # fmt: skip
    with capsys.disabled():
        print("\nschemathesis: " + "; ".join(_figures(out)))
        for name, reason in LEFT_OUT.items():
            print(f"  left out: {name}: {reason}")
    assert status == 0, out[-8000:]


def _figures(out: str) -> list[str]:
    starts = ("Tested:", "Test cases:")
    lines = [line.strip() for line in out.splitlines()]
    return [f"{line} {after}" for line, after in pairwise(lines) if line.startswith(starts)]
