"""The stand-ins of CUDA-only packages: each operation against brute force, and what importing them gives."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.runtimes.sglang_env import STANDINS
from outrider.sglang_plugin.standins import sgl_kernel
from outrider.sglang_plugin.standins.sgl_kernel.speculative import reconstruct_indices_from_tree_mask
from outrider.sglang_plugin.standins.sgl_kernel.tree import QLEN_ONLY

parent_lists = st.lists(st.integers(0, 10**6), max_size=9).map(
    lambda xs: [-1, *(x % (i + 1) for i, x in enumerate(xs))]
)


def ancestors(parents: list[int], node: int) -> list[int]:
    """From the root's child side up: the node's chain without itself."""
    found = []
    while parents[node] >= 0:
        node = parents[node]
        found.append(node)
    return found


def links(num_requests: int, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Buffers with leftovers in them."""
    index, first, sibling = torch.full((3, num_requests, num_nodes), 77, dtype=torch.long)
    return index, first, sibling


def check_links(b: int, parents: list[int], tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    index, first, sibling = (table[b].tolist() for table in tables)
    num_nodes = len(parents)
    assert index == list(range(b * num_nodes, (b + 1) * num_nodes))
    for node in range(num_nodes):
        children = [c for c in range(num_nodes) if parents[c] == node]
        assert first[node] == (children[0] if children else -1)
        later = [c for c in range(node + 1, num_nodes) if parents[c] == parents[node] and parents[node] >= 0]
        assert sibling[node] == (later[0] if later else -1)


@given(trees=st.lists(parent_lists, min_size=1, max_size=3), data=st.data())
def test_a_tree_is_read_back_from_its_mask(trees: list[list[int]], data: st.DataObject) -> None:
    """Positions and links of every request, whatever the buffers held before; a node on nothing stays alone."""
    num_nodes = min(map(len, trees))
    trees = [parents[:num_nodes] for parents in trees]
    if num_nodes > 1 and data.draw(st.booleans()):
        trees[0][-1] = -1
    mask = torch.zeros(len(trees), num_nodes, num_nodes, dtype=torch.bool)
    for b, parents in enumerate(trees):
        for node in range(num_nodes):
            mask[b, node, [node, *ancestors(parents, node)]] = True
    positions, tables = torch.full((len(trees) * num_nodes,), 77), links(len(trees), num_nodes)
    lengths = torch.tensor([5 + b for b in range(len(trees))])
    reconstruct_indices_from_tree_mask(mask.flatten(), lengths, positions, *tables, len(trees), num_nodes)
    for b, parents in enumerate(trees):
        check_links(b, parents, tables)
        depths = [len(ancestors(parents, node)) for node in range(num_nodes)]
        assert positions[b * num_nodes :][:num_nodes].tolist() == [5 + b + depth for depth in depths]


def test_a_drafted_tree_is_laid_out() -> None:
    """Two levels of two: group 0 hangs on the root, each later group on the candidate that stands at its place."""
    # Candidates 0, 1 on the root; 2, 3 on candidate 0; 4, 5 on candidate 1. Kept are 0, 1, 3, 4.
    parent_list, selected = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 3, 4]])
    parents = [-1, 0, 0, 1, 2]
    mask, positions, tables = torch.ones(25, dtype=torch.bool), torch.empty(5, dtype=torch.long), links(1, 5)
    build = sgl_kernel.build_tree_kernel_efficient_cpu
    build(parent_list, selected, torch.tensor([9]), mask, positions, *tables, 2, 2, 5, QLEN_ONLY)
    check_links(0, parents, tables)
    assert positions.tolist() == [9, 10, 10, 11, 11]
    for node, row in enumerate(mask.view(5, 5).tolist()):
        assert [c for c in range(5) if row[c]] == sorted([node, *ancestors(parents, node)])
    with pytest.raises(ValueError, match="layout"):
        build(parent_list, selected, torch.tensor([9]), mask, positions, *tables, 2, 2, 5, 0)


@given(parents=parent_lists, data=st.data())
def test_the_greedy_walk_takes_the_longest_agreeing_path(parents: list[int], data: st.DataObject) -> None:
    """It descends to the first child that is the target's choice, and ends with the target's own token."""
    num_nodes = len(parents)
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes))
    choices = data.draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes))
    width = data.draw(st.integers(1, num_nodes))
    path = [0]
    while len(path) < width:
        agreeing = [c for c in range(num_nodes) if parents[c] == path[-1] and tokens[c] == choices[path[-1]]]
        if not agreeing:
            break
        path.append(agreeing[0])
    mask = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
    for node in range(num_nodes):
        mask[node, [node, *ancestors(parents, node)]] = True
    index, first, sibling = links(1, num_nodes)
    lengths, positions = torch.tensor([3]), torch.empty(num_nodes, dtype=torch.long)
    reconstruct_indices_from_tree_mask(mask.flatten(), lengths, positions, index, first, sibling, 1, num_nodes)
    predicts, accepted = torch.zeros(num_nodes, dtype=torch.int32), torch.full((1, width), -1, dtype=torch.int32)
    num_accepted = torch.empty(1, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=num_accepted,
        candidates=torch.tensor([tokens]),
        retrive_index=index,
        retrive_next_token=first,
        retrive_next_sibling=sibling,
        target_predict=torch.tensor([choices]),
    )
    assert accepted[0].tolist() == path + [-1] * (width - len(path))
    assert int(num_accepted[0]) == len(path) - 1
    assert [predicts[node].item() for node in path] == [choices[node] for node in path]


