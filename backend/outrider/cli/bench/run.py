"""`outrider bench run`: a suite against any OpenAI-compatible target, kept in a folder and continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import progress_bar, run_async
from outrider.config import DEFAULT_MODEL, cache_dir, inherited_environment, packaged_data
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.workloads.arrivals import Arrivals
    from outrider.workloads.bench import Progress, Side, Stated
    from outrider.workloads.suite import Suite

EMBEDDED = "embedded"
_ARRIVALS = "closed:CONCURRENCY, poisson:PER_SECOND, bursts:SIZE:EVERY_S or trace:FILE[:SPEED[:LENGTH]]"


def run(  # noqa: PLR0913 - one parameter per flag
    suite: Annotated[str, typer.Argument(help="Name of a suite that ships, or a file of one.")],
    out: Annotated[Path, typer.Option(help="Folder of the result; the same command with it goes on.")],
    target: Annotated[
        list[str] | None, typer.Option(help="Address; again for more. None starts gateway and engine for the run.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="policy, off or DRAFTER:K, of targets that are Outriders; off and policy unless given."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; None takes a target's first.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts of this file instead: ours, Spec-Bench's or HumanEval's.")
    ] = None,
    arrivals: Annotated[str | None, typer.Option(help=f"{_ARRIVALS}, instead of the suite's.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Jobs of a round; None: each prompt once.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Interleaved repetitions.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Make prompts about so long.")] = None,
    exact_length: Annotated[bool, typer.Option(help="Ask for answers up to their limit, with ignore_eos.")] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengthened prompts and sampling.")] = 0,
    slo_ttft_ms: Annotated[float | None, typer.Option(min=0, help="Longest time to the first token.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(min=0, help="Longest time per further token.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the targets' key.")] = "OUTRIDER_API_KEY",
    timeout_s: Annotated[float, typer.Option(min=1, help="Longest time of one request.")] = 600.0,
) -> None:
    """Measure a suite. Ctrl-C keeps what is done; exit status 1 when a request failed."""
    from outrider.workloads.bench import Stated
    from outrider.workloads.conditions import conditions
    from outrider.workloads.results import Slo
    from outrider.workloads.suite import find_suite, load_jobs, load_suite

    found = load_suite(find_suite(suite, packaged_data("workloads")))
    given = {
        "name": None if prompts is None else f"{found.name} with {prompts.name}",
        "jobs": None if prompts is None else load_jobs(prompts, seed),
        "arrivals": None if arrivals is None else parse_arrivals(arrivals),
        "rounds": rounds, "requests": requests, "prompt_tokens": prompt_tokens,
    }  # fmt: skip
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found = found.model_copy(update=changed | {"seed": seed, "is_exact_length": exact_length})
    if prompt_tokens is not None and found.arrivals.kind == "trace":
        raise ConfigError("--prompt-tokens: the trace says how long prompts are; its LENGTH makes all of them longer")
    slo = None if slo_ttft_ms is slo_tpot_ms is None else Slo(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms)
    reach = Reach(tuple(target or ()), model, inherited_environment().get(api_key_env), timeout_s)
    raise typer.Exit(measure(found, reach, arm or [], out, Stated(conditions(), slo)))


@dataclass(frozen=True, slots=True)
class Reach:
    """Which targets there are and how they are asked."""

    urls: tuple[str, ...]
    """Without any, the run starts a gateway and an engine."""
    model: str | None
    api_key: str | None
    timeout_s: float


def measure(suite: Suite, reach: Reach, arms: Sequence[str], folder: Path, stated: Stated) -> int:
    """Run, write the result and its report, print the tables; the exit status."""
    from outrider.workloads.bench import Bench, result_of
    from outrider.workloads.ledger import Head, Ledger
    from outrider.workloads.report import write_report
    from outrider.workloads.results import write_result

    ledgers: list[Ledger] = []
    facts: dict[str, str] = {}

    async def main(urls: dict[str, str], progress: Progress) -> None:
        async with connected(urls, reach, arms) as sides:
            facts.update({side.target.name: _told(side) for side in sides})
            models = {side.target.name: side.target.model for side in sides}
            head = Head(suite=suite.name, digest=suite.digest, arms=tuple(side.arm for side in sides), models=models)
            with Ledger(folder, head) as ledger:
                ledgers.append(ledger)
                await Bench(suite, ledger, progress).run(sides)

    status = 0
    with progress_bar() as progress, _targets(reach, progress) as urls:
        try:
            run_async(main(urls, progress))
        except typer.Exit as stopped:
            status = stopped.exit_code
    if not ledgers:
        return status
    stated = replace(stated, conditions={**stated.conditions, **facts})
    result = result_of(suite, ledgers[0], stated)
    write_result(result, folder)
    html, markdown, *_ = write_report(result, folder)
    typer.echo(markdown.read_text(encoding="utf-8"))
    typer.echo(f"as a page: {html}", err=True)
    return status or int(any(one.error is not None for one in result.records))


@contextmanager
def _targets(reach: Reach, progress: Progress) -> Iterator[dict[str, str]]:
    """Address of every target by its name; those that the run starts end with the block."""
    from outrider.cli.bench.servers import server
    from outrider.workloads.target import base_of

    bases = [base_of(url) for url in reach.urls]
    if twice := [url for i, url in enumerate(reach.urls) if bases[i] in bases[:i]]:
        raise ConfigError(f"--target {twice[0]}: is given twice, and would be held against itself")
    if reach.urls:
        yield {url: url for url in reach.urls}
        return
    from outrider.engine.pull import locate

    model = reach.model or DEFAULT_MODEL
    locate(model, cache_dir())  # so that a missing one is said here
    progress("starting gateway and engine", 0.0)
    with server(EMBEDDED, model) as started:
        yield {EMBEDDED: started.url}


@asynccontextmanager
async def connected(urls: dict[str, str], reach: Reach, arms: Sequence[str]) -> AsyncIterator[list[Side]]:
    """Every arm of every target, for the block. ConfigError when a target has no such arm."""
    from outrider.cli.bench.servers import API_KEY
    from outrider.workloads.bench import Side
    from outrider.workloads.results import Arm
    from outrider.workloads.target import opened

    sides = []
    async with AsyncExitStack() as stack:
        for name, url in urls.items():
            # The engine that the run starts serves one model, under a name of its own.
            model = None if name == EMBEDDED else reach.model
            key = API_KEY if name == EMBEDDED else reach.api_key
            opening = opened(url, name=name, model=model, api_key=key, timeout_s=reach.timeout_s)
            target = await stack.enter_async_context(opening)
            if not target.is_outrider and arms:
                raise ConfigError(f"--arm {arms[0]}: {name} is no Outrider, which takes no hints")
            for arm in (arms or ("off", "policy")) if target.is_outrider else ("as it is",):
                label = arm if len(urls) == 1 else f"{arm} at {name}"
                hints = hints_of(arm) if target.is_outrider else {}
                sides.append(Side(Arm(name=label, target=name, hints=hints), target))
        if twice := [name for name, count in Counter(side.arm.name for side in sides).items() if count > 1]:
            raise ConfigError(f"--arm {twice[0]}: is given twice, and would be held against itself")
        yield sides


def hints_of(arm: str) -> dict[str, Any]:
    """`policy`, `off` or `DRAFTER:K` as the request's `outrider` object; ConfigError."""
    from pydantic import ValidationError

    from outrider.core import Hints
    from outrider.workloads.files import problem_of

    if arm in ("policy", "off"):
        return {"off": True} if arm == "off" else {}
    drafter, _, k = arm.partition(":")
    hints = {"drafter": drafter, "k": int(k) if k.isdecimal() else k}
    try:
        Hints.model_validate(hints)
    except ValidationError as error:
        raise ConfigError(f"--arm {arm}: {problem_of(error)}") from error
    return hints


