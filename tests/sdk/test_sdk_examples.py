"""The examples of the public docstrings type-check, and run as they stand against a scripted lane."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from sdk_examples import HEAD, as_function, examples, given, is_blocking
from sdk_wire import DONE, REPORT, USAGE, called, delta, stream_of

from outrider import Agent, AsyncClient, Client, Finished, OtherDelta, Session, TextDelta, Usage
from outrider.core import Report
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Recorded, Reply, completion_reply, event, json_reply

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"
RUN = {"id": "run_1", "status": "completed", "num_events": 121}
RESPONSE = {"id": "resp_1", "status": "completed", "output": [], "usage": None}
ARGUMENTS = {"add": '{"a": 17, "b": 4}', "multiply": '{"a": 17, "b": 23}', "read_file": '{"path": "notes.txt"}'}


def test_examples_type_check(tmp_path: Path) -> None:
    """All of them, by mypy in its strict mode."""
    blocks = examples()
    assert len(blocks) > 70
    file = tmp_path / "examples.py"
    file.write_text(HEAD + "\n".join(as_function(*block) for block in blocks.items()))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
         str(tmp_path / "cache"), "--follow-imports", "silent", str(file)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"MYPYPATH": str(ROOT / "backend"), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


async def read_file(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


def answer_to(request: Recorded) -> Reply:
    """A run begun, a tool called, or words, whole or streamed, with a report."""
    body = request.json()
    if body.get("outrider", {}).get("background"):
        return json_reply(RUN, 202)
    if request.path == "/v1/completions":
        return completion_reply(stream=body["stream"], include_usage=True)
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if names and body["messages"][-1]["role"] == "user" and not body["stream"]:
        return called((names[0], ARGUMENTS[names[0]]))
    if body["stream"]:
        pieces = [delta(content="He"), delta(content="llo.")]
        return stream_of(*pieces, delta("stop", USAGE, {"outrider": REPORT}), DONE)
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    return json_reply({"id": "1", "choices": [choice], "usage": USAGE, "outrider": REPORT})


def response_to(request: Recorded) -> Reply:
    if b'"stream":true' not in request.body and "stream=true" not in request.query:
        return json_reply(RESPONSE)
    text = {"type": "response.output_text.delta", "sequence_number": 121, "delta": "Hello."}
    return stream_of(event(text), event({"type": "response.completed", "sequence_number": 122, "response": RESPONSE}))


@pytest.fixture
async def lane() -> AsyncIterator[ScriptedLane]:
    async with ScriptedLane(answer_to, model="m") as one:
        for run in ("run_1", "run_0123"):
            failed = RUN | {"id": run, "status": "failed", "error": {"message": "the lane died"}}
            one.overrides[f"/outrider/runs/{run}"] = json_reply(failed)
            one.overrides[f"/outrider/runs/{run}/cancel"] = json_reply(failed)
            one.overrides[f"/outrider/runs/{run}/events"] = stream_of(delta(content="a"), delta("stop"), DONE)
        one.overrides["/v1/responses"] = one.overrides["/v1/responses/resp_1"] = response_to
        one.overrides["/v1/responses/resp_1/cancel"] = json_reply(RESPONSE)
        item = {"id": "i", "type": "message", "content": [{"type": "input_text", "text": "hi"}]}
        one.overrides["/v1/responses/resp_1/input_items"] = json_reply({"data": [item]})
        one.overrides["/outrider/runs"] = json_reply({"data": []})
        yield one


async def things(kinds: dict[str, str], client: AsyncClient, stack: AsyncExitStack) -> dict[str, Any]:
    """What an example is given, but for `event`."""
    agent, session, result = Agent(client, [add]), Session(), await client.chat("hi")
    made: dict[str, Any] = {
        "AsyncClient": client, "Agent[str]": agent, "Session": session, "ChatResult": result,
        "Usage": Usage.model_validate(USAGE), "Report": Report.model_validate(REPORT), "add": add,
        "read_file": read_file,
    }  # fmt: skip
    for name, kind in kinds.items():
        match kind:
            case "ChatStream":
                made[kind] = await stack.enter_async_context(client.chat_stream("hi"))
            case "ResponseStream":
                made[kind] = await stack.enter_async_context(client.responses.stream("hi"))
            case "AgentResult[str]":
                made[kind] = await agent.run("What is 17 + 4?")
            case "ToolCall":
                made[kind] = (await agent.run("What is 17 + 4?")).turns[0].answers[0].call
            case "Run":
                made[kind] = await client.runs.start("hi")
            case "Response":
                made[kind] = await client.responses("hi")
        made.setdefault(name, made.get(kind))
    return {name: made[name] for name in kinds if name != "event"}


def compiled(name: str, code: str, url: str) -> Any:
    """The example as a function, with the lane's address in place of the one that it names."""
    namespace: dict[str, Any] = {}
    exec(HEAD + as_function(name, code).replace(ADDRESS, url), namespace)
    return namespace[f"{name.replace('.', '_')}_example"]


@pytest.mark.parametrize("name", [name for name in examples() if not is_blocking(name)])
async def test_an_example_runs(lane: ScriptedLane, name: str) -> None:
    """As it stands, with every kind of event where it is about one."""
    code = examples()[name]
    kinds, example = given(name, code), compiled(name, code, lane.url)
    async with AsyncClient(lane.url + "/v1") as client, AsyncExitStack() as stack:
        objects = await things(kinds, client, stack)
        if "ENDED" in code:
            await objects["stream"].result()
        report = Report.model_validate(REPORT)
        events = TextDelta("a", 2, 1), OtherDelta({"tool_calls": []}), Finished("stop", None, report)
        for one in events if "event" in kinds else [None]:
            await example(**objects, **({} if one is None else {"event": one}))


@pytest.mark.parametrize("name", [name for name in examples() if is_blocking(name)])
async def test_an_example_without_a_loop_runs(lane: ScriptedLane, name: str) -> None:
    """In a thread of its own, as it stands."""
    code = examples()[name]
    kinds, example = given(name, code), compiled(name, code, lane.url)

    def run() -> None:
        with Client(lane.url + "/v1") as client, ExitStack() as stack:
            objects: dict[str, Any] = {"client": client, "add": add}
            if "stream" in kinds:
                objects["stream"] = stack.enter_context(client.chat_stream("hi"))
            example(**{one: objects[one] for one in kinds})

    await asyncio.to_thread(run)