def test_the_request_table_is_written_and_read_in_runs_of_any_length() -> None:
    """What one request puts into its row comes out in the same order, also when a run is empty."""
    table = torch.zeros(4, 8, dtype=torch.int32)
    rows, start, end = torch.tensor([2, 0, 3]), torch.tensor([1, 4, 0]), torch.tensor([4, 4, 2])
    slots = torch.tensor([11, 12, 13, 14, 15])
    sgl_kernel.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 8)
    assert table[2].tolist() == [0, 11, 12, 13, 0, 0, 0, 0]
    assert table[3].tolist() == [14, 15, 0, 0, 0, 0, 0, 0]
    out = torch.zeros(6, dtype=torch.long)
    sgl_kernel.assign_extend_cache_locs_cpu(rows, table, start, end, out, 8)
    assert out.tolist() == [11, 12, 13, 14, 15, 0]
    drafts = torch.empty(8, dtype=torch.long)
    table[2, 4:8] = torch.tensor([21, 22, 23, 24], dtype=torch.int32)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([2, 3]), table, torch.tensor([4, 0]), drafts, 8, 2, 2
    )
    assert drafts.tolist() == [21, 22, 23, 24, 14, 15, 0, 0]


def test_accepted_tokens_and_slots_are_packed() -> None:
    """The bonus is the last of each row, and slots of accepted nodes come one after the other."""
    bonus = torch.empty(2, dtype=torch.int32)
    tokens = torch.tensor([[5, 6, 7], [8, 9, 0]], dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor([3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [7, 8]
    out = torch.zeros(6, dtype=torch.long)
    accepted = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
    sgl_kernel.fill_accept_out_cache_loc_cpu(accepted, torch.tensor([10, 11, 12, 13, 14, 15]), out)
    assert out.tolist() == [10, 12, 13, 0, 0, 0]


def test_slots_move_as_if_all_at_once() -> None:
    """A target may be the source of another move; every buffer moves by its own slot size."""
    keys, values = torch.arange(24.0).view(6, 4), torch.arange(12.0, dtype=torch.float64).view(6, 2)
    before = keys.clone(), values.clone()
    pointers = torch.tensor([keys.data_ptr(), values.data_ptr()], dtype=torch.uint64)
    strides = torch.tensor([keys[0].nbytes, values[0].nbytes])
    target, source = torch.tensor([1, 2, 0]), torch.tensor([2, 5, 0])
    sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    for buffer, old in zip((keys, values), before, strict=True):
        assert torch.equal(buffer, old[[0, 2, 5, 3, 4, 5]])


def test_ids_rotate_by_one() -> None:
    """Each request's ids move left; the new one comes last, or where it is told."""
    ids, start, lens = torch.arange(6), torch.tensor([0, 4]), torch.tensor([4, 2])
    sgl_kernel.rotate_input_ids_cpu(ids, start, lens, torch.tensor([[70], [71]]))
    assert ids.tolist() == [1, 2, 3, 70, 5, 71]
    sgl_kernel.rotate_input_ids_cpu(ids, start, lens, torch.tensor([80, 81]), torch.tensor([1, 4]))
    assert ids.tolist() == [2, 80, 70, 70, 81, 71]


_USES_TRITON = """
import triton, triton.language as tl
from triton.runtime.autotuner import OutOfResources
from triton.language.extra import libdevice
from triton.backends.compiler import GPUTarget
@triton.autotune(configs=[triton.Config({"B": 4}, num_warps=2)], key=["n"])
@triton.jit
def kernel(x, n, B: tl.constexpr):
    return tl.load(x)
class Mine(triton.runtime.KernelInterface[int]):
    pass
assert issubclass(OutOfResources, Exception) and callable(kernel) and tl.constexpr(3).value == 3
assert triton.cdiv(7, 2) == 4 and [triton.next_power_of_2(n) for n in (1, 2, 3, 9)] == [1, 2, 4, 16]
assert tl.float32 is tl.float32 and not hasattr(triton, "__wrapped__")
"""


@pytest.mark.parametrize(
    "code",
    [
        _USES_TRITON,
        "from importlib.metadata import entry_points\nfound = entry_points(group='sglang.srt.plugins')\n"
        "[one] = [one for one in found if one.module == 'outrider_sglang']  # beside that of an installed package\n"
        "import outrider_sglang, sys\nassert one.name == 'outrider' and one.load() is outrider_sglang.load\n"
        "from pathlib import Path\noutrider_sglang._make_importable(Path(outrider_sglang.__file__).parents[2])\n"
        "import outrider.sglang_plugin.hooks, outrider\nassert outrider.__version__",
    ],
    ids=["kernels-can-be-defined", "the-plugin-is-found"],
)
def test_what_stands_on_the_path_of_a_lane(code: str) -> None:
    """In a process of its own that has nothing but the folder on its path."""
    env = {"PYTHONPATH": str(STANDINS), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
