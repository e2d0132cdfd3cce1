"""Runs `outrider policy` as a user would, with a request and lanes in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from outrider.cli.policy import app

CODE = {"messages": [{"role": "user", "content": "Write a Python function that adds."}], "temperature": 0}
LANES = '[{"name": "one", "drafters": [{"drafter": "ngram", "ks": [1, 2]}], "cost": {"step_s": 0.02, "knee": 64}}]'


def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit status, output and errors."""
    result = CliRunner().invoke(app, list(args), input=stdin)
    return result.exit_code, result.stdout, result.stderr


def request(directory: Path, body: Any) -> str:
    """The path of a file with this body."""
    path = directory / "request.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
    return str(path)
