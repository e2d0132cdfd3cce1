"""The places in SGLang that the plugin's hooks go into, on GPUs too, where no server of these tests runs."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from outrider.runtimes import sglang_env

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

_PROBLEMS = """
import sys, outrider_sglang
from pathlib import Path
outrider_sglang._make_importable(Path(outrider_sglang.__file__).parents[2])
from outrider.sglang_plugin import entry, lane, linears, sampling, steps
features = [lane.REPORT, lane.PLANS, steps.CAPS, steps.REPORTING, steps.STEPS, entry.ATTENTION]
features += [*sampling.cpu_features(), *sampling.gpu_features(), *linears.features()]
hooks = [hook for feature in features for hook in feature.hooks]
problems = [problem for hook in hooks if (problem := hook.problem())]
print(len(hooks), problems, file=sys.stderr)
sys.exit(bool(problems) or len(hooks) < 20)
"""


_MOVED = """
import json
from sglang.srt.speculative import eagle_utils
del eagle_utils._verify_coins
from sglang.srt.plugins import load_plugins
load_plugins()
from outrider.sglang_plugin.lane import INSTALLED
print(json.dumps({"missing": INSTALLED.missing, "in": [n for one in INSTALLED.features for n in one.names]}))
"""


def test_every_target_is_there_with_the_names_that_we_use() -> None:
    """In the pinned version; a renamed function or parameter fails here and not on a user's lane."""
    done = run(_PROBLEMS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_target_that_has_moved_is_named_and_the_rest_goes_in() -> None:
    """What needs it is missing with the reason, so the lane does not claim it; SGLang itself would say nothing."""
    done = run(_MOVED)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    reason = "sglang.srt.speculative.eagle_utils._verify_coins is not there"
    assert set(told["missing"]) == {"sampling", "min_p"}
    assert all(reason in why for why in told["missing"].values())
    assert {"report", "plans", "k", "reporting", "steps", "attention", "seeds"} <= set(told["in"])
    assert "not active on this lane: sampling, min_p: " in done.stderr and reason in done.stderr


def run(code: str) -> subprocess.CompletedProcess[str]:
    """As a process of a lane on a CPU has it."""
    command = [str(sglang_env.python()), "-W", "ignore", "-c", code]
    variables = sglang_env.cpu_variables(os.environ)
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
