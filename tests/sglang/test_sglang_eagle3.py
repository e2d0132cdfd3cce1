"""An EAGLE3 lane with a tree, on a head that knows nothing: what it drafts must not show in the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import Server
from toys import HALF, greedy_ids, write_random_eagle3_head

from markov import VOCAB, write_markov_checkpoint

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

NUM_STEPS = 3
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def eagle3(halves: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root: Path = tmp_path_factory.mktemp("eagle3")
    write_markov_checkpoint(root / "target", halves)
    write_random_eagle3_head(root / "head", root / "target", VOCAB // 2)
    server = Server.start(
        root / "target", root / "log", "--skip-tokenizer-init",
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(root / "head"),
        "--speculative-num-steps", str(NUM_STEPS), "--speculative-eagle-topk", "4",
        "--speculative-num-draft-tokens", "8",
    )  # fmt: skip
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def test_a_random_head_changes_no_greedy_text(eagle3: Server, halves: np.ndarray) -> None:
    """Alone and in a batch, with every k; the tree was verified, and k bounds what was accepted."""
    told = eagle3.abilities()
    assert (told["drafter"], told["max_k"]) == ("eagle3", NUM_STEPS)
    assert {"k", "sampling", "min_p", "seeds", "attention"} <= set(told["active"])
    ks = [None, *range(NUM_STEPS + 1)]
    params = [{"max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True} for _ in ks]
    for one, k in zip(params[1:], ks[1:], strict=True):
        one["custom_params"] = {"outrider": {"drafter": "eagle3" if k else "off", "k": k}}
    starts = [i % (2 * HALF) for i in range(0, 3 * len(ks), 3)]
    batch = eagle3.generate({"input_ids": [[start] for start in starts], "sampling_params": params})
    for start, k, one, answer in zip(starts, ks, params, batch, strict=True):
        alone = eagle3.generate({"input_ids": [start], "sampling_params": one})
        expected = greedy_ids(halves, start, NUM_TOKENS)
        assert (alone["output_ids"], answer["output_ids"]) == (expected, expected), k
        histogram = alone["meta_info"]["spec_correct_drafts_histogram"]
        assert sum(histogram) == alone["meta_info"]["spec_verify_ct"] > 0
        assert k is None or not any(histogram[k + 1 :])
