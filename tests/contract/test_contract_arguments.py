"""The commands of all shipped configurations, checked by the argument parser of the pinned SGLang."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from not_run import not_run
from outrider.config import TOKEN_MAP, SGLangSection, load_config
from outrider.runtimes import sglang_env
from outrider.runtimes.launch import server_arguments

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

CONFIGS = Path(__file__).parents[2] / "configs"
#: Together they set every argument that a lane can set.
PROFILES = (
    {"dtype": "bfloat16", "max_total_tokens": 4096, "context_length": 512, "radix_cache": False,
     "parallel": {"tensor": 2, "pipeline": 2, "data": 2, "nodes": 2, "address": "h:5"},
     "speculation": {"drafter": "eagle2", "k": 3, "draft": "HEAD"}},
    {"speculation": {"drafter": "draft_model", "k": 3, "top_k": 4, "draft_tokens": 8, "draft": "d"}},
    {"device": "cpu", "speculation": {"drafter": "ngram", "k": 7, "top_k": 4}},
)  # fmt: skip
PARSE = """
import argparse, json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(exit_on_error=False)
ServerArgs.add_cli_args(parser)
spellings = {name: action.option_strings for action in parser._actions for name in action.option_strings}
for argv in json.load(sys.stdin):
    try:
        parser.parse_args(argv)
        print(json.dumps({name: spellings.get(name) for name in argv if name.startswith("--")}))
    except (argparse.ArgumentError, SystemExit) as error:
        print(json.dumps(f"refused: {error}"))
"""
#: Of these a user may set others, or it does no harm to set them again.
FREE = {
    "--mem-fraction-static", "--chunked-prefill-size", "--trust-remote-code", "--speculative-token-map",
    "--sleep-on-idle", "--disable-cuda-graph", "--skip-server-warmup",
}  # fmt: skip


def test_sglang_takes_every_command_that_we_build(tmp_path: Path) -> None:
    """Of each profile and rank, each argument by its full name; it would notice a flag that it does not know. What a
    lane sets by itself none of its flags may set, in any spelling that SGLang takes."""
    if not sglang_env.is_ready():
        not_run("SGLang's reading of our commands, whose environment is not there; build it with: make sglang-env")
    (tmp_path / TOKEN_MAP).touch()
    read = [section for path in sorted(CONFIGS.glob("*.yaml")) for section in load_config(path).lanes]
    sections = [section for section in read if isinstance(section, SGLangSection)]
    assert len(sections) >= 10
    sections += [SGLangSection(name="a", kind="sglang", **fields) for fields in PROFILES]
    head = {"HEAD": str(tmp_path)}
    argvs = [
        server_arguments(one, 1, lambda name: head.get(name, name), rank=r)
        for one in sections
        for r in range(one.parallel.nodes)
    ]
    *taken, refused = verdicts([*argvs, [*argvs[0], "--speculative-k", "3"]])
    assert refused.startswith("refused")
    spellings = {name: known for verdict in taken for name, known in verdict.items()}
    assert None not in spellings.values(), "a name that SGLang knows by its beginning only"
    assert len(spellings) > 30
    for spelling in {one for name in spellings.keys() - FREE for one in spellings[name]}:
        for flag in (spelling, f"{spelling}=1", spelling[:-1]):
            with pytest.raises(ValidationError, match="is set by the lane"):
                SGLangSection(name="a", kind="sglang", flags=(flag,))
    for name in FREE:
        assert SGLangSection(name="a", kind="sglang", flags=(name,)).flags


def verdicts(argvs: list[list[str]]) -> list[Any]:
    """Of SGLang's parser: the arguments that it found with all their spellings, or why it refused."""
    done = subprocess.run(
        [str(sglang_env.python()), "-c", PARSE], input=json.dumps(argvs), capture_output=True, text=True, check=True,
        env=sglang_env.cpu_variables(os.environ),
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]
