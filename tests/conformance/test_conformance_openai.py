"""openai-python's own resource tests, as its makers wrote them, against our endpoint."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from conformance import environment
from outrider.app import Gateway, serving
from outrider.config import Config, RunsSection, ServerSection
from outrider.runs.record import Ending
from outrider.runs.store import RunStore
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import json_reply

pytestmark = pytest.mark.conformance

_NOT_STORED = "chat completions are not stored"
#: File -> what is left out of it, by a part of the test's name, and why. Everything else must pass.
LEFT_OUT = {
    "chat/test_completions.py": {
        **dict.fromkeys(("retrieve", "update", "list", "delete"), _NOT_STORED),
        "create_with_all_params": "asks for max_tokens 0, which is refused by name",
    },
    "test_completions.py": {},
    "test_models.py": {"delete": "models are lanes' own, not files of a caller"},
    "test_responses.py": {
        "create": "asks for answers without any input, or continues what is not stored, which is refused by name",
        "delete": "deletes the same response again and again, which is a 404 from the second time",
        "compact": "there is no such route",
    },
    "responses/test_input_items.py": {"list_with_all_params": "asks for 0 items, which is refused by name"},
}
#: Under these ids the tests look for responses.
STORED = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id")
#: Files that are left out as a whole.
NOT_RUN = {
    "responses/test_input_tokens.py": "there is no such route",
    "all others": "there are no such routes: embeddings, files, images, audio, moderations, batches, ...",
}


def models_of(source: str) -> list[str]:
    """Every model that a file of tests names."""
    named = re.findall(r'\bmodel="([^"]+)"|models\.(?:\w+\.)?retrieve\(\s*"([^"]+)"', source)
    return sorted({first or second for first, second in named} or {"scripted"})


@pytest.mark.parametrize("name", LEFT_OUT)
async def test_its_own_tests_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sync, async over both HTTP clients, raw, streaming; types checked strictly and loosely."""
    try:
        source = environment.openai_tests()
    except OSError as error:
        pytest.skip(f"openai's tests cannot be fetched: {error}")
    path = source / "tests" / "api_resources" / name
    cards = [{"id": model, "object": "model", "created": 1, "owned_by": "s"} for model in models_of(_text(path))]
    async with ScriptedLane() as lane:
        lane.overrides["/v1/models"] = json_reply({"object": "list", "data": cards})
        ours = Lane("scripted", lane.url)
        runs = RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite")
        async with serving(Config(server=ServerSection(port=0), runs=runs), lanes=[ours]) as gateway:
            await ours.wait_until_ready()
            await _store(gateway, runs, cards[0]["id"])
            chosen = ["-k", f"not ({' or '.join(LEFT_OUT[name])})"] if LEFT_OUT[name] else []
            status, out = await environment.run(
                "python", "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "--tb=short", *chosen,
                str(path), cwd=source, variables={"TEST_API_BASE_URL": gateway.url + "/v1"},
            )  # fmt: skip
    summary = out.strip().splitlines()[-1]
    with capsys.disabled():
        print(f"\nopenai-python's {name}: {summary}")
        for part, reason in LEFT_OUT[name].items():
            print(f"  left out: *{part}*: {reason}")
    assert status == 0, out[-6000:]
    assert int(re.findall(r"(\d+) passed", summary)[0]) > 10


def test_what_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Is written down, exists, and is not run by another name."""
    with capsys.disabled():
        print("\nopenai-python's other tests: " + "; ".join(f"{name}: {reason}" for name, reason in NOT_RUN.items()))
    assert not NOT_RUN.keys() & LEFT_OUT.keys()


async def _store(gateway: Gateway, section: RunsSection, model: object) -> None:
    """A response in the background that has ended, under the ids that the tests know."""
    body = {"model": model, "input": "hello", "background": True, "stream": True}
    async with aiohttp.ClientSession() as http, http.post(gateway.url + "/v1/responses", json=body) as response:
        made = re.findall(rb"resp_\w+", await response.read())[0].decode()
    store = RunStore(section)
    record = await store.get(made)
    assert record is not None
    told = [data for _, data in await store.events(made, 0, 999)]
    for name in STORED:
        await store.add(replace(record, id=name, status="in_progress", owner="tests", num_events=0))
        await store.end(name, Ending("completed", told, record.answer), time.time(), 600.0)
    await store.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
