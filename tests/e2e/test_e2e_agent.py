"""Agents on the real model: tools called and answered through gateway and engine, drafted as their phase suggests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import BaseModel

from outrider import Agent, AsyncClient, OtherDelta, Session, TextDelta, Tool
from outrider.app import serving
from outrider.config import Config, ServerSection

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

NOTE = (
    "The water will be turned off on Thursday until noon. Please fill a bucket before eight. Ask at the desk in the"
    " hall for a spare key to the cellar."
)
#: The model is small: it calls when it has to, and one tool at a time.
ONE_CALL = {"parallel_tool_calls": False}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model_folder: Path) -> AsyncIterator[AsyncClient]:
    async with serving(Config(server=ServerSection(port=0, shutdown_grace_s=0))) as gateway:
        await asyncio.wait_for(gateway.pool.lanes[0].wait_until_ready(), 120)
        async with AsyncClient(f"{gateway.url}/v1") as one:
            yield one


async def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def file_tool(folder: Path) -> Tool:
    async def read_file(path: str) -> str:
        """Read a file and give its text."""
        return (folder / Path(path).name).read_text(encoding="utf-8")

    return Tool(read_file, leads_to="quote")


def cached_tokens(session_turn: object) -> int:
    usage = session_turn.result.usage  # type: ignore[attr-defined]
    return usage.model_extra["prompt_tokens_details"]["cached_tokens"]


async def test_a_calculator_and_a_file(client: AsyncClient, tmp_path: Path) -> None:
    """The model calls both tools with the right arguments and says what they gave; the quote is drafted from it."""
    (tmp_path / "notes.txt").write_text(NOTE, encoding="utf-8")
    tools = [multiply, file_tool(tmp_path)]
    agent = Agent(client, tools, starts_with="required", temperature=0, max_tokens=64, extra_body=ONE_CALL)
    session = Session()
    product = await agent.run("What is 17 * 23?", session=session)
    (answer,) = product.turns[0].answers
    assert (answer.call.function.name, answer.content) == ("multiply", "391")
    assert "391" in product.output

    quoting = Agent(
        client, tools, starts_with="read_file", temperature=0, max_tokens=64, drafter="prediction", k=5,
        extra_body=ONE_CALL,
    )  # fmt: skip
    quoted = await quoting.run("Read the file notes.txt, then quote its text word for word.")
    assert quoted.turns[0].answers[0].content == NOTE and NOTE in quoted.output
    last = quoted.turns[-1]
    report = last.result.report
    assert last.phase == "quote" and report is not None and report.observed is not None
    assert (report.task, report.effective.drafter) == ("quote", "prediction")
    assert report.observed.accept_length > 2
    # Each turn's prompt begins with the one before it, which the lane keeps.
    assert cached_tokens(last) >= quoted.turns[0].result.usage.prompt_tokens // 32 * 32


class Product(BaseModel):
    product: int


async def test_a_structured_answer(client: AsyncClient) -> None:
    """Whatever the model thinks of the question, the answer is of the kind that was asked for."""
    agent = Agent(client, [multiply], starts_with="multiply", output=Product, temperature=0, max_tokens=48)
    result = await agent.run("What is 6 * 7?")
    assert result.turns[0].answers[0].content == "42"
    assert isinstance(result.output.product, int)


async def test_calls_of_a_stream_are_those_of_the_whole_answer(client: AsyncClient) -> None:
    """And nothing of them is shown as text; with drafts and without they are the same."""
    fields: dict = {"tools": [Tool(multiply)], "tool_choice": "required", "temperature": 0, "extra_body": ONE_CALL}
    whole = await client.chat("What is 17 * 23?", **fields)
    plain = await client.chat("What is 17 * 23?", off=True, **fields)
    async with client.chat_stream("What is 17 * 23?", **fields) as stream:
        events = [event async for event in stream]
        streamed = await stream.result()
    assert [type(event) for event in events[:-1]] == [OtherDelta] and streamed.text == "" == whole.text
    (one,), (other,), (third,) = whole.tool_calls, streamed.tool_calls, plain.tool_calls
    assert one.function == other.function == third.function and one.function.arguments == '{"a":17,"b":23}'
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"


async def test_accepted_drafts_of_every_piece_add_up(client: AsyncClient) -> None:
    """To the tokens of the usage and the accepted drafts of the report."""
    stream = client.chat_stream(f"Quote this text back, word for word:\n\n{NOTE}", temperature=0, max_tokens=24,
                                task="quote", counts_tokens=True)  # fmt: skip
    async with stream:
        pieces = [event async for event in stream if isinstance(event, TextDelta)]
    assert sum(piece.num_tokens or 0 for piece in pieces) == stream.usage.completion_tokens == 24
    assert sum(piece.num_accepted or 0 for piece in pieces) == stream.report.observed.num_accepted > 0
