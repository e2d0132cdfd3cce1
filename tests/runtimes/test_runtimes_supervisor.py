from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager

from gateway.world import eventually
from outrider.core import LaneState
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.launch import Launch
from outrider.runtimes.load import LaneWatch
from outrider.runtimes.process import Log
from outrider.runtimes.supervisor import Backoff, Supervisor
from outrider.telemetry.metrics import Metrics
from processes import is_alive

#: A lane as a process: serves until its standard input ends.
SERVER = """
import asyncio, sys
from outrider.runtimes.scripted import ScriptedLane
async def main(port):
    async with ScriptedLane(port=port):
        print("scripted lane serves", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main(int(sys.argv[1])))
"""
#: The same, but it neither heeds SIGTERM nor its standard input.
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("no", flush=True)
time.sleep(60)
"""


def python(source):
    return lambda port: Launch((sys.executable, "-c", source, str(port)))


@asynccontextmanager
async def supervised(command, *, ready_timeout_s=30.0, backoff=None, log=None):
    """A supervisor and a watch at work."""
    metrics = Metrics()
    backoff = backoff or Backoff(first_s=0.05, limit_s=0.2)
    async with LaneClient(metrics) as client:
        lane = Lane("a")
        supervisor = Supervisor(lane, command, metrics, ready_timeout_s=ready_timeout_s, backoff=backoff, log=log)
        tasks = [asyncio.create_task(supervisor.run()), asyncio.create_task(LaneWatch(supervisor.lane, client).run())]
        try:
            yield supervisor
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert supervisor.lane.state is LaneState.STOPPED


async def test_a_process_starts_serves_and_is_stopped():
    """Its output is kept; after the stop neither the process nor its lane is there."""
    async with supervised(python(SERVER)) as supervisor:
        assert supervisor.lane.state is LaneState.STARTING
        await eventually(lambda: supervisor.lane.is_ready)
        assert "scripted lane serves" in supervisor.log
        pid = supervisor.process.pid
        assert is_alive(pid)
        assert "ready" in repr(supervisor)
    assert not is_alive(pid)


async def test_a_killed_process_is_restarted():
    """The lane fails with the reason, then serves again from another process."""
    async with supervised(python(SERVER), backoff=Backoff(first_s=0.3)) as supervisor:
        lane = supervisor.lane
        await eventually(lambda: lane.is_ready)
        pid = supervisor.process.pid
        os.kill(pid, 9)
        await eventually(lambda: lane.state is LaneState.FAILED)
        await eventually(lambda: "exit code -9" in lane.reason)
        assert "scripted lane serves" in lane.reason
        assert lane.url is None and lane.serves("scripted")
        await eventually(lambda: lane.is_ready)
        assert supervisor.process.pid != pid


async def test_a_process_that_fails_to_start_shows_why():
    """The last lines are in the reason; it is tried again, with more time between."""
    source = "import sys; print('first'); sys.exit('no such model')"
    async with supervised(python(source), backoff=Backoff(first_s=0.1)) as supervisor:
        lane = supervisor.lane
        await eventually(lambda: lane.state is LaneState.FAILED and "exit code 1" in lane.reason)
        assert "no such model" in lane.reason
        await eventually(lambda: b"outrider_lane_restarts_total" in supervisor._metrics.render({}) and
                         b'restarts_total{lane="a"} 1.0' in supervisor._metrics.render({}))  # fmt: skip


async def test_all_that_a_process_writes_is_in_a_file(tmp_path, caplog):
    """Over several starts, for when the last lines are not enough; where it is, is told with each failure."""
    path = tmp_path / "logs" / "a.log"
    source = "import sys; print('first'); sys.exit('no such model')"
    async with supervised(python(source), log=Log(path)):
        await eventually(lambda: path.exists() and path.read_text().count("no such model") >= 2)
    assert path.read_text().startswith("first\nno such model\n")
    assert f"all that it wrote is in {path}" in caplog.text


async def test_a_cause_that_is_known_is_told_alone():
    """What was written before it and after it would hide it: of a bad flag, all the flags that there are."""
    source = (
        "import sys; print('usage: all flags'); print('x: error: unrecognized arguments: --nope'); sys.exit('end')"
    )
    async with supervised(python(source)) as supervisor:
        await eventually(
            lambda: supervisor.lane.state is LaneState.FAILED and "exit code 1" in supervisor.lane.reason
        )
        assert supervisor.lane.reason.endswith("exit code 1: bad flag: unrecognized arguments: --nope")


async def test_a_program_that_does_not_exist_is_a_failure():
    """Not an exception that ends the supervision."""
    async with supervised(lambda _port: Launch(("/no/such/program",))) as supervisor:
        await eventually(lambda: supervisor.lane.state is LaneState.FAILED)
        assert "cannot be started" in supervisor.lane.reason


async def test_a_process_that_is_never_ready_is_replaced():
    """After the timeout it is stopped, and the reason says so."""
    source = "import time; print('loading', flush=True); time.sleep(60)"
    async with supervised(python(source), ready_timeout_s=1.5) as supervisor:
        await eventually(lambda: supervisor.process is not None)
        pid = supervisor.process.pid
        await eventually(lambda: supervisor.lane.state is LaneState.FAILED)
        assert supervisor.lane.reason == "not ready within 1.5 s: loading"
        await eventually(lambda: not is_alive(pid))


async def test_kill_ends_a_stubborn_process_at_once():
    """For the operator who does not want to wait."""
    async with supervised(python(STUBBORN)) as supervisor:
        await eventually(lambda: "no" in supervisor.log)
        pid = supervisor.process.pid
        supervisor.kill()
        await eventually(lambda: not is_alive(pid))


def test_backoff_doubles_to_a_limit_and_forgets_after_health():
    """0.5, 1, 2 ... 30 seconds; a healthy minute begins anew."""
    backoff = Backoff()
    assert [backoff.after(0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(59) == 30
    assert backoff.after(60) == 0.5
    assert backoff.after(1) == 1
