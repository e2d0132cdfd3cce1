"""The conditions of a measurement: without them its numbers say nothing."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version

from outrider.cost import cpu_name
from outrider.version import __version__


def conditions(**extra: object) -> dict[str, object]:
    """Machine, versions, time and command of this run, and whatever the caller adds."""
    return {
        "command": " ".join(["outrider", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": cpu_name(),
        "num_cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "outrider": __version__,
        **{name: _version(name) for name in ("torch", "transformers", "llama-cpp-python", "aiohttp")},
        **extra,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
