"""llm-comply, a checker of three protocols, against the gateway over the embedded engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from conformance import environment
from markov import VOCAB, write_ending_checkpoint
from outrider.app import serving
from outrider.config import Config, LaneSection, ServerSection, UrlSection
from outrider.runtimes.scripted import ScriptedLane

pytestmark = pytest.mark.conformance

_NO_TOOLS = "the embedded engine refuses tools by name"
_NO_IMAGES = "the model reads text only, and the engine says so"
_NO_REASONING = "the model does not reason"
#: Protocol -> tests that need not pass, and why. Every other one must.
LEFT_OUT = {
    "openai-chat": {
        "chat-tool-calling": _NO_TOOLS,
        "chat-image-input": _NO_IMAGES,
        "chat-reasoning-summary": _NO_REASONING,
    },
    "open-responses": {
        "tool-calling": _NO_TOOLS,
        "image-input": _NO_IMAGES,
        "reasoning-summary": _NO_REASONING,
    },
    "anthropic": {
        "anth-tool-calling": _NO_TOOLS,
        "anth-image-input": _NO_IMAGES,
        "anth-thinking-display": _NO_REASONING,
    },
}

#: Of each protocol, so that a checker which ran nothing proves nothing.
MIN_PASSED = 6


@pytest.mark.parametrize("protocol", LEFT_OUT)
async def test_the_protocol_is_spoken(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole answers, streams, usage, history, system prompts and refusals, in the shapes of the protocol's makers."""
    # A model that says the alphabet to its end, so that answers are never empty and end by themselves.
    alphabet = np.full((VOCAB, VOCAB), -1e4)
    alphabet[np.arange(VOCAB - 1), np.arange(1, VOCAB)] = 0
    write_ending_checkpoint(tmp_path / "model", alphabet)
    # Another model beside it: without one, a request that names none means the only model.
    async with ScriptedLane(model="another") as other:
        lanes = (LaneSection(model=str(tmp_path / "model")), UrlSection(name="other", kind="url", urls=(other.url,)))
        async with serving(Config(server=ServerSection(port=0), lanes=lanes)) as gateway:
            async with asyncio.timeout(60):
                while len(gateway.pool.lanes) < 2 or not all(lane.is_ready for lane in gateway.pool.lanes):
                    await asyncio.sleep(0.05)
            model = gateway.pool.lanes[0].models[0].id
            _, out = await environment.TOOLS.run(
                "llm-comply", "--base-url", gateway.url + "/v1", "--api-key", "none", "--model", model,
                "--format", protocol, "--json",
            )  # fmt: skip
    results = json.loads(out[out.index("{") :])["results"]
    passed = {one["id"] for one in results if one["status"] == "passed"}
    failed = {one["id"]: one.get("errors") for one in results if one["id"] not in passed | LEFT_OUT[protocol].keys()}
    with capsys.disabled():
        print(f"\nllm-comply, {protocol}: {len(passed)} of {len(results)} pass")
        for name, reason in LEFT_OUT[protocol].items():
            print(f"  left out: {name}: {reason}{' (but it passes)' if name in passed else ''}")
    assert not failed, json.dumps(failed, indent=1)
    assert LEFT_OUT[protocol].keys() < {one["id"] for one in results}
    assert len(passed) >= MIN_PASSED
