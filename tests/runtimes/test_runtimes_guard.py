from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gateway.world import eventually
from outrider.runtimes.guard import guarded

#: Starts a child of its own, tells both ids, and heeds no sign.
STUBBORN_FAMILY = (
    "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    "print(os.getpid(), child.pid, flush=True); time.sleep(60)"
)


def start(source, grace_s=0.2):
    command = guarded([sys.executable, "-c", source], grace_s)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_when_the_launcher_goes_so_does_the_whole_family():
    """The end of standard input is all that is left of a launcher that was killed."""
    process = start(STUBBORN_FAMILY)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert not any(map(is_gone, pids))
    process.stdin.close()
    await eventually(lambda: all(map(is_gone, pids)))
    process.wait()
    process.stdout.close()


async def test_a_guard_that_is_killed_takes_its_command_along():
    """By the kernel; the launcher's kill of the group takes the rest."""
    process = start(STUBBORN_FAMILY)
    command, child = (int(pid) for pid in process.stdout.readline().split())
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: is_gone(command))
    os.killpg(process.pid, signal.SIGKILL)
    await eventually(lambda: is_gone(child))
    process.communicate()


@pytest.mark.parametrize(
    ("source", "expected"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)]
)
def test_the_commands_exit_code_is_told(source, expected):
    """A signal as a shell tells it."""
    process = start(source)
    assert process.wait(60) == expected
    process.communicate()


def test_sigterm_reaches_the_command_and_gives_it_time():
    """It may end in its own way."""
    source = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print('up', flush=True); time.sleep(60)"
    )
    process = start(source, grace_s=60)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(60) == 7
    process.communicate()
