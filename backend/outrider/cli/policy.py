"""`outrider policy`: check policy files and explain decisions, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import orjson
import typer
from pydantic import ValidationError

from outrider.config import SHIPPED, inherited_environment, policy_folders
from outrider.core import Hints
from outrider.errors import ConfigError, OutriderError
from outrider.policy.decide import Origin
from outrider.policy.decision import Decision
from outrider.policy.features import extract_features
from outrider.policy.limits import policy_schema
from outrider.policy.loader import Source, load_policies, texts_of, validate_file
from outrider.policy.plan import PLAN_OFF, Plan

app = typer.Typer(no_args_is_help=True, help="Check policy files and explain decisions, without a server.")

P = ParamSpec("P")


def _one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Print what the operator must change as one line on stderr, and exit 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except OutriderError as error:
            typer.echo(error.message, err=True)
            raise typer.Exit(1) from error

    return run


Policies = Annotated[
    list[Path],
    typer.Option(help="Folder of policy files; may be given again, and a later one's workloads take the place of "
                 "an earlier one's. `shipped` stands for those of the package."),
]  # fmt: skip
Default = Annotated[str, typer.Option(help="Workload for requests that no file matches.")]
Lanes = Annotated[
    Path | None,
    typer.Option(
        help="JSON list of lanes: name, drafters with ks, cost; or a learning store, for those of its "
        "records. Else those that the records tell of, or one embedded engine."
    ),
]


@app.command()
@_one_line_errors
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policy files.")], lanes: Lanes = None
) -> None:
    """Check policy files, among all others of their folders; a problem is a line `file:line:column: path: what`."""
    from outrider.cli.policy_lab import read_lanes

    abilities = () if lanes is None else read_lanes(lanes)
    folders = {path.parent for path in files}
    has_problems = False
    for path in files:
        problems = validate_file(path, inherited_environment(), abilities, folders)
        for problem in problems:
            typer.echo(str(problem))
        if not problems:
            typer.echo(f"{path}: ok")
        has_problems = has_problems or bool(problems)
    if has_problems:
        raise typer.Exit(1)


@app.command()
@_one_line_errors
def explain(
    request: Annotated[str, typer.Argument(metavar="REQUEST.json", help="An OpenAI request body; - reads stdin.")],
    policies: Policies = [SHIPPED],  # noqa: B006 - typer copies it
    default: Default = "default",
    requests: Annotated[
        int | None, typer.Option(min=0, help="Requests running and waiting on each lane; omitted: unknown.")
    ] = None,
    lanes: Lanes = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant of the request's key.")] = None,
    header: Annotated[
        list[str],
        typer.Option(metavar="NAME:VALUE", help="A header that the request comes with; may be given again."),
    ] = [],  # noqa: B006 - typer copies it
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the plan for a request, and why."""
    from outrider.cli.policy_lab import lane_views

    policy_set = load_policies(_source(policies, default))
    body = _read_body(request)
    hints = _read_hints(request, body)
    features, origin = extract_features(body, hints, tenant), Origin(body.get("model"), _read_headers(header))
    decision = policy_set.decide(features, hints, lane_views(lanes, requests), 0.0, origin)
    typer.echo(orjson.dumps(_to_json(decision), option=orjson.OPT_INDENT_2) if as_json else _to_text(decision))


def _source(policies: Sequence[Path], default: str) -> Source:
    return Source(policy_folders(policies), default, env=inherited_environment())


@app.command()
@_one_line_errors
def simulate(
    policies: Policies = [SHIPPED],  # noqa: B006 - typer copies it
    default: Default = "default",
    lanes: Lanes = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests, over all tasks and temperatures.")] = 1000,
    rate: Annotated[float, typer.Option(min=0.001, help="Arrivals a second.")] = 1.0,
    alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="Acceptance of every draft; else as the priors say.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and acceptance.")] = 1,
    records: Annotated[Path | None, typer.Option(help="Write the requests here, for replay and tune.")] = None,
) -> None:
    """Run a policy, with its learning, against a model of lanes: costs, acceptance, arrivals."""
    from rich.console import Console

    from outrider.cli.policy_lab import read_lanes, run_simulation, simulation_table, write_records

    policy_set = load_policies(_source(policies, default))
    served = run_simulation(policy_set, read_lanes(lanes), (requests, rate, alpha), seed)
    Console().print(simulation_table(served))
    if records is not None:
        write_records(records, served)


@app.command()
@_one_line_errors
def replay(
    records: Annotated[Path, typer.Argument(help="A learning store, or one JSON object a line.")],
    policies: Policies = [SHIPPED],  # noqa: B006 - typer copies it
    default: Default = "default",
    lanes: Lanes = None,
    plan: Annotated[str | None, typer.Option(help="One plan for all, as ngram:3 or off; else the policy.")] = None,
) -> None:
    """Expected speeds of recorded requests under another policy, drafter or k; on the lane of the name that each ran
    on, or else on the first."""
    from rich.console import Console

    from outrider.cli.policy_lab import can_run, read_records, recorded_lanes, replay_table
    from outrider.policy.evaluate import Evaluator

    found = read_records(records)
    policy_set = load_policies(_source(policies, default))
    evaluator = Evaluator(recorded_lanes(lanes), found)
    fixed = None if plan is None else _read_plan(plan)
    for lane in {id(lane): lane for lane in map(evaluator.lane_of, found)}.values():
        if fixed is not None and not can_run(lane, fixed):
            raise ConfigError(f"--plan: lane {lane.name} has no {fixed.drafter} with k {fixed.k}")
    replayed = list(evaluator.replay(found, policy_set, fixed))
    Console().print(replay_table(replayed))


