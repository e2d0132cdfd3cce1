"""Fixtures that several test packages share."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from markov import random_chain, write_markov_checkpoint
from not_run import summary
from outrider.config import DEFAULT_MODEL, cache_dir


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start, also where they run behind a shell's `&`, which has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)
    return certificate, key


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
