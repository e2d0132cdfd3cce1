"""Real SGLang lanes with our plugin on a chain of which everything is known: ids, laws, histograms, seeds, plans."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from fleet import Lane
from scipy.stats import chi2
from servers import Server
from toys import HALF, greedy_ids, histogram, trimmed

from markov import VOCAB, chain_law
from outrider.speculation.noise import Noise
from outrider.speculation.target import SamplingLaw, Target

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

NUM_TOKENS = 40
#: A correct lane fails a law test with this probability; wrong laws fail by many orders of magnitude.
ALPHA = 1e-5


def params(lane: Lane, k: int | None = None, **sampling: Any) -> dict[str, Any]:
    """Sampling parameters with a plan, where there is one."""
    values: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **sampling}
    if k is not None:
        plan = {"drafter": lane.drafter if k else "off", "k": k}
        values["custom_params"] = {"outrider": plan}
    return values


def law(halves: np.ndarray, **sampling: float) -> np.ndarray:
    """P[current, next] after temperature and filters, from the values that the checkpoint holds."""
    # The logits of chain_law's own temperature 1, which loses nothing but a constant per row.
    with np.errstate(divide="ignore"):
        rows = torch.tensor(np.log(chain_law(halves, 1.0)))
    target = Target(rows, SamplingLaw(**sampling))
    return np.stack([target.probs(row, ()).numpy() for row in range(2 * HALF)])


def p_value(texts: list[list[int]], expected: np.ndarray) -> float:
    """Chi-square of all transitions of texts that begin with their prompt; 0 when one of them is impossible."""
    counts = np.zeros((HALF, VOCAB))
    for ids in texts:
        for current, following in itertools.pairwise(ids):
            counts[current, following] += 1
    statistic, freedom = 0.0, 0
    for row, probs in zip(counts, expected, strict=False):
        if row[probs == 0].any():
            return 0.0
        mean = row.sum() * probs[probs > 0]
        if row.sum() > 0:
            statistic += float(((row[probs > 0] - mean) ** 2 / mean).sum())
            freedom += len(mean) - 1
    return float(chi2.sf(statistic, freedom))


def test_the_plugin_says_what_is_active(server: Server, lane: Lane) -> None:
    """The gateway reads it: nothing is missing but what the drafter has no use for."""
    told = server.abilities()
    assert (told["drafter"], told["max_k"]) == (lane.drafter, lane.max_k)
    wanted = {"report", "plans", "k", "reporting", "sampling", "min_p", "seeds", "attention", "linears"}
    assert set(told["active"]) == wanted | ({"steps"} if lane.has_steps else set())
    assert (told["missing"], set(told["unused"])) == ({}, set() if lane.has_steps else {"steps"})


def test_greedy_ids_are_the_chain_s_with_any_k(server: Server, lane: Lane, halves: np.ndarray) -> None:
    """Alone and in one batch with every k, from every state of the half that the drafters err in."""
    alone = server.generate({"input_ids": [HALF], "sampling_params": params(lane)})
    assert alone["output_ids"] == greedy_ids(halves, HALF, NUM_TOKENS)
    ks = [None, *range(lane.max_k + 1)]
    starts = [HALF + i % HALF for i in range(len(ks))]
    body = {"input_ids": [[s] for s in starts], "sampling_params": [params(lane, k) for k in ks]}
    for start, answer in zip(starts, server.generate(body), strict=True):
        assert answer["output_ids"] == greedy_ids(halves, start, NUM_TOKENS)


def test_accepted_drafts_are_exactly_those_that_k_allows(server: Server, lane: Lane, halves: np.ndarray) -> None:
    """The histogram is the closed form's, k by k; the lane reports the cap and drafts no more steps than k."""
    for k in range(lane.max_k + 1):
        body = {"input_ids": [HALF], "sampling_params": params(lane, k)}
        if lane.drafter == "ngram":
            server.generate(body)  # from now on the drafter knows the whole cycle
        meta = server.generate(body)["meta_info"]
        if lane.drafter == "ngram":
            num_rounds = -(-(NUM_TOKENS - 1) // (k + 1))
            expected = [0] * k + [num_rounds]
        else:
            expected = trimmed(histogram(halves, HALF, NUM_TOKENS, k))
        assert meta["spec_correct_drafts_histogram"] == expected, k
        assert meta["spec_verify_ct"] == sum(expected)
        assert meta["spec_cap_lens_histogram"] == [0] * k + [sum(expected)]
        if lane.has_steps:
            assert server.abilities()["steps"] == k


def sampled(server: Server, lane: Lane, num_texts: int, **sampling: Any) -> list[list[int]]:
    """Texts of the sampling half with mixed k in one batch, each behind its one-token prompt."""
    ks = [None, *range(lane.max_k + 1)]
    starts = [i % HALF for i in range(num_texts)]
    body = {
        "input_ids": [[start] for start in starts],
        "sampling_params": [
            params(lane, ks[i % len(ks)], sampling_seed=i, max_new_tokens=64, **sampling) for i in range(num_texts)
        ],
    }
    answers = server.generate(body)
    for i, answer in enumerate(answers):
        k = ks[i % len(ks)]
        assert k is None or len(answer["meta_info"]["spec_correct_drafts_histogram"]) <= k + 1
    return [[start, *answer["output_ids"]] for start, answer in zip(starts, answers, strict=True)]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 2.5, "min_p": 0.25},
        {"temperature": 2.5, "top_p": 0.7},
        {"temperature": 2.5, "top_p": 0.8, "top_k": 4, "min_p": 0.1},
    ],
    ids=lambda s: ",".join(f"{name}={value}" for name, value in s.items()),
)
def test_sampled_texts_have_the_target_s_law(
    server: Server, lane: Lane, halves: np.ndarray, sampling: dict[str, float]
) -> None:
    """With mixed k in one batch; the test would notice another temperature and a filter that is left out."""
    texts = sampled(server, lane, 32, **sampling)
    assert p_value(texts, law(halves, **sampling)) > ALPHA
    assert p_value(texts, law(halves, **sampling | {"temperature": 1.5 * sampling["temperature"]})) < ALPHA
    if len(sampling) > 1:
        everything = law(halves, temperature=sampling["temperature"])
        assert p_value(texts, everything) < ALPHA


