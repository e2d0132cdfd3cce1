"""`outrider serve` as a command of its own, for `outrider bench workers`; what processes use, seen from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import orjson

from outrider.cli.bench.servers import API_KEY, Server, descendants, ended_with_block
from outrider.config import inherited_environment

_LISTENS = re.compile(rb"gateway listens on (\S+)")
_START_S = 120.0
_STOP_S = 30.0
_POLL_S = 0.1
_PROBES = 16
#: Kind of a process's clock in its number: what its threads have run together.
_CPU_CLOCK = 2


@contextmanager
def served(num_workers: int, lane_urls: Sequence[str]) -> Iterator[Server]:
    """With a key and its limits, policies and metrics on; ready when the command says so. TimeoutError."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        key = {"name": "bench", "sha256": sha256(API_KEY.encode()).hexdigest(), "is_admin": True}
        limits = {"requests_per_min": 10**9, "tokens_per_min": 10**12}
        config = {
            "server": {"shutdown_grace_s": 1},
            "admission": {"max_in_flight": 100_000},
            "auth": {"keys": [key | limits]},
            "lanes": [{"name": "bench", "kind": "url", "urls": list(lane_urls)}],
        }
        file = folder / "config.yaml"
        file.write_bytes(orjson.dumps(config))  # JSON is YAML
        command = [sys.executable, "-m", "outrider", "serve", "--config", str(file)]
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                [*command, "--port", "0", "--workers", str(num_workers)], stdout=log, stderr=log,
                env=inherited_environment() | {"OUTRIDER_CACHE": name},
            )  # fmt: skip
            with ended_with_block(process, _STOP_S):
                url = _url(process, log)
                _wait_for_workers(url)
                yield Server(f"{num_workers} workers", url, process.pid)


def _url(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """Once the command says that the lanes are ready."""
    said, ends_s = b"", time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < ends_s:
        log.seek(0)
        said = log.read()
        found = _LISTENS.search(said)
        if found is not None and b"Try it:" in said:
            return found[1].decode()
        time.sleep(_POLL_S)
    raise TimeoutError(f"the gateway did not start: {said.decode(errors='replace')[-1000:]}")


def _wait_for_workers(url: str) -> None:
    """Each of them looks after the lanes by itself; so many connections meet all."""
    ends_s = time.monotonic() + _START_S
    while not all(_is_ready(url) for _ in range(_PROBES)):
        if time.monotonic() > ends_s:
            raise TimeoutError("some worker of the gateway has no lane")
        time.sleep(_POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=_STOP_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def cpu_s(pid: int) -> float:
    """Processor time that the process and its living descendants have used."""
    return sum(_cpu_s(one) for one in (pid, *descendants(pid)))


def _cpu_s(pid: int) -> float:
    """By the clock that the kernel has for every process; the times under /proc are coarse."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:  # it has ended
        return 0.0


def busy_s() -> float:
    """Processor time that the whole machine has used, by whomever."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = (
        int(part) for part in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