def parse_arrivals(text: str) -> Arrivals:
    """`poisson:2.5` and the like; ConfigError says what was expected."""
    from pydantic import TypeAdapter, ValidationError

    from outrider.workloads.arrivals import Arrivals
    from outrider.workloads.files import problem_of

    kind, *parts = text.split(":")
    names = {
        "closed": ("concurrency",), "poisson": ("per_s",), "bursts": ("size", "every_s"),
        "trace": ("file", "speed", "length"),
    }.get(kind, ())  # fmt: skip
    try:
        if len(parts) > len(names):
            raise ValueError("too many parts")
        found: Arrivals = TypeAdapter(Arrivals).validate_python(
            {"kind": kind, **dict(zip(names, parts, strict=False))}
        )
    except ValidationError as error:
        raise ConfigError(f"--arrivals {text}: {problem_of(error, behind=1)}; {_ARRIVALS}") from error
    except ValueError as error:
        raise ConfigError(f"--arrivals {text}: {error}; {_ARRIVALS}") from error
    return found


def _told(side: Side) -> str:
    target = side.target
    kind = "an Outrider" if target.is_outrider else "no Outrider"
    counts = "counts tokens as it goes" if target.counts_tokens else "counts tokens at the end"
    return f"{target.model}, {kind}, {counts}"
