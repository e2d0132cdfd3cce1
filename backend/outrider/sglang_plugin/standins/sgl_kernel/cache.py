"""Bookkeeping of key/value slots: the request table, the lists of slots, and moving what was accepted."""

from __future__ import annotations

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out_cache_loc: torch.Tensor,
    width: int,
) -> None:
    """Fill columns start..end of each request's row of `req_to_token` [rows, W] with the next slots of the list."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        slots = out_cache_loc[taken : taken + last - first]
        req_to_token[row, first:last] = slots.to(req_to_token.dtype)
        taken += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out: torch.Tensor,
    width: int,
) -> None:
    """The inverse: fill `out` with columns start..end of each request's row, one request after the other."""
    written = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out[written : written + last - first] = req_to_token[row, first:last].to(out.dtype)
        written += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    width: int,
    topk: int,
    num_steps: int,
) -> None:
    """Fill `out` [B * topk * steps] with the slots after each sequence: branch b, step s is column b * steps + s."""
    size = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out[i * size : (i + 1) * size] = req_to_token[row, length : length + size].to(out.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus: torch.Tensor, stride: int
) -> None:
    """Fill `bonus` [B] with the last token of each row of `accept_tokens`; `accept_lens` counts it too."""
    last = accept_lens.long() - 1
    bonus.copy_(accept_tokens.view(-1, stride).gather(1, last[:, None])[:, 0])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out: torch.Tensor
) -> None:
    """Fill the head of `accept_out` with the slots of the accepted nodes; index -1 is padding."""
    kept = accept_index.flatten()
    kept = kept[kept >= 0].long()
    accept_out[: kept.numel()] = out_cache_loc[kept].to(accept_out.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, target: torch.Tensor, source: torch.Tensor
) -> None:
    """Copy slot source[j] to target[j] in every buffer; all are read before any is written, since they may overlap.

    `data_ptrs` holds the buffers' addresses, `strides` the bytes of one slot in each.
    """
    moves = [(to, of) for to, of in zip(target.tolist(), source.tolist(), strict=True) if to != of]
    for pointer, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(pointer + of * stride, stride) for _, of in moves]
        for (to, _), data in zip(moves, read, strict=True):
            ctypes.memmove(pointer + to * stride, data, stride)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    start: torch.Tensor,
    lens: torch.Tensor,
    new_ids: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one, in place, and put its new id last, or at `select_index`."""
    for i, (first, length) in enumerate(zip(start.tolist(), lens.tolist(), strict=True)):
        ids = input_ids[first : first + length]
        ids[:-1] = ids[1:].clone()
        where = first + length - 1 if select_index is None else int(select_index[i])
        input_ids[where] = new_ids.flatten()[i].to(input_ids.dtype)
