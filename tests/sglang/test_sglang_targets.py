"""The places in SGLang that the plugin's hooks go into, on GPUs too, where no server of these tests runs."""

from __future__ import annotations

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


def test_every_target_is_there_with_the_names_that_we_use() -> None:
    """In the pinned version; a renamed function or parameter fails here and not on a user's lane."""
    command = [str(sglang_env.python()), "-W", "ignore", "-c", _PROBLEMS]
    done = subprocess.run(
        command, env=sglang_env.cpu_variables(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