@app.command()
@_one_line_errors
def tune(
    records: Annotated[Path, typer.Argument(help="A learning store, or one JSON object a line.")],
    policies: Policies = [SHIPPED],  # noqa: B006 - typer copies it
    default: Default = "default",
    lanes: Lanes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files; else they are printed.")] = None,
) -> None:
    """The policy files with limits from recorded requests, the expected gain, its confidence, and hints; on the lane
    of the name that each ran on, or else on the first. All else that the files say stays."""
    from outrider.cli.policy_lab import read_records, recorded_lanes, write_file
    from outrider.policy.evaluate import Evaluator, advise
    from outrider.policy.tuning import to_yaml

    found = read_records(records)
    source = _source(policies, default)
    policy_set, texts = load_policies(source), texts_of(source)
    for advice in advise(Evaluator(recorded_lanes(lanes), found), found):
        if advice.workload not in policy_set.workloads:
            known = ", ".join(policy_set.workloads)
            raise ConfigError(f"{records}: no policy file for workload {advice.workload!r}, only for {known}")
        text = to_yaml(advice, policy_set.policy(advice.workload), texts[advice.workload])
        if out is None:
            typer.echo(text)
        else:
            write_file(out / f"{advice.workload}.yaml", text)
            typer.echo(f"{out / f'{advice.workload}.yaml'}: expected gain {advice.gain:.2f} +- {advice.margin:.2f}")


@app.command()
def speed(decisions: Annotated[int, typer.Option(min=100, help="Decisions per row.")] = 20_000) -> None:
    """CPU time of one decision with 8 lanes and 7 drafters; other processes do not count."""
    from outrider.cli.policy_lab import decision_times

    for name, learns in (("nothing new learnt", False), ("every answer learnt", True)):
        decided, learnt = (_median_and_p99(times) for times in decision_times(decisions, learns=learns))
        typer.echo(f"{name}: {decided}" + (f"; to learn from it: {learnt}" if learns else ""))


def _median_and_p99(times: Sequence[float]) -> str:
    """Of ascending seconds."""
    median_us, p99_us = (times[int(len(times) * share)] * 1e6 for share in (0.5, 0.99))
    return f"median {median_us:.0f} us, p99 {p99_us:.0f} us"


def _read_plan(text: str) -> Plan:
    drafter, _, k = text.partition(":")
    try:
        return PLAN_OFF if text == "off" else Plan(drafter, int(k))
    except ValueError as error:
        raise ConfigError(f"--plan: expected off or DRAFTER:K, found {text!r}: {error}") from error


@app.command()
def schema() -> None:
    """Print the JSON Schema of policy files."""
    typer.echo(orjson.dumps(policy_schema(), option=orjson.OPT_INDENT_2))


def _read_body(request: str) -> dict[str, Any]:
    """The request body; ConfigError names the field. Checks what the policy reads, not all of the API."""
    try:
        data = sys.stdin.buffer.read() if request == "-" else Path(request).read_bytes()
        body = orjson.loads(data)
    except OSError as error:
        raise ConfigError(f"{request}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{request}: not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise ConfigError(f"{request}: expected a JSON object")
    if not isinstance(body.get("messages"), list) and not isinstance(body.get("prompt"), str | list):
        raise ConfigError(f"{request}: messages: expected a list of messages, or a prompt")
    temperature = body.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if temperature is not None and not (is_number and temperature >= 0):
        raise ConfigError(f"{request}: temperature: expected a number from 0, found {temperature!r}")
    return body


def _read_headers(headers: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for header in headers:
        name, colon, value = header.partition(":")
        if not (name.strip() and colon):
            raise ConfigError(f"--header: expected NAME:VALUE, found {header!r}")
        pairs[name.strip().lower()] = value.strip()
    return pairs


def _read_hints(request: str, body: dict[str, Any]) -> Hints:
    try:
        return Hints.model_validate(body["outrider"] if body.get("outrider") is not None else {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("outrider", *first["loc"]))
        raise ConfigError(f"{request}: {where}: {first['msg']} (found {first['input']!r})") from error


def _to_json(decision: Decision) -> dict[str, Any]:
    return {
        "plan": decision.plan.to_wire(),
        "workload": decision.workload,
        "rule": decision.rule,
        "reasons": list(decision.reasons),
        "lane": decision.lane,
        "candidates": decision.candidates(),
        "features": asdict(decision.features),
        "requests": decision.load.num_requests if decision.load else None,
    }


def _to_text(decision: Decision) -> str:
    plan = decision.plan
    load = f"{decision.load.num_requests} on the lane" if decision.load else "unknown"
    lines = [
        f"plan      {'off' if plan.is_off else f'{plan.drafter}, k {plan.k}'}",
        f"workload  {decision.workload}",
        f"rule      {decision.rule}",
        "reasons",
        *(f"  - {reason}" for reason in decision.reasons),
        "features",
        *(f"  {name}: {value}" for name, value in asdict(decision.features).items()),
        f"  requests: {load}",
    ]
    return "\n".join(lines)
