"""Attention by torch's scaled dot product: several sequences in a call, grouped queries folded into rows."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.engine.attention import Segment
from outrider.engine.attention.rotary import rotate_in_place, rotations_at
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, KeyValueMemory

#: Sequences are computed together unless one has less than this share of another one's positions.
MIN_SHARE = 0.5
#: Shape, steps and first element of a view.
_Cut = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment and where its rows stand in the batch."""

    segment: Segment
    first_row: int

    @property
    def num_rows(self) -> int:
        return len(self.segment.token_ids)

    @property
    def length(self) -> int:
        """Positions once the rows are written."""
        return self.segment.cache.length + self.num_rows

    @property
    def rows(self) -> range:
        return range(self.first_row, self.first_row + self.num_rows)

    @property
    def first_slot(self) -> int:
        return self.segment.cache.blocks[0] * BLOCK_SIZE


class SdpaAttention:
    """Attention of one batch, causal along chains and trees: what does not depend on the layer is prepared once."""

    def __init__(self, config: ModelConfig, segments: Seq[Segment], table: torch.Tensor) -> None:
        places = list(_places(segments))
        positions = [s.cache.length + depth for s in segments for depth in s.depths]
        self._rotations = rotations_at(config, table, positions)
        self._writes = list(_writes(places, table.device))
        self._query, self._entries = _cuts(config, len(positions))
        groups = _groups(places)
        order = [row for group in groups for place in group for row in place.rows]
        self._order: tuple[torch.Tensor, torch.Tensor] | None = None
        """Rows of the batch in the order of the parts, and back again; None where it is the same."""
        if order != list(range(len(order))):
            rows = torch.tensor(order, device=table.device)
            self._order = rows, rows.argsort()
        self._parts = [_Part(config, group, table.device) for group in groups]

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [R, (heads + 2 kv_heads) * head_dim], contiguous -> attention output [R, heads * head_dim].

        Writes the caches, and turns `qkv` where it lies.
        """
        rotate_in_place(qkv, self._rotations)
        # One view each: small operators are what a step of few rows waits for beside its matrices.
        query = qkv.as_strided(*self._query)
        entries = qkv.as_strided(*self._entries)
        for memory, rows, slots in self._writes:
            memory.write(layer, slots, entries if rows is None else entries[:, rows])
        if self._order is not None:
            query = query[self._order[0]]
        outputs, row = [], 0
        for part in self._parts:
            # A slice of everything would be one more operator.
            rows = query if len(self._parts) == 1 else query[row : row + part.num_rows]
            outputs.append(part.attend(layer, rows))
            row += part.num_rows
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out if self._order is None else out[self._order[1]]


class _Part:
    """One call: S sequences of up to n positions, with r rows each."""

    def __init__(self, config: ModelConfig, places: Seq[_Place], device: torch.device) -> None:
        count, groups = places[0].num_rows, config.num_heads // config.num_kv_heads
        self.num_rows = len(places) * count
        self._has_one_row = count == 1
        """Of each sequence, as in plain decoding: its heads lie in the right order already."""
        self._unfolded = (len(places), count, config.num_kv_heads, groups, config.head_dim)
        self._folded = (len(places), config.num_kv_heads, groups, count, config.head_dim)
        length = max(place.length for place in places)
        self._mask: torch.Tensor | None = None
        """[S, 1, groups * r, n], for query heads folded into rows; None when all see everything."""
        if count > 1 or any(place.length < length for place in places):
            mask = torch.cat([_mask(place, length) for place in places]).repeat(1, 1, groups, 1)
            self._mask = mask.to(device, places[0].segment.cache.memory.data.dtype)
        self._memory = places[0].segment.cache.memory
        self._slots: torch.Tensor | None = None
        """Of a sequence whose blocks do not follow one another; else keys and values are views, made once."""
        if places[0].segment.cache.is_run:
            self._keys, self._values = _views(self._memory, [place.first_slot for place in places], length)
        else:
            self._slots = torch.tensor(places[0].segment.cache.slots(0, length), device=device)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """query [S * r, kv_heads, groups, d] -> [S * r, heads * d]; query groups become rows."""
        folded = query if self._has_one_row else query.view(self._unfolded).permute(0, 2, 3, 1, 4).flatten(2, 3)
        if self._slots is None:
            keys, values = self._keys[layer], self._values[layer]
        else:
            keys, values = self._memory.layers[layer][:, self._slots].transpose(1, 2).unsqueeze(1)
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self._mask)
        if self._has_one_row:
            return out.reshape(self.num_rows, -1)
        return out.view(self._folded).permute(0, 3, 1, 2, 4).reshape(self.num_rows, -1)


def _cuts(config: ModelConfig, num_rows: int) -> tuple[_Cut, _Cut]:
    """Of qkv [R, (heads + 2 kv_heads) * d]: queries [R, kv_heads, groups, d], and entries [2, R, kv_heads, d]."""
    num_kv_heads, dim, groups = config.num_kv_heads, config.head_dim, config.num_heads // config.num_kv_heads
    width = (groups + 2) * num_kv_heads * dim
    query = (num_rows, num_kv_heads, groups, dim), (width, groups * dim, dim, 1), 0
    entries = (2, num_rows, num_kv_heads, dim), (num_kv_heads * dim, width, dim, 1), groups * num_kv_heads * dim
    return query, entries


def _places(segments: Seq[Segment]) -> Iterator[_Place]:
    row = 0
    for segment in segments:
        yield _Place(segment, row)
        row += len(segment.token_ids)


def _writes(
    places: Seq[_Place], device: torch.device
) -> Iterator[tuple[KeyValueMemory, torch.Tensor | None, torch.Tensor]]:
    """Memories with the rows that go there, None for all, and their slots."""
    members: dict[KeyValueMemory, list[_Place]] = {}
    for place in places:
        members.setdefault(place.segment.cache.memory, []).append(place)
    for memory, own in members.items():
        slots = [
            slot for place in own for slot in place.segment.cache.slots(place.length - place.num_rows, place.length)
        ]
        rows = None if len(own) == len(places) else torch.tensor([row for p in own for row in p.rows], device=device)
        yield memory, rows, torch.tensor(slots, device=device)


def _groups(places: Seq[_Place]) -> list[list[_Place]]:
    """Sequences that one call computes, in the order of memory: equally many rows, and equal steps between them.

    Attention is spread over threads by sequences and key heads. A call for one sequence leaves one of two threads
    idle for a third of the time when there are three key heads, and has a price of its own however short it is.
    Two places in one memory are always some step apart, so that at least pairs are found.
    """
    groups: list[list[_Place]] = []
    # Neighbours in this order are those that waste least together.
    for place in sorted(places, key=lambda p: (p.num_rows, p.length, p.first_slot)):
        if groups and _may_join(groups[-1], place):
            groups[-1].append(place)
            groups[-1].sort(key=lambda p: p.first_slot)
        else:
            groups.append([place])
    return sorted(groups, key=lambda group: group[0].first_row)


def _may_join(group: list[_Place], place: _Place) -> bool:
    """`place` has at least as many positions as those in the group."""
    caches = [p.segment.cache for p in (*group, place)]
    first, last = group[0], group[-1]
    return (
        first.num_rows == place.num_rows
        and all(cache.is_run and cache.memory is caches[0].memory for cache in caches)
        and min(p.length for p in group) >= MIN_SHARE * place.length
        and max(p.first_slot for p in (last, place)) + place.length <= caches[0].memory.num_slots
        and (len(group) == 1 or place.first_slot - last.first_slot == group[1].first_slot - first.first_slot)
    )


def _mask(place: _Place, length: int) -> torch.Tensor:
    """[1, 1, r, length] to add to scores: zero for what a row sees."""
    bias = torch.zeros(place.num_rows, length)
    start, end = place.segment.cache.length, place.length
    bias[:, start:end].masked_fill_(~place.segment.visible, float("-inf"))
    bias[:, end:] = float("-inf")
    return bias.view(1, 1, place.num_rows, length)


def _views(
    memory: KeyValueMemory, firsts: Seq[int], length: int
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Per layer, keys and values [S, kv_heads, length, d] of sequences at these first slots, equal steps apart."""
    by_layer, by_kind, by_slot, by_head, by_column = memory.data.stride()
    num_layers, _, _, num_kv_heads, head_dim = memory.data.shape
    step = (firsts[1] - firsts[0]) * by_slot if len(firsts) > 1 else 0
    view = memory.data.as_strided(
        (num_layers, 2, len(firsts), num_kv_heads, length, head_dim),
        (by_layer, by_kind, step, by_head, by_slot, by_column),
        firsts[0] * by_slot,
    )
    return view[:, 0].unbind(0), view[:, 1].unbind(0)
