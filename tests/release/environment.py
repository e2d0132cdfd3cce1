"""The tools by which a release is checked: linters, and what lists licences, parts and vulnerabilities."""

from __future__ import annotations

import sys
from pathlib import Path

from tool_environment import ToolEnvironment

TOOLS = ToolEnvironment("release", Path(__file__).with_name("requirements.lock"))

if __name__ == "__main__":
    try:
        TOOLS.build()
    except OSError as error:
        sys.exit(f"the tools of releases cannot be had: {error}")
