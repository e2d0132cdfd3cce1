"""Fixtures that several test packages share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from markov import random_chain, write_markov_checkpoint
from outrider.config import DEFAULT_MODEL, cache_dir


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
