"""Servers that the contract is run against: the embedded engine, and real SGLang, one at a time.

SGLang runs on a CPU, or where `tests/gpu/lanes.sh` says so on a GPU, with the model and heads that it is given.
"""

from __future__ import annotations

import json
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
DEVICE = os.environ.get("OUTRIDER_LANES_DEVICE", "cpu")
MODEL = os.environ.get("OUTRIDER_LANES_MODEL", NAME)
#: A draft model that is the target itself: every draft is accepted, so that whole runs of tokens are verified.
SPECULATION = {
    "plain": {},
    "ngram": {"speculation": {"drafter": "ngram", "k": 7}},
    "draft_model": {"speculation": {"drafter": "draft_model", "k": 3, "draft": MODEL}},
}
SPECULATION |= {
    drafter: {"speculation": {"drafter": drafter, "k": 3, "draft": head}}
    for drafter in ("eagle2", "eagle3")
    if (head := os.environ.get(f"OUTRIDER_LANES_{drafter.upper()}"))
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
        name=kind.replace("_", "-"), kind="sglang", model=MODEL, served_model_name=NAME, device=DEVICE, max_running=8,
        max_total_tokens=4096, context_length=1024, flags=("--mem-fraction-static", "0.9"), **SPECULATION[kind],
    )  # fmt: skip


@pytest.fixture(
    scope="session",
    params=["embedded", *(pytest.param(kind, marks=pytest.mark.sglang) for kind in SPECULATION)],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind = request.param
    if kind == "embedded" or MODEL == NAME:
        request.getfixturevalue("model_folder")
    if kind != "embedded" and DEVICE == "cpu" and not sglang_env.is_ready():
        not_run("real SGLang lanes, whose environment is not there; build it with: make sglang-env")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lane = section(kind)
    is_ours = isinstance(lane, LaneSection)
    launch = engine_launch(lane, port) if is_ours else sglang_launch(lane, port, located, os.environ)
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
        one = Server(f"http://127.0.0.1:{port}", drafter, k, 1024)
        yield one
        if DEVICE != "cpu":
            print(f"\n{kind}: {_tokens_per_s(one):.1f} tokens/s, one request at a time")
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tokens_per_s(server: Server, num_tokens: int = 256) -> float:
    """Of an answer that repeats its prompt, once more after a first one."""
    params = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"text": "one two three four " * 32, "sampling_params": params}).encode()
    for _ in range(2):
        began_s = time.perf_counter()
        request = urllib.request.Request(f"{server.url}/generate", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    return num_tokens / (time.perf_counter() - began_s)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    ends_at_s = time.monotonic() + READY_S
    while time.monotonic() < ends_at_s:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with suppress(OSError), urllib.request.urlopen(url + "/ready", timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"not ready after {READY_S} s: {log.read_text(errors='replace')[-3000:]}")
