"""Other makers' checkers of protocols, and the source of openai's own tests."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from outrider.config import cache_dir
from tool_environment import ToolEnvironment

LOCK = Path(__file__).with_name("requirements.lock")
TOOLS = ToolEnvironment("conformance", LOCK)


def openai_tests() -> Path:
    """The source of the locked version of openai, which has its tests, unpacked. OSError when it cannot be had."""
    version = next(line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("openai=="))
    name = version.replace("==", "-")
    unpacked = cache_dir() / "conformance-sources" / name
    if not unpacked.is_dir():
        archives = TOOLS.folder / "sources"
        TOOLS.pip("download", "--no-deps", "--no-binary", "openai", "--dest", str(archives), version)
        with tarfile.open(archives / f"{name}.tar.gz") as archive:
            archive.extractall(unpacked.parent, filter="data")
    return unpacked


if __name__ == "__main__":
    try:
        TOOLS.build()
        openai_tests()
    except OSError as error:
        sys.exit(f"the tools of conformance cannot be had: {error}")
