from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from gateway.world import eventually
from outrider.errors import LaneFailed
from outrider.runtimes.launch import Launch
from outrider.runtimes.process import ChildProcess, Log
from processes import is_alive


async def start(source, log=None):
    return await ChildProcess.start("x", Launch((sys.executable, "-c", source)), log if log is not None else Log())


async def test_output_is_kept_line_by_line():
    """Both streams, the last 200 lines, odd bytes and a line without an end included."""
    log = Log()
    source = (
        "import sys; [print(i) for i in range(300)]; sys.stdout.flush(); "
        "sys.stderr.write('err\\n'); sys.stderr.flush(); sys.stdout.buffer.write(b'\\xff end')"
    )
    process = await start(source, log)
    assert await process.wait() == 0
    assert len(log) == 200
    assert list(log)[-3:] == ["299", "err", "\ufffd end"]
    await process.stop(1)


async def test_a_line_without_end_does_not_grow_for_ever():
    """It is cut into pieces."""
    log = Log()
    process = await start("print('x' * 200_000)", log)
    await process.wait()
    assert sum(map(len, log)) == 200_000
    assert max(map(len, log)) <= 64 * 1024
    await process.stop(1)


async def test_the_end_of_standard_input_is_a_sign_to_exit():
    """A process that reads it needs no signal."""
    process = await start("import sys, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.read()")
    began_s = time.monotonic()
    await process.stop(60)
    assert time.monotonic() - began_s < 50
    assert not is_alive(process.pid)


async def test_a_stubborn_process_is_killed_with_its_children():
    """After the grace; a grandchild goes with it."""
    log = Log()
    source = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    process = await start(source, log)
    await eventually(lambda: len(log) == 1)
    await process.stop(0.2)
    assert not is_alive(process.pid)
    grandchild = int(next(iter(log)))
    await eventually(lambda: not is_alive(grandchild) or _is_zombie(grandchild))
    assert "exit -9" in repr(process)


def _is_zombie(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


async def test_a_process_that_ended_can_be_stopped_again():
    """Stopping is safe at any time."""
    process = await start("raise SystemExit(3)")
    assert await process.wait() == 3
    await process.stop(1)
    process.kill()


async def test_a_program_that_cannot_be_started_is_a_failure():
    """With its name in the message."""
    with pytest.raises(LaneFailed, match="/no/such"):
        await ChildProcess.start("x", Launch(("/no/such/program",)), Log())


async def test_a_full_disk_ends_the_file_and_not_the_lane(caplog):
    """Said once; the process is read on, and its last lines are known."""
    log = Log(Path("/dev/full"))
    log.begin()
    process = await start("[print('x' * 100) for _ in range(20_000)]; print('end')", log)
    assert await process.wait() == 0
    assert list(log)[-1] == "end"
    await process.stop(1)
    log.close()
    assert [one.message for one in caplog.records] == [
        "the log file /dev/full goes no further: No space left on device"
    ]
