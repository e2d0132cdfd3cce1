"""`outrider demo`: real requests through the gateway, each as the policy decides and once without speculation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import progress_bar, run_async
from outrider.config import Config, LaneSection, cache_dir, load_config, packaged_data

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from outrider.core import Report
    from outrider.sdk.client import AsyncClient
    from outrider.workloads.suite import Job

#: Names in workloads/tasks.yaml.
PROMPTS = ("code-stack", "quote-bees", "creative-dragon")
#: Sampled answers use it for both runs, so that they have the same length.
SEED = 1


@dataclass(frozen=True, slots=True)
class Timed:
    """One streamed answer and its decode speed, from the first event to the last."""

    text: str
    num_tokens: int
    tokens_per_s: float
    report: Report


def demo(
    config: Annotated[Path | None, typer.Option(help="Configuration file; without it, the defaults.")] = None,
    model: Annotated[str | None, typer.Option(help="Model: a pulled one's name, or a local folder.")] = None,
) -> None:
    """Start the gateway, stream answers with and without speculation, and compare them in a table."""
    settings = load_config(config)
    # A port of its own, so that a gateway that runs already does not matter.
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": 0})})
    if model is not None:
        lanes = tuple(lane.model_copy(update={"model": model}) for lane in settings.lanes)
        settings = settings.model_copy(update={"lanes": lanes})
    _fetch_models(settings)
    run_async(_demo(settings))


def _fetch_models(config: Config) -> None:
    """Of embedded lanes, once, so that the demo needs no step before it."""
    from outrider.engine.pull import CATALOG, pull

    for lane in config.lanes:
        if isinstance(lane, LaneSection) and lane.model in CATALOG:
            with progress_bar() as progress:
                pull(lane.model, cache_dir(), progress)


async def _demo(config: Config) -> None:
    from rich.console import Console

    from outrider.app import serving
    from outrider.cli.serve import wait_for_lanes
    from outrider.sdk.client import AsyncClient
    from outrider.workloads.suite import load_prompts

    console = Console()
    prompts = {prompt.name: prompt for prompt in load_prompts(packaged_data("workloads") / "tasks.yaml")}
    async with serving(config) as gateway:
        await wait_for_lanes(console, gateway)
        async with AsyncClient(f"{gateway.url}/v1") as client:
            await client.chat("Hi", max_tokens=8)  # the first request of a process pays for warming up
            pairs = []
            for name in PROMPTS:
                decided = await _stream(console, client, prompts[name], is_off=False)
                plain = await _stream(console, client, prompts[name], is_off=True)
                pairs.append((prompts[name], decided, plain))
    console.print(_table(pairs))
    for prompt, decided, _ in pairs:
        console.print(f"[bold]{prompt.task}[/bold]: " + "; ".join(decided.report.reasons), highlight=False)


async def _stream(console: Console, client: AsyncClient, prompt: Job, *, is_off: bool) -> Timed:
    how = "without speculation" if is_off else "as the policy decides"
    console.rule(f"{prompt.task}, temperature {prompt.temperature:g}, {how}")
    console.print(prompt.text, style="dim", highlight=False, markup=False)
    stream = client.chat_stream(
        prompt.messages,
        temperature=prompt.temperature,
        max_tokens=prompt.max_tokens,
        extra_body={"seed": SEED},
        off=is_off,
        task=prompt.task,
    )
    times = []
    async with stream:
        async for event in stream:
            times.append(time.perf_counter())
            console.print(getattr(event, "text", ""), end="", highlight=False, markup=False, soft_wrap=True)
    console.print()
    if stream.usage is None or stream.report is None:
        raise typer.Exit(1)
    num_tokens = stream.usage.completion_tokens
    speed = (num_tokens - 1) / (times[-1] - times[0])
    return Timed(stream.text, num_tokens, speed, stream.report)


def _table(pairs: list[tuple[Job, Timed, Timed]]) -> Table:
    from rich.table import Table

    # Words short enough for a terminal of 80 columns, where longer ones are cut.
    table = Table("task", "T", "drafter", "k", "accept length", "tokens/s", "off", "ratio", "same text")
    for prompt, decided, plain in pairs:
        report = decided.report
        length = "-" if report.observed is None else f"{report.observed.accept_length:.2f}"
        # Above temperature 0 equal texts show that the noise is the same, which speculation does not promise.
        same = ("yes" if decided.text == plain.text else "NO") if prompt.temperature == 0 else "sampled"
        table.add_row(
            prompt.task, f"{prompt.temperature:g}", report.effective.drafter, str(report.effective.k), length,
            f"{decided.tokens_per_s:.1f}", f"{plain.tokens_per_s:.1f}",
            f"{decided.tokens_per_s / plain.tokens_per_s:.2f}x", same,
        )  # fmt: skip
    return table
