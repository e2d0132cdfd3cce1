"""The commands of all shipped configurations, checked by the argument parser of the pinned SGLang."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from not_run import not_run
from outrider.config import SGLangSection, load_config
from outrider.runtimes import sglang_env
from outrider.runtimes.launch import server_arguments

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

CONFIGS = Path(__file__).parents[2] / "configs"
PARSE = """
import argparse, json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(exit_on_error=False)
ServerArgs.add_cli_args(parser)
for argv in json.load(sys.stdin):
    try:
        parser.parse_args(argv)
        print("ok")
    except (argparse.ArgumentError, SystemExit) as error:
        print("refused:", error)
"""


def test_sglang_takes_every_command_that_we_build() -> None:
    """Of each profile and each rank; and it would notice a flag that it does not know."""
    if not sglang_env.is_ready():
        not_run("SGLang's reading of our commands, whose environment is not there; build it with: make sglang-env")
    sections = [
        section
        for path in sorted(CONFIGS.glob("*.yaml"))
        for section in load_config(path).lanes
        if isinstance(section, SGLangSection)
    ]
    assert len(sections) >= 10
    argvs = [server_arguments(one, 1, str, rank=r) for one in sections for r in range(one.parallel.nodes)]
    argvs.append([*argvs[0], "--speculative-k", "3"])
    done = subprocess.run(
        [str(sglang_env.python()), "-c", PARSE], input=json.dumps(argvs), capture_output=True, text=True, check=True,
        env=sglang_env.cpu_variables(os.environ),
    )  # fmt: skip
    verdicts = done.stdout.split("\n")[:-1]
    assert verdicts[:-1] == ["ok"] * (len(argvs) - 1)
    assert verdicts[-1].startswith("refused")
