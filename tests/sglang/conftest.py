"""Fixtures of real SGLang lanes: one server per lane for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fleet import LANES, Fleet, Lane
from servers import Server
from toys import two_halves, write_draft_model, write_eagle_head

from markov import write_markov_checkpoint
from not_run import not_run
from outrider.runtimes import sglang_env


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    """Nothing else tests real lanes, so that a missing environment is told."""
    if not sglang_env.is_ready():
        not_run("real SGLang lanes, whose environment is not there; build it with: make sglang-env")


@pytest.fixture(scope="session")
def halves() -> np.ndarray:
    return two_halves(np.random.default_rng(7))


@pytest.fixture(scope="session")
def fleet(halves: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("lanes")
    write_markov_checkpoint(root / "target", halves)
    write_draft_model(root / "draft", halves)
    write_eagle_head(root / "head", root / "target", halves)
    fleet = Fleet({"TARGET": root / "target", "DRAFT": root / "draft", "HEAD": root / "head"}, root)
    try:
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="session", params=LANES, ids=lambda lane: lane.name)
def lane(request: pytest.FixtureRequest) -> Lane:
    return request.param


@pytest.fixture(scope="session")
def server(lane: Lane, fleet: Fleet) -> Server:
    return fleet.get(lane)
