"""Tuning a file: what is advised stands in it, and all else stays, comments included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.config import packaged_data
from outrider.policy.evaluate import Advice
from outrider.policy.limits import Band, WorkloadPolicy
from outrider.policy.loader import Source, load_policies, texts_of
from outrider.policy.tuning import to_yaml

ADVICE = Advice("rag", 20, frozenset({"draft_model"}), {"draft_model": 2}, 0.4, 1.25, 0.1, ("k 9 is too large",))
RICH = """\
# Ours, and why.
version: 1
workload: rag
description: "off: 'quoted' # \u00fc"
match: {tasks: [rag], headers: {x-a: "${env.WHO}"}}
drafters:
  ngram: {max_k: 2}   # inside, where all is replaced
  draft_model:
    min_k: 3
    max_k: 9
    prior: 0.5

# Above it nothing pays.
temperature: [{max: 0.3, max_k: 4},
  {max: 1.3, max_k: 2}]
exact: true # as the contract says
trial: {workload: other, mode: shadow}
"""


def loaded(folder: Path, text: str) -> tuple[WorkloadPolicy, str]:
    (folder / "rag.yaml").write_text(text, encoding="utf-8")
    (folder / "other.yaml").write_text("version: 1\nworkload: other\ndrafters: {}\n", encoding="utf-8")
    source = Source([folder], "rag", env={"WHO": "me"})
    return load_policies(source).policy("rag"), texts_of(source)["rag"]


def test_only_what_is_advised_differs(tmp_path: Path) -> None:
    """The k of drafters that ran, and narrower bands of the temperature; comments and references stay."""
    policy, text = loaded(tmp_path, RICH)
    written = to_yaml(ADVICE, policy, text)
    found, _ = loaded(tmp_path, written)
    assert {name: (one.min_k, one.max_k, one.prior) for name, one in found.drafters.items()} == {
        "ngram": (1, 2, None),
        "draft_model": (2, 2, 0.5),
    }
    assert found.temperature == (Band(max=0.3, max_k=4), Band(max=0.4, max_k=2))
    same = {"drafters": policy.drafters, "temperature": policy.temperature}
    assert found.model_copy(update=same) == policy
    for line in (
        "# Ours, and why.",
        "\n\n# Above it nothing pays.",
        "exact: true # as the contract says",
        "${env.WHO}",
    ):
        assert line in written
    assert written.startswith("# yaml-language-server: ")
    assert "# Tuned: from 20 recorded requests" in written and "1.25 +- 0.10" in written
    assert "# Tuned: k 9 is too large." in written and "lost" not in written


def test_tuning_again_replaces_what_tuning_wrote(tmp_path: Path) -> None:
    """Twice the same advice gives the same file."""
    policy, text = loaded(tmp_path, RICH)
    once = to_yaml(ADVICE, policy, text)
    assert to_yaml(ADVICE, *loaded(tmp_path, once)) == once
    again = to_yaml(replace(ADVICE, gain=2.0, hints=()), *loaded(tmp_path, once))
    assert "2.00 +- 0.10" in again and "1.25" not in again and "too large" not in again


@pytest.mark.parametrize(
    "text",
    [
        "{version: 1, workload: rag, drafters: {draft_model: {max_k: 9}}} # mine\n",
        '# mine\nversion: 1\nworkload: rag\n"drafters": {draft_model: {max_k: 9}}\n',
        "# mine\nversion: 1\nworkload: rag\ndrafters:\n  draft_model: {max_k: 9}\n# mine\n  ngram: {}\n",
        "version: 1\nworkload: rag\ndrafters: {draft_model: {\nmax_k: 9}\n} # mine\n",
    ],
)
def test_a_file_of_another_shape_is_written_anew_and_says_so(tmp_path: Path, text: str) -> None:
    """Its comments are lost, which is told; what it says is not."""
    policy, text = loaded(tmp_path, text)
    written = to_yaml(ADVICE, policy, text)
    assert "# Tuned: the comments that stood here are lost" in written and "mine" not in written
    found, _ = loaded(tmp_path, written)
    assert found.drafters["draft_model"].max_k == 2 and found.drafters.keys() == policy.drafters.keys()


def test_shipped_files_keep_their_comments() -> None:
    """Each of them has keys that begin lines."""
    source = Source([packaged_data("policies")])
    policies = load_policies(source)
    for name, text in texts_of(source).items():
        written = to_yaml(replace(ADVICE, workload=name), policies.policy(name), text)
        comments = [line for line in text.splitlines() if line.startswith("#")]
        assert "lost" not in written and set(comments) <= set(written.splitlines())
