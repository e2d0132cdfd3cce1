"""Which attention a model gets, and that a whole model computes the same with either."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flashinfer_emulation import EmulatedLibrary, shape
from outrider.engine.attention import Segment
from outrider.engine.attention.choice import attention_for, flashinfer_on
from outrider.engine.cache_pool import CachePool
from outrider.engine.model import LlamaModel
from outrider.engine.placement import CPU, Placement
from outrider.errors import SetupError

HALF = Placement(torch.device("cpu"), torch.float16)
#: A tree with two children of the root, of which the second has the longer branch.
PARENTS, PATH = (-1, -1, 0, 1, 3), (1, 3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a head size that FlashInfer has kernels for."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=128,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("heads") / "llama"
    LlamaForCausalLM(config).half().save_pretrained(folder)
    return folder


def requests(model: LlamaModel) -> torch.Tensor:
    """Logits of all steps of three requests: prompts, a decode row, a chain, a tree, and what follows its path."""
    pool = CachePool(model.config, 512, model.placement)
    texts = [tuple((5 * i + 3 * j) % 64 for j in range(n)) for i, n in enumerate((20, 37, 3))]
    caches = [pool.allocate(text, num_expected=64) for text in texts]
    logits = []

    def step(rows: tuple[int, ...], parents: tuple[int, ...] | None = None) -> None:
        segments = []
        for cache in caches:
            assert cache is not None and pool.grow(cache, cache.length + len(rows))
            segments.append(Segment(cache, rows, len(rows), parents))
        logits.append(model.forward(segments))

    prompts = [Segment(cache, text, 1) for cache, text in zip(caches, texts, strict=True) if cache is not None]
    logits.append(model.forward(prompts))
    step((9,))
    step((4, 5, 6, 7))
    for cache in caches:
        assert cache is not None
        cache.keep(3, (0,))
    step((8, 1, 2, 3, 4, 5), PARENTS)
    for cache in caches:
        assert cache is not None
        cache.keep(5, PATH)
    step((11,))
    return torch.cat(logits)


def test_a_model_computes_the_same_with_either_attention(folder: Path) -> None:
    """Through prompt, decode, chain, tree and the kept path, in half precision against float32."""
    emulated = partial(flashinfer_on, placement=HALF, library=EmulatedLibrary())
    found, expected = (requests(model) for model in (LlamaModel(folder, emulated), LlamaModel(folder)))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=float(expected.std()) * 0.02)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_sdpa_in_float32() -> None:
    """Nothing is rounded that a CPU can hold."""
    assert attention_for(shape(3, 1, 64)).placement == CPU


def test_flashinfer_refuses_what_it_has_no_kernel_for() -> None:
    """Head sizes and types are checked when the model is loaded, not at its first step."""
    with pytest.raises(SetupError, match="head size 80"):
        flashinfer_on(shape(4, 2, 80), HALF, EmulatedLibrary())
    with pytest.raises(SetupError, match="float32"):
        flashinfer_on(shape(4, 2, 64), CPU, EmulatedLibrary())
