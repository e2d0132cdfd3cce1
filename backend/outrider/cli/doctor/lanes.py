"""Checks of lanes: what those that we start need, what those of others say, and the store of runs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from outrider.cli.doctor.check import Check
from outrider.config import Config, LaneSection, SGLangSection, UrlSection, cache_dir, inherited_environment
from outrider.errors import ConfigError, ModelError, SetupError, StoreUnavailable

if TYPE_CHECKING:
    from outrider.runtimes.lane import Lane

_POLL_S = 0.05
_PORT = 30000
#: Longest that an interpreter may take to look for a package.
_RUN_S = 60.0
_HAS_SGLANG = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"


async def checks(config: Config, seconds: float) -> list[Check]:
    """The store and every lane; each wait for an answer is at most `seconds`."""
    found: list[Check] = [await _store(config)]
    for section in config.lanes:
        if isinstance(section, LaneSection):
            found += _embedded(section)
        elif isinstance(section, SGLangSection):
            found += _launched(section)
    if any(isinstance(section, UrlSection) for section in config.lanes):
        found += await _asked(config, seconds)
    return found


async def _store(config: Config) -> Check:
    if config.runs.url is None:
        return Check("runs", "ok", "kept in the cache folder by `outrider serve`, nowhere by other starts")
    from outrider.runs.store import RunStore

    try:
        store = RunStore(config.runs)
        try:
            await store.open()
        finally:
            await store.close()
    except (ConfigError, StoreUnavailable) as error:
        return Check("runs", "fail", error.message, "correct runs.url, or start its database")
    return Check("runs", "ok", store.where)


def _embedded(section: LaneSection) -> Iterator[Check]:
    """The model, and what rounds cost on this machine."""
    name = f"lane {section.name}"
    try:
        import torch

        from outrider.engine.profile import read_table, table_path
        from outrider.engine.pull import locate
    except ImportError as error:
        yield Check(name, "fail", f"the engine is not installed: {error}", "pip install 'outrider[engine]'")
        return
    try:
        folder = locate(section.model, cache_dir())
    except ModelError as error:
        yield Check(name, "fail", error.message, "pull the model, or name a folder")
        return
    yield Check(name, "ok", f"model in {folder}")
    if section.num_threads is not None:
        torch.set_num_threads(section.num_threads)  # a table is of so many
    path = table_path(folder, cache_dir())
    remedy = f"outrider profile --model {section.model}"
    try:
        table = read_table(path)
    except ModelError as error:
        yield Check(f"{name} cost", "fail", error.message, remedy)
        return
    if table is None:
        yield Check(f"{name} cost", "warn", "no cost table of this model, machine and build: typical costs are taken",
                    remedy)  # fmt: skip
    else:
        yield Check(f"{name} cost", "ok", f"measured on this machine: {path}")


def _launched(section: SGLangSection) -> Iterator[Check]:
    """What the command needs that would start it."""
    from outrider.app import located
    from outrider.runtimes.launch import interpreter, local_launch

    name = f"lane {section.name}"
    try:
        launch = local_launch(section, _PORT, located, inherited_environment())
    except SetupError as error:
        yield Check(name, "fail", error.message, "do what it says, or correct the profile")
        return
    python = str(interpreter(section))
    try:
        looked = subprocess.run([python, "-c", _HAS_SGLANG], env=launch.environment, check=False, timeout=_RUN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check(name, "fail", f"{python} cannot be run: {error}", "name an interpreter with SGLang")
        return
    if looked.returncode != 0:
        yield Check(name, "fail", f"{python} has no SGLang", "pip install 'outrider[sglang]' there, or name another")
        return
    yield Check(name, "ok", f"would be started by {python}; `outrider lanes plan` shows the command")


async def _asked(config: Config, seconds: float) -> list[Check]:
    """Those that somebody else runs, as they are now, whatever the rest of the configuration is like."""
    from outrider.app import looking_after

    async with looking_after(Config(lanes=config.lanes), has_processes=False) as gateway:
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + seconds
        while loop.time() < ends_at_s:
            if gateway.pool.lanes and all(lane.is_ready for lane in gateway.pool.lanes):
                break
            await asyncio.sleep(_POLL_S)
        if not gateway.pool.lanes:
            return [Check("lanes", "fail", "no name of a lane can be resolved", "correct the urls")]
        return [check for lane in gateway.pool.lanes for check in _lane(lane)]


def _lane(lane: Lane) -> Iterator[Check]:
    name = f"lane {lane.name}"
    if not lane.is_ready:
        yield Check(name, "fail", f"{lane.url}: {lane.reason}", "start it, or correct its url")
        return
    able = lane.abilities
    drafters = ", ".join(f"{drafter} k {ks.min}-{ks.max}" for drafter, ks in able.drafters.items()) or "none"
    yield Check(name, "ok", f"{lane.url} serves {', '.join(card.id for card in lane.models)}; drafters: {drafters}")
    for disagreement in lane.disagreements:
        yield Check(f"{name} profile", "warn", disagreement,
                    "correct the profile or the server; its word counts")  # fmt: skip
    if able.is_embedded:
        if able.cost is None:
            yield Check(f"{name} cost", "warn", "it measured no costs: typical ones are taken",
                        "outrider profile, on its machine")  # fmt: skip
    elif able.plugin is None and able.drafters:
        yield Check(f"{name} plugin", "warn", "our plugin is not active: k is what it was launched with",
                    "install outrider where SGLang runs")  # fmt: skip
    elif able.plugin is not None:
        yield Check(f"{name} plugin", "ok", f"active: {', '.join(able.plugin)}")
