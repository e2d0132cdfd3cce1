"""openai-python's own resource tests, as its makers wrote them, against our endpoint."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from conformance import environment
from not_run import not_run
from outrider.app import Gateway, serving
from outrider.config import Config, RunsSection, ServerSection
from outrider.runs.record import Ending
from outrider.runs.store import RunStore
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import json_reply

pytestmark = pytest.mark.conformance

_NOT_STORED = "chat completions are not stored"
#: File -> what is left out of it, by a part of the test's name, and why. All of it must fail, everything else
#: pass, as must the checks of the path's parameters, which send nothing.
LEFT_OUT = {
    "chat/test_completions.py": {
        **dict.fromkeys(("retrieve", "update", "list", "delete"), _NOT_STORED),
        "create_with_all_params": "asks for max_tokens 0, which is refused by name",
    },
    "test_completions.py": {},
    "test_models.py": {"delete": "models are lanes' own, not files of a caller"},
    "test_responses.py": {
        "create": "asks for answers without any input, or continues what is not stored, which is refused by name",
        "compact": "there is no such route",
    },
    "responses/test_input_items.py": {"list_with_all_params": "asks for 0 items, which is refused by name"},
}
#: Under these ids the tests look for responses.
STORED = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id")
#: File -> what is not even tried in it, and why.
UNTRIED = {
    "test_responses.py": ("delete", "deletes what the others read, again and again: a 404 from the second time"),
}
#: Why -> files and folders that are left out as a whole.
NOT_RUN = {
    _NOT_STORED: "chat/completions/",
    "there are no such routes": "admin/ audio/ beta/ containers/ conversations/ evals/ fine_tuning/ live/ realtime/ "
    "responses/test_input_tokens.py safety/ skills/ test_batches.py test_containers.py "
    "test_content_provenance_checks.py test_conversations.py test_decisions.py test_embeddings.py test_evals.py "
    "test_files.py test_images.py test_live.py test_moderations.py test_realtime.py test_skills.py test_uploads.py "
    "test_vector_stores.py test_videos.py test_webhooks.py uploads/ vector_stores/ webhooks/",
}


def fetched() -> Path:
    """Folder of their source."""
    try:
        return environment.openai_tests()
    except OSError as error:
        not_run(f"openai-python's own tests, which cannot be fetched: {error}")


def models_of(source: str) -> list[str]:
    """Every model that a file of tests names."""
    named = re.findall(r'\bmodel="([^"]+)"|models\.(?:\w+\.)?retrieve\(\s*"([^"]+)"', source)
    return sorted({first or second for first, second in named} or {"scripted"})


@pytest.mark.parametrize("name", LEFT_OUT)
async def test_its_own_tests_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sync, async over both HTTP clients, raw, streaming, types strict and loose; what is left out really fails."""
    source = fetched()
    path = source / "tests" / "api_resources" / name
    cards = [{"id": model, "object": "model", "created": 1, "owned_by": "s"} for model in models_of(_text(path))]
    async with ScriptedLane() as lane:
        lane.overrides["/v1/models"] = json_reply({"object": "list", "data": cards})
        ours = Lane("scripted", lane.url)
        runs = RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite")
        async with serving(Config(server=ServerSection(port=0), runs=runs), lanes=[ours]) as gateway:
            await ours.wait_until_ready()
            await _store(gateway, runs, cards[0]["id"])
            part, why = UNTRIED.get(name, ("nothing", ""))
            _, out = await environment.TOOLS.run(
                "python", "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "--tb=short", "-rpfE",
                "-k", f"not {part} or path_params", str(path),
                cwd=source, variables={"TEST_API_BASE_URL": gateway.url + "/v1"},
            )  # fmt: skip
    ended: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "ERROR": set()}
    for how, test in re.findall(r"^(PASSED|FAILED|ERROR) \S+?\.py::(\S+)", out, re.MULTILINE):
        ended[how].add(test)
    passed, failed = ended["PASSED"], ended["FAILED"] | ended["ERROR"]
    left_out = {
        part: {test for test in passed | failed if part in test and "path_params" not in test}
        for part in LEFT_OUT[name]
    }
    with capsys.disabled():
        print(f"\nopenai-python's {name}: {len(passed)} pass" + (f"; untried: *{part}*: {why}" if why else ""))
        for part, reason in LEFT_OUT[name].items():
            print(f"  left out: {len(left_out[part])} of *{part}*: {reason}")
    assert failed <= set().union(*left_out.values()), out[-6000:]
    assert not passed & set().union(*left_out.values()), "it need not be left out any more"
    assert all(left_out.values())
    assert len(passed) > 10


def test_what_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Every file of theirs is run, or is left out by a name that exists, for a reason."""
    root = fetched() / "tests" / "api_resources"
    files = {str(path.relative_to(root)) for path in root.rglob("test_*.py")}
    reasons = {name: reason for reason, names in NOT_RUN.items() for name in names.split()}
    with capsys.disabled():
        print("\nopenai-python's other tests: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    others = {name: {file for file in files if file.startswith(name)} for name in reasons}
    assert set().union(*others.values()) == files - LEFT_OUT.keys()
    assert all(others.values())


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
        await store.end(name, "tests", Ending("completed", told, record.answer), time.time(), 600.0)
    await store.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
