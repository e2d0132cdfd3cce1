"""Caps on accepted drafts, and the number of steps that a batch wants."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.sglang_plugin.steps import WantedSteps, candidate_steps, cut


@given(data=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_a_cut_keeps_the_root_and_the_first_drafts(data: list[tuple[int, int]]) -> None:
    """Of each request, as many as its cap; lengths and indices agree, and what is below the cap is untouched."""
    lengths = torch.tensor([accepted + 1 for accepted, _ in data], dtype=torch.int32)
    index = torch.full((len(data), 5), -1, dtype=torch.int32)
    for b, (accepted, _) in enumerate(data):
        index[b, : accepted + 1] = torch.arange(accepted + 1) + 10 * b
    before = index.clone()
    new_lengths, new_index = cut(lengths, index, [cap for _, cap in data])
    for b, (accepted, cap) in enumerate(data):
        kept = min(accepted, cap) + 1
        assert int(new_lengths[b]) == kept
        assert torch.equal(new_index[b, :kept], before[b, :kept])
        assert (new_index[b, kept:] == -1).all()
    assert new_lengths.dtype == new_index.dtype == torch.int32


def test_the_fewest_steps_that_give_every_request_its_k() -> None:
    """On a GPU not every number is held ready; then the next larger one runs and the cap makes it exact."""
    assert candidate_steps(4, on_cpu=True) == [0, 1, 2, 3, 4]
    assert candidate_steps(6, on_cpu=False) == [0, 1, 2, 3, 5, 6]
    policy = WantedSteps([5, 0, 2])
    assert policy.get_steps_for_batch(1) == 5
    for wanted, steps in ((0, 0), (1, 2), (2, 2), (3, 5), (5, 5)):
        policy.wanted = wanted
        assert policy.get_steps_for_batch(8) == steps
    policy.on_verify_complete([0, 0, 0], 3)
    assert policy.get_steps_for_batch(3) == 5


def test_graphs_are_kept_for_every_number_of_steps() -> None:
    """A batch of any size may want any of them."""
    policy = WantedSteps([0, 1])
    assert policy.cuda_graph_bs_for_step(1) is None
    policy.set_cuda_graph_bs([1, 2, 4])
    assert policy.cuda_graph_bs_for_step(0) == [1, 2, 4]
