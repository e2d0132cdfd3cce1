from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import LaneSection, SGLangSection, UrlSection, load_config
from outrider.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"


def load(tmp_path, lane):
    file = tmp_path / "c.yaml"
    file.write_text(f"lanes:\n  - {lane}\n", encoding="utf-8")
    return load_config(file).lanes[0]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_shipped_configurations_load(path):
    """Each has lanes of more than one way to speculate."""
    lanes = load_config(path).lanes
    assert len({str(lane.speculation) for lane in lanes}) > 1


def test_a_lane_is_of_one_of_three_kinds(tmp_path):
    """Embedded when it says nothing."""
    assert isinstance(load(tmp_path, "{name: a}"), LaneSection)
    assert isinstance(load(tmp_path, "{name: a, kind: sglang}"), SGLangSection)
    assert isinstance(load(tmp_path, "{name: a, kind: url, urls: ['http://x:1']}"), UrlSection)


def test_copies_of_attention_share_their_gpus(tmp_path):
    """As many GPUs as share a layer then do."""
    parallel = "gpus: [0, 1], parallel: {tensor: 2, data: 2}, flags: [--enable-dp-attention]"
    assert load(tmp_path, f"{{name: a, kind: sglang, {parallel}}}").gpus == (0, 1)


def test_k_and_the_verified_tokens_have_defaults(tmp_path):
    """A chain verifies one token more than it drafts; off drafts nothing."""
    how = load(tmp_path, "{name: a, kind: sglang, speculation: {drafter: ngram}}").speculation
    assert (how.num_steps, how.num_verified) == (4, 5)
    assert load(tmp_path, "{name: a, kind: sglang}").speculation.num_steps == 0


@pytest.mark.parametrize(
    ("lane", "where", "what"),
    [
        ("{name: a, kind: x}", "lanes.0: ", "'embedded', 'sglang' or 'url'"),
        ("{name: A, kind: sglang}", "lanes.0.name: ", "pattern"),
        ("{name: a, kind: sglang, tp: 3}", "lanes.0.tp: ", "Extra inputs"),
        ("{name: a, kind: sglang, max_running: 0}", "lanes.0.max_running: ", "greater than or equal to 1"),
        ("{name: a, kind: sglang, device: tpu}", "lanes.0.device: ", "'cuda' or 'cpu'"),
        ("{name: a, kind: sglang, device: cpu, gpus: [0]}", "lanes.0: ", "no gpus"),
        ("{name: a, kind: sglang, gpus: [0], parallel: {tensor: 2}}", "lanes.0: ", "spans 2"),
        ("{name: a, kind: sglang, gpus: [0, 1], parallel: {tensor: 2, data: 2}}", "lanes.0: ", "data spans 4"),
        ("{name: a, kind: sglang, parallel: {nodes: 2}}", "lanes.0.parallel: ", "address"),
        ("{name: a, kind: sglang, flags: ['--port=3']}", "lanes.0.flags: ", "--port is set by the lane"),
        ("{name: a, kind: sglang, flags: [--max-running, '3']}", "lanes.0.flags: ", "--max-running is set by the"),
        (
            "{name: a, kind: sglang, speculation: {drafter: medusa}}",
            "lanes.0.speculation.drafter: ",
            "found 'medusa'",
        ),
        ("{name: a, kind: sglang, speculation: {k: 3}}", "lanes.0.speculation: ", "the drafter is off"),
        ("{name: a, kind: sglang, speculation: {drafter: eagle2}}", "lanes.0.speculation: ", "draft is needed"),
        ("{name: a, kind: sglang, speculation: {drafter: ngram, k: 3, draft_tokens: 8}}", "lanes.0.spec", "is k + 1"),
        ("{name: a, kind: sglang, speculation: {drafter: ngram, draft_context: 8}}", "lanes.0.spec", "is missing"),
        ("{name: a, kind: url, urls: []}", "lanes.0.urls: ", "at least 1"),
        ("{name: a, kind: url, urls: ['ftp://x']}", "lanes.0.urls.0: ", "pattern"),
        ("{name: a, kind: url, urls: ['http://x/?a=1']}", "lanes.0.urls.0: ", "pattern"),
        ("{name: a, kind: url, urls: ['http://x:high']}", "lanes.0.urls.0: ", "Port"),
        ("{name: a, kind: url, urls: ['https://x'], resolve: true}", "lanes.0: ", "http URLs"),
    ],
)
def test_a_bad_value_names_its_key(tmp_path, lane, where, what):
    """And what was expected."""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, lane)
    assert where in refused.value.message and what in refused.value.message
