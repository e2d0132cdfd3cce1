"""Hooks that make sampling exact: on a CPU by our own rule, on a GPU by adding what verification leaves out."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from outrider.sglang_plugin.hooks import Feature, Hook
from outrider.sglang_plugin.lane import without_speculation
from outrider.sglang_plugin.verification import Chooser, chooser, sample_rows, sampling_law, verify_trees
from outrider.speculation.noise import Noise

_EAGLE = "sglang.srt.speculative.eagle_utils"


class _Current:
    """What verification is told too little of: the batch that `eagle_sample` works on."""

    choosers: list[Chooser]
    sampling_info: Any


_current = _Current()


@cache
def _fresh_seeds() -> random.Random:
    """The same on all ranks that see the same requests in the same order; those of data parallelism do not."""
    from sglang.srt.runtime_context import get_parallel, get_server_args

    return random.Random(f"{get_server_args().random_seed} {get_parallel().dp_rank}")


def seed_of(request: Any) -> int:
    """The request's own seed, which SGLang has checked to fit a tensor, else one that is drawn once and stays."""
    given = request.sampling_params.sampling_seed
    if given is not None:
        return int(given)
    if not hasattr(request, "outrider_seed"):
        request.outrider_seed = _fresh_seeds().getrandbits(63)
    return int(request.outrider_seed)


def _keep_seeds(result: Any, cls: Any, batch: Any, vocab_size: int) -> None:
    """AFTER `SamplingBatchInfo.from_schedule_batch`: all requests get a seed, since batches merge all or none."""
    if result.sampling_seed is None and _no_seeds() is None:
        seeds = torch.tensor([seed_of(request) for request in batch.reqs], dtype=torch.int64)
        result.sampling_seed = seeds.to(batch.device, non_blocking=True)


def _no_seeds_on_gpu() -> str | None:
    """Why seeds are left to SGLang on a GPU."""
    return "on a GPU, SGLang's sampler refuses min_p beside seeds, for all requests of a batch"


def _no_seeds() -> str | None:
    from sglang.srt.runtime_context import get_exec, get_spec

    backend = get_exec().kernel.sampling_backend
    if backend != "pytorch":
        return f"the sampling backend {backend} takes no seeds; pytorch does"
    return "rejection sampling draws without seeds" if get_spec().speculative_use_rejection_sampling else None


