"""`outrider doctor`: what is wrong before a gateway is started, or with the one that runs, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import run_async
from outrider.cli.doctor.check import Check
from outrider.config import Config, load_config
from outrider.errors import ConfigError


def doctor(
    config: Annotated[Path | None, typer.Option(help="Configuration file; without it, the defaults.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long lanes may take to answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check configuration, keys, policies, ports, limits, disk, store, models and lanes; exit code 1 on a failure."""
    checks: list[Check] = []
    run_async(_checked(config, seconds, checks))
    has_failed = any(check.level == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not has_failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for line in _lines(checks):
            typer.echo(line)
    if has_failed:
        raise typer.Exit(1)


def _lines(checks: list[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.level:<5} {check.name:<{width}}  {check.found}"
        if check.remedy:
            yield f"{'':<6}{'':<{width}}  -> {check.remedy}"


async def _checked(path: Path | None, seconds: float, checks: list[Check]) -> None:
    """What follows from a configuration is checked when there is one."""
    from outrider.cli.doctor import lanes, local

    config = _read(path, checks)
    if config is None:
        return
    checks += local.checks(config)
    checks += await lanes.checks(config, seconds)


def _read(path: Path | None, checks: list[Check]) -> Config | None:
    where = "the defaults" if path is None else str(path)
    try:
        config = load_config(path)
    except ConfigError as error:
        checks.append(Check("config", "fail", error.message, "correct the file; the key is named"))
        return None
    checks.append(Check("config", "ok", where))
    return config
