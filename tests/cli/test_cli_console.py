"""What every command's process is set to."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import asyncio, gc, resource
from outrider.cli.console import run_async

async def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(gc.get_threshold()[0] > 700, soft == hard, type(asyncio.get_running_loop()).__module__)

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
run_async(main())
"""


def test_a_command_may_open_many_files_and_collects_rarely():
    """A thousand streams have two thousand sockets, and much that no collector needs to look at all the time."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "uvloop"]