def _note_choosers(verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE `eagle_sample`. The root is the token at index `seq_len`, so the next one's is one more."""
    if batch.forward_mode.is_idle():
        return
    vocab = batch.sampling_info.vocab_size
    _current.choosers = [
        chooser(request.sampling_params, seed_of(request), length + 1, vocab)
        for request, length in zip(batch.reqs, batch.seq_lens.tolist(), strict=True)
    ]


def _verify(*, target_probs: torch.Tensor, **given: Any) -> None:
    """Stands in for SGLang's kernel. `target_probs` are logits here: the functions before it leave them alone."""
    verify_trees(_current.choosers, logits=target_probs, **given)


def _is_greedy(*, is_all_greedy: bool, **_: object) -> bool:
    """Replaces the rule that a CPU always takes the argmax."""
    return is_all_greedy


def _untouched(values: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return values


def _no_coins(**_: object) -> tuple[None, None]:
    """Our rule makes its own."""
    return None, None


def _sample(
    original: Callable[..., Any],
    sampler: Any,
    probs: torch.Tensor,
    sampling_info: Any,
    positions: torch.Tensor,
    simple_sampling_case: bool,
) -> Any:
    """AROUND the sampler of plain decoding, so that a seed gives one text whether drafts are verified or not."""
    if sampling_info.sampling_mask_batch_indices is not None or sampling_info.sampling_seed is None:
        return original(sampler, probs, sampling_info, positions, simple_sampling_case)
    vocab = probs.shape[-1]
    info = sampling_info
    columns = (info.top_ks, info.top_ps, info.min_ps, info.sampling_seed, positions)
    choosers = [
        Chooser(sampling_law(1.0, top_k, top_p, min_p, vocab), Noise(seed, position + 1, is_seeded=True))
        for top_k, top_p, min_p, seed, position in zip(*(c.tolist() for c in columns), strict=True)
    ]
    return sample_rows(probs, choosers).to(probs.device), None


def _note_filters(verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE `eagle_sample` on a GPU."""
    _current.sampling_info = batch.sampling_info


def jointly_filtered(probs: torch.Tensor, kept: list[torch.Tensor], min_ps: torch.Tensor) -> torch.Tensor:
    """probs [R, V] restricted to what every law of `kept` and min-p [R] keep, renormalised."""
    is_kept = probs >= min_ps[:, None] * probs.amax(dim=-1, keepdim=True)
    for law in kept:
        is_kept &= law > 0
    probs = probs * is_kept
    return probs / probs.sum(dim=-1, keepdim=True)


#: SGLang's own functions, which ours call.
_stock: dict[str, Callable[..., torch.Tensor]] = {}
_FILTERS = ("sampling_softmax", "top_k_renorm_prob", "top_p_renorm_prob")


def _keep_stock() -> None:
    from sglang.srt.speculative import eagle_utils

    _stock.update({name: getattr(eagle_utils, name) for name in _FILTERS})


def _filtered(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """SGLang's softmax of verification and all filters jointly, as plain sampling by pytorch applies them."""
    info = _current.sampling_info
    num_nodes = logits.shape[0] // len(info)
    top_ks, top_ps, min_ps = (x.repeat_interleave(num_nodes) for x in (info.top_ks, info.top_ps, info.min_ps))
    probs = _stock["sampling_softmax"](logits, temperatures=temperatures)
    kept = [_stock["top_k_renorm_prob"](probs, top_ks)] if info.need_top_k_sampling else []
    kept += [_stock["top_p_renorm_prob"](probs, top_ps)] if info.need_top_p_sampling else []
    return jointly_filtered(probs, kept, min_ps) if kept or info.need_min_p_sampling else probs


def cpu_features() -> list[Feature]:
    """One rule does it all: sampling at any temperature, joint filters with min-p, seeds."""
    verified = (
        Hook(f"{_EAGLE}._verify_uses_greedy", "replace", _is_greedy, ("is_all_greedy",)),
        Hook(f"{_EAGLE}._verify_coins", "replace", _no_coins),
        Hook(f"{_EAGLE}.eagle_sample", "before", _note_choosers, ("verify_input", "batch")),
        *(Hook(f"{_EAGLE}.{name}", "assign", _untouched) for name in _FILTERS),
        *(
            Hook(f"{_EAGLE}.{name}", "assign", _verify)
            for name in ("tree_speculative_sampling_target_only", "chain_speculative_sampling_triton")
        ),
    )
    sampler = Hook("sglang.srt.layers.sampler.Sampler._sample_from_probs", "around", _sample, ("probs", "positions"))
    info = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
    seeded = Hook(info, "after", _keep_seeds, ("batch",))
    return [
        Feature(("sampling", "min_p"), verified, unused=without_speculation),
        Feature(("seeds",), (seeded, sampler), unused=_no_seeds),
    ]


def gpu_features() -> list[Feature]:
    """SGLang's kernels verify; the filters they skip come before them."""
    softmax, *others = _FILTERS
    return [
        Feature(
            ("min_p",),
            (
                Hook(f"{_EAGLE}.eagle_sample", "before", _note_filters, ("verify_input", "batch")),
                Hook(f"{_EAGLE}.{softmax}", "assign", _filtered),
                *(Hook(f"{_EAGLE}.{name}", "assign", _untouched) for name in others),
            ),
            setup=_keep_stock,
            unused=without_speculation,
        ),
        Feature(("seeds",), (), unused=_no_seeds_on_gpu),
    ]
