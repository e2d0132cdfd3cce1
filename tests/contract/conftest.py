"""Servers that the contract is run against: the embedded engine, and real SGLang on a CPU, one at a time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from not_run import not_run
from outrider.app import located
from outrider.profiles import LaneSection, SGLangSection
from outrider.runtimes import sglang_env
from outrider.runtimes.launch import engine_launch, sglang_launch

READY_S = 420.0
NAME = "smollm2-135m-instruct"
#: A draft model that is the target itself: every draft is accepted, so that whole runs of tokens are verified.
SPECULATION = {
    "plain": {},
    "ngram": {"speculation": {"drafter": "ngram", "k": 7}},
    "draft_model": {"speculation": {"drafter": "draft_model", "k": 3, "draft": NAME}},
}


@dataclass(frozen=True)
class Server:
    """One server that is ready."""

    url: str
    drafter: str
    """The one that its plans name; `off` when it has none."""
    k: int
    context_length: int


def section(kind: str) -> LaneSection | SGLangSection:
    if kind == "embedded":
        return LaneSection(model=NAME, max_running=8, max_total_tokens=4096, context_length=1024)
    return SGLangSection(
        name=kind.replace("_", "-"), kind="sglang", device="cpu", max_running=8, max_total_tokens=4096,
        context_length=1024, flags=("--mem-fraction-static", "0.9"), **SPECULATION[kind],
    )  # fmt: skip


@pytest.fixture(
    scope="session",
    params=["embedded", *(pytest.param(kind, marks=pytest.mark.sglang) for kind in SPECULATION)],
)
def server(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind = request.param
    if kind != "embedded" and not sglang_env.is_ready():
        not_run("real SGLang lanes, whose environment is not there; build it with: make sglang-env")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one = section(kind)
    launch = (
        engine_launch(one, port) if isinstance(one, LaneSection) else sglang_launch(one, port, located, os.environ)
    )
    log = tmp_path_factory.mktemp("contract") / f"{kind}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            launch.argv,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=launch.environment,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
        drafter, k = {"embedded": ("ngram", 5), "plain": ("off", 0), "ngram": ("ngram", 7)}.get(kind, (kind, 3))
        yield Server(f"http://127.0.0.1:{port}", drafter, k, 1024)
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    ends_at_s = time.monotonic() + READY_S
    while time.monotonic() < ends_at_s:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with suppress(OSError), urllib.request.urlopen(url + "/ready", timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"not ready after {READY_S} s: {log.read_text(errors='replace')[-3000:]}")
