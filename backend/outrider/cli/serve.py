"""`outrider serve`: the gateway with its lanes, in the foreground."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import run_async, set_up_logging
from outrider.config import Config, RunsSection, UrlSection, cache_dir, load_config

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.app import Gateway

_POLL_S = 0.2


def serve(
    config: Annotated[Path | None, typer.Option(help="Configuration file; without it, the defaults.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of the configured one.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, instead of the configured one; 0 takes a free one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of every lane: a pulled model's name, or a folder.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that share the port and the lanes; more than 1 needs Linux.")
    ] = 1,
    access_log: Annotated[bool, typer.Option(help="Log one JSON object per request.")] = False,
    verbose: Annotated[bool, typer.Option(help="Log every request and every line of the lanes.")] = False,
) -> None:
    """Serve the OpenAI-compatible endpoint until Ctrl-C; a second Ctrl-C does not wait for running requests.

    With several workers a connection belongs to one of them. Each has an equal share of every limit (places, queue,
    open runs, and each API key's, which the x-ratelimit headers show): all together never let through more, but a
    caller whose connections all meet one worker is held to its share. A limit smaller than the number of workers is
    refused. Each worker learns from its own requests, keeps that apart in the same file, and remembers by itself
    which lane a conversation was on. Runs, reloads, drains and /metrics are those of all workers;
    /outrider/lanes shows what the worker that answers has in flight.
    """
    from outrider.app import run

    set_up_logging(verbose=verbose, access_log=access_log)
    settings = _with_overrides(load_config(config), host, port, model)
    if workers == 1:
        return run_async(run(settings, on_ready=_announce))
    from outrider.workers import parent

    how = parent.Workers(workers, verbose=verbose, access_log=access_log)
    return run_async(parent.run(settings, how, on_ready=_announce))


def _with_overrides(config: Config, host: str | None, port: int | None, model: str | None) -> Config:
    server: dict[str, Any] = {"host": host, "port": port}
    server = {name: value for name, value in server.items() if value is not None}
    lanes = config.lanes
    if model is not None:
        lanes = tuple(
            lane if isinstance(lane, UrlSection) else lane.model_copy(update={"model": model}) for lane in lanes
        )
    update = {"server": config.server.model_copy(update=server), "lanes": lanes, "runs": _kept(config.runs)}
    return config.model_copy(update=update)


def _kept(runs: RunsSection) -> RunsSection:
    """In a file of the cache folder where nothing else is said; nowhere when that cannot be written."""
    if runs.url is not None:
        return runs
    file = cache_dir() / "runs.sqlite"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError as error:
        logging.getLogger(__name__).warning("no runs are kept: %s: %s", file, error.strerror)
        return runs
    return runs.model_copy(update={"url": f"sqlite+aiosqlite:///{file}"})


async def _announce(gateway: Gateway) -> None:
    """Wait for the lanes, then show what to paste."""
    from rich.console import Console

    console = Console(stderr=True)
    await wait_for_lanes(console, gateway)
    Console().print(
        _snippets(gateway.url, gateway.pool.models()[0].id, needs_key=not gateway.keys.is_open),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


async def wait_for_lanes(console: Console, gateway: Gateway) -> None:
    """Show the address, and the lanes until all are ready. Why one fails is in the log of the process."""
    console.print(f"gateway listens on [bold]{gateway.url}[/bold]")
    with console.status("") as spinner:
        # Lanes that somebody else runs are known only once their names are resolved.
        while (waiting := [lane for lane in gateway.pool.lanes if not lane.is_ready]) or not gateway.pool.lanes:
            names = ", ".join(f"{lane.name} ({lane.state.value})" for lane in waiting)
            spinner.update(f"waiting for {names or 'the names of lanes'}")
            await asyncio.sleep(_POLL_S)
    for card in gateway.pool.models():
        console.print(f"model [bold]{card.id}[/bold] is ready\n")


def _snippets(url: str, model: str, *, needs_key: bool) -> str:
    header, argument = ("-H 'Authorization: Bearer KEY' ", ', api_key="KEY"') if needs_key else ("", "")
    return f"""Try it:

curl -N {url}/v1/chat/completions {header}-H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Say hello."}}]}}'

or, with the SDK:

{sys.executable} - <<'EOF'
import asyncio
from outrider import AsyncClient

async def main():
    async with AsyncClient("{url}/v1"{argument}) as client:
        result = await client.chat("Write a Python function that adds two numbers.", task="code", max_tokens=64)
        print(result.text)
        print(result.report.effective, result.report.observed)

asyncio.run(main())
EOF

Ctrl-C stops.
"""
