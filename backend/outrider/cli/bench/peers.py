"""Peers of the gateway for `outrider bench gateway`: each in an environment of its own under the user's cache."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import typer

from outrider.cli.bench.servers import MODEL, Server, ended_with_block
from outrider.config import cache_dir
from outrider.errors import ConfigError

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A package and how its server is started."""

    requirement: str
    command: Sequence[str]
    """With `{bin}`, `{port}`, `{lane}` and `{config}` to be filled in."""
    config: str = ""
    health: str = "/health"


PEERS = {
    "sglang-router": Peer(
        "sglang-router",
        ("{bin}/python", "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", "{port}",
         "--worker-urls", "{lane}", "--policy", "round_robin", "--prometheus-port", "{other}"),
    ),
    "smg": Peer(
        "smg",
        ("{bin}/smg", "launch", "--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "{lane}",
         "--policy", "round_robin", "--prometheus-port", "{other}"),
    ),
    "litellm": Peer(
        "litellm[proxy]",
        ("{bin}/litellm", "--host", "127.0.0.1", "--port", "{port}", "--config", "{config}"),
        config=f"model_list: [{{model_name: {MODEL}, litellm_params: "
        f"{{model: openai/{MODEL}, api_base: '{{lane}}/v1', api_key: none}}}}]\n"
        "general_settings: {{master_key: bench-key}}\n",
        health="/health/liveliness",
    ),
}  # fmt: skip


def _environment(name: str, peer: Peer) -> Path:
    """Its folder of commands; made, and filled from the package index, when it is missing."""
    folder = cache_dir() / "peers" / name
    ready = folder / ".ready"
    if not ready.exists():
        typer.echo(f"installing {peer.requirement} into {folder}", err=True)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", peer.requirement]
        if subprocess.run(install, check=False).returncode:
            shutil.rmtree(folder)
            raise ConfigError(f"{peer.requirement} cannot be installed")
        ready.touch()
    return folder / "bin"


@contextmanager
def peer_server(name: str, lane_url: str) -> Iterator[Server]:
    """The peer in front of the lane, for the block. ConfigError when it is unknown or does not start."""
    if name not in PEERS:
        raise ConfigError(f"--peer must be one of {', '.join(PEERS)}, not {name!r}")
    peer = PEERS[name]
    binaries = _environment(name, peer)
    config = binaries.parent / "config.yaml"
    config.write_text(peer.config.format(lane=lane_url), encoding="utf-8")
    port, other = _free_port(), _free_port()
    filled = [
        part.format(bin=binaries, port=port, other=other, lane=lane_url, config=config) for part in peer.command
    ]
    with (binaries.parent / "log").open("wb") as log:
        process = subprocess.Popen(filled, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        with ended_with_block(process, 5.0):
            url = f"http://127.0.0.1:{port}"
            _await_health(name, process, url + peer.health, Path(log.name))
            yield Server(name, url, process.pid)


def _await_health(name: str, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            with urlopen(url, timeout=2):
                time.sleep(2)  # a router is healthy before it has found its workers
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise ConfigError(f"{name} did not start; its log is {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
