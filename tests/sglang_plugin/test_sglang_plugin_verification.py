"""SGLang's trees as our proposals: what is read, and that the filled outputs say what our rule decided."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from outrider.sglang_plugin.standins.sgl_kernel.tree import Trees
from outrider.sglang_plugin.verification import Chooser, chooser, sample_rows, sampling_law, tree_of, verify_trees
from outrider.speculation.noise import Noise
from outrider.speculation.proposal import TopKTree
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.tree import sample_and_match

VOCAB, ALL = 5, 1 << 30
PARENTS = [-1, 0, 0, 1, 3, -1]  # the last node hangs on nothing
TOKENS = [4, 0, 1, 2, 3, 0]


def links(num_requests: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_nodes = len(PARENTS)
    tables = torch.empty(3, num_requests, num_nodes, dtype=torch.long)
    masks = torch.empty(num_requests, num_nodes, num_nodes, dtype=torch.bool)
    trees = Trees(masks, torch.empty(num_requests * num_nodes, dtype=torch.long), *tables)
    for b in range(num_requests):
        trees.write(b, PARENTS, 3)
    return trees.flat_index, trees.next_token, trees.next_sibling


def test_links_become_a_proposal() -> None:
    """Nodes keep their order, parents are counted without the root, padding is left out."""
    _, first, sibling = links(1)
    proposal, nodes = tree_of(TOKENS, first[0].tolist(), sibling[0].tolist())
    assert proposal == TopKTree((0, 1, 2, 3), (-1, -1, 0, 2))
    assert nodes == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("law", [SamplingLaw(0.0), SamplingLaw(1.3), SamplingLaw(2.0, 3, 0.9, 0.05)], ids=str)
def test_outputs_say_what_the_rule_decided(law: SamplingLaw) -> None:
    """Tokens at the nodes on the way, their numbers in the flat batch, and how many drafts were accepted."""
    torch.manual_seed(2)
    num_requests, num_nodes, depth = 40, len(PARENTS), 3
    index, first, sibling = links(num_requests)
    logits = torch.randn(num_requests, num_nodes, VOCAB)
    choosers = [Chooser(law, Noise(seed, 7, is_seeded=True)) for seed in range(num_requests)]
    predicts = torch.zeros(num_requests * num_nodes, dtype=torch.int32)
    accepted = torch.full((num_requests, depth + 1), -1, dtype=torch.int32)
    counts = torch.empty(num_requests, dtype=torch.int32)
    verify_trees(
        choosers,
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=torch.tensor([TOKENS] * num_requests),
        retrive_index=index,
        retrive_next_token=first,
        retrive_next_sibling=sibling,
        logits=logits,
    )
    proposal = TopKTree((0, 1, 2, 3), (-1, -1, 0, 2))
    seen = set()
    for b in range(num_requests):
        expected = sample_and_match(Target(logits[b, :5], law), Noise(b, 7, is_seeded=True), proposal)
        path = [b * num_nodes, *(b * num_nodes + node + 1 for node in expected.path)]
        assert accepted[b].tolist() == path + [-1] * (depth + 1 - len(path))
        assert tuple(predicts[path].tolist()) == expected.token_ids
        assert int(counts[b]) == expected.num_accepted
        seen.add(expected.num_accepted)
    assert len(seen) > 1, "trees of one outcome would say little"


def test_plain_decoding_draws_the_same_token() -> None:
    """From tempered probabilities, as the plain sampler has them, and from logits, as verification has them."""
    torch.manual_seed(3)
    logits = torch.randn(50, VOCAB)
    params = SimpleNamespace(temperature=1.7, top_k=ALL, top_p=0.9, min_p=0.1)
    verifying = [chooser(params, seed, 12, VOCAB) for seed in range(50)]
    plain = [Chooser(sampling_law(1.0, ALL, 0.9, 0.1, VOCAB), Noise(seed, 12, is_seeded=True)) for seed in range(50)]
    drawn = [
        sample_and_match(Target(row[None], one.law), one.noise, TopKTree((), ())).token_ids[0]
        for row, one in zip(logits, verifying, strict=True)
    ]
    assert sample_rows((logits / 1.7).softmax(dim=-1), plain).tolist() == drawn
    assert len(set(drawn)) > 1


def test_sglang_s_spelling_of_laws() -> None:
    """Greedy is top-k 1, and no top-k is a number beyond every vocabulary."""
    assert sampling_law(1.0, 1, 1.0, 0.0, VOCAB).is_greedy
    assert sampling_law(0.7, ALL, 0.9, 0.1, VOCAB) == SamplingLaw(0.7, 0, 0.9, 0.1)
    assert sampling_law(0.7, 3, 1.0, 0.0, VOCAB).top_k == 3
