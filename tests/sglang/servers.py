"""Real SGLang servers of this test session: started with our plugin on a free port, and stopped whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from outrider.runtimes import sglang_env

READY_S = 420.0
_FLAGS = (
    "--device", "cpu", "--attention-backend", sglang_env.ATTENTION_BACKEND, "--dtype", "float32",
    "--host", "127.0.0.1", "--max-total-tokens", "8192", "--mem-fraction-static", "0.8",
    "--max-running-requests", "8", "--skip-server-warmup", "--sleep-on-idle", "--disable-cuda-graph",
)  # fmt: skip


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Server:
    """One running lane."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @classmethod
    def start(cls, model: Path, log: Path, *flags: str) -> Server:
        port = _free_port()
        command = [str(sglang_env.python()), "-m", "sglang.launch_server", "--model-path", str(model)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, *_FLAGS, "--port", str(port), *flags],
                env={**sglang_env.cpu_variables(os.environ), "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, port, log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        """AssertionError with the log's end when the server dies or is too slow."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            with suppress(OSError):
                self.ask("/ready", None, timeout_s=5)
                return
            time.sleep(0.5)
        raise AssertionError(f"not ready after {READY_S} s: {self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, body: dict[str, Any] | None, timeout_s: float = 180.0) -> tuple[int, bytes]:
        """Status and body of a GET, or of a POST with a body. OSError when nobody answers, or with a 5xx."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            if error.code >= 500:
                raise
            return error.code, error.read()

    def generate(self, body: dict[str, Any]) -> Any:
        """`/generate`; a list of answers when the prompt is a list."""
        status, answer = self.ask("/generate", body)
        assert status == 200, answer
        return json.loads(answer)

    def abilities(self) -> dict[str, Any]:
        """What the plugin says of itself."""
        return json.loads(self.ask("/server_info", None)[1])["internal_states"][0]["outrider"]
