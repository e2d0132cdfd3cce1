"""Runs one command and lets no process of it outlive its launcher: `python guard.py GRACE_S COMMAND...`.

The launcher holds the other end of standard input. When that ends, or on SIGTERM, the command gets SIGTERM, and after
the grace the whole process group, this process too, is killed. Should this process be killed itself, the kernel kills
the command with it. Only the standard library is imported, and nothing of ours: it starts in a moment.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_POLL_S = 0.1


def guarded(command: Sequence[str], grace_s: float) -> tuple[str, ...]:
    """The command line that runs `command` under guard. It must lead its process group."""
    return (sys.executable, "-I", __file__, str(grace_s), *command)


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command, 128 plus the number of the signal that ended it."""
    grace_s, command = float(arguments[0]), arguments[1:]
    is_asked = False

    def on_signal(*_: object) -> None:
        nonlocal is_asked
        is_asked = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_prepare)
    while child.poll() is None and not is_asked and not _has_launcher_left():
        pass
    if child.poll() is None:
        child.terminate()
        ends_at_s = time.monotonic() + grace_s
        while child.poll() is None and time.monotonic() < ends_at_s:
            time.sleep(_POLL_S)
    code = child.poll()
    if _has_launcher_left():
        os.killpg(0, signal.SIGKILL)
    if code is None:
        child.kill()
        code = child.wait()
    return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _prepare() -> None:
    """In the child, before it becomes the command: it dies with us, and heeds signals as usual."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _has_launcher_left() -> bool:
    """Wait a moment for the end of standard input."""
    readable, _, _ = select.select([0], [], [], _POLL_S)
    return bool(readable) and os.read(0, 4096) == b""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