def test_unseeded_texts_have_the_law_too_and_differ(server: Server, lane: Lane, halves: np.ndarray) -> None:
    """Requests without a seed get one of their own each."""
    body = {"input_ids": [[0]] * 16, "sampling_params": [params(lane, temperature=2.0)] * 16}
    texts = [[0, *answer["output_ids"]] for answer in server.generate(body)]
    assert len({tuple(ids) for ids in texts}) == 16
    assert p_value(texts, law(halves, temperature=2.0)) > ALPHA


def test_a_seed_gives_one_text_with_any_k_alone_or_in_a_batch(server: Server, lane: Lane, halves: np.ndarray) -> None:
    """It is the text that noise and law alone determine, so that every lane writes the same one."""
    probs = torch.tensor(law(halves, temperature=1.7))
    expected, prompt = [], [3, 1]
    for i in range(NUM_TOKENS):
        current = (prompt + expected)[-1]
        expected.append(Noise(99, len(prompt) + i, is_seeded=True).choose(0, probs[current]).token_id)
    asked = [params(lane, k, temperature=1.7, sampling_seed=99) for k in (None, 0, lane.max_k)]
    other = params(lane, temperature=1.7, sampling_seed=100)
    assert server.generate({"input_ids": prompt, "sampling_params": asked[0]})["output_ids"] == expected
    together = server.generate({"input_ids": [prompt] * 4, "sampling_params": [*asked, other]})
    assert [answer["output_ids"] for answer in together[:3]] == [expected] * 3
    assert together[3]["output_ids"] != expected


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"drafter": "off", "k": 1}, ".k is 0 exactly"),
        ({"drafter": "medusa", "k": 1}, ".drafter"),
        ({"k": 99}, ".k must be"),
        ({"drafter": "off", "k": 0, "tree": 4}, "unknown key 'tree'"),
    ],
    ids=["contradiction", "other-drafter", "too-many", "unknown-key"],
)
def test_a_plan_that_cannot_be_honoured_is_refused(
    server: Server, lane: Lane, plan: dict[str, Any], named: str
) -> None:
    """Nothing is accepted and ignored: a 400 names the field, and the lane goes on."""
    asked = params(lane) | {"custom_params": {"outrider": plan}}
    status, answer = server.ask("/generate", {"input_ids": [1], "sampling_params": asked})
    assert status == 400
    assert named in json.loads(answer)["error"]["message"]
    assert server.generate({"input_ids": [1], "sampling_params": params(lane)})["output_ids"]
