"""Fixtures that several test packages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from markov import random_chain, write_markov_checkpoint
from not_run import summary
from outrider.config import DEFAULT_MODEL, cache_dir


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """What was not run stands last, below all that passed."""
    yield
    for line in summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The small real model, fetched once."""
    from outrider.engine.pull import pull

    return pull(DEFAULT_MODEL, cache_dir())


@pytest.fixture(scope="session")
def chain() -> np.ndarray:
    """Log probabilities of a Markov chain over four of the toy's tokens."""
    return random_chain(np.random.default_rng(3), num_states=4, sharpness=1.2)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> Path:
    """A checkpoint that follows `chain`."""
    folder = tmp_path_factory.mktemp("toy") / "markov"
    write_markov_checkpoint(folder, chain)
    return folder
