"""Blocks and who holds them: nothing leaks, nothing is shared by mistake, contents follow tokens."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.engine.cache_pool import CachePool, _sliding_maximum
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, SequenceCache

CONFIG = ModelConfig(
    vocab_size=8, hidden_size=2, intermediate_size=2, num_layers=2, num_heads=1, num_kv_heads=2, head_dim=2,
    rms_norm_eps=1e-5, rope_theta=1e4, context_length=4096, has_tied_embeddings=True, eos_token_ids=(),
)  # fmt: skip


def rows(salt: str, token_ids: list[int], start: int, end: int) -> torch.Tensor:
    """[end - start, kv_heads, head_dim]: like real keys, a row's content depends on all tokens before it."""
    found, state = [], hash(salt) % 997
    for token_id in token_ids[:end]:
        state = (state * 31 + token_id + 1) % 65521
        found.append(float(state))
    return torch.tensor(found[start:end]).view(-1, 1, 1).expand(-1, 2, 2)


def write(cache: SequenceCache, salt: str, token_ids: list[int]) -> None:
    """Compute positions from the cache's length to the end of `token_ids`, as a forward pass does."""
    append(cache, rows(salt, token_ids, cache.length, len(token_ids)))


def append(cache: SequenceCache, key: torch.Tensor) -> None:
    slots = torch.tensor(cache.slots(cache.length, cache.length + len(key)), dtype=torch.long)
    for layer in range(CONFIG.num_layers):
        cache.memory.write(layer, slots, torch.stack([key + layer, -key - layer]))
    cache.extend(len(key))


def check_contents(cache: SequenceCache, salt: str, token_ids: list[int]) -> None:
    expected = rows(salt, token_ids, 0, cache.length)
    for layer in range(CONFIG.num_layers):
        keys, values = cache.read(layer, cache.length)
        assert torch.equal(keys, expected + layer) and torch.equal(values, -expected - layer)


def fill(pool: CachePool, token_ids: list[int], salt: str = "") -> SequenceCache:
    """A sequence that has computed all of `token_ids`."""
    cache = pool.allocate(token_ids, salt=salt)
    assert cache is not None
    write(cache, salt, token_ids)
    pool.remember(cache, token_ids)
    pool.check()
    return cache


def cached_length(pool: CachePool, token_ids: list[int], salt: str = "") -> int:
    """How much of these tokens a newcomer would find."""
    cache = pool.allocate([*token_ids, 0], salt=salt)
    assert cache is not None
    check_contents(cache, salt, token_ids)
    length = cache.length
    pool.free(cache)
    return length


def text(first: int, num_blocks: int) -> list[int]:
    return [first, *range(num_blocks * BLOCK_SIZE - 1)]


class PoolMachine(RuleBasedStateMachine):
    """Random lives of sequences in a small pool, against lists of the tokens that each has committed."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = CachePool(CONFIG, 12 * BLOCK_SIZE)
        self.live: list[tuple[SequenceCache, str, list[int]]] = []
        self.texts: list[list[int]] = [[1] * 20]

    def pick(self, data: st.DataObject) -> tuple[SequenceCache, str, list[int]]:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @rule(data=st.data(), salt=st.sampled_from(["", "a"]), more=st.integers(0, 40), expected=st.integers(0, 300))
    def start(self, data: st.DataObject, salt: str, more: int, expected: int) -> None:
        """A new sequence continues part of an earlier text."""
        old = data.draw(st.sampled_from(self.texts))
        token_ids = [*old[: data.draw(st.integers(0, len(old)))], *[data.draw(st.integers(0, 1))] * more, 7]
        before = self.pool.num_available
        cache = self.pool.allocate(token_ids, salt=salt, num_expected=expected)
        if cache is None:
            assert self.pool.num_available == before
            return
        assert cache.length < len(token_ids) <= cache.capacity
        check_contents(cache, salt, token_ids)
        write(cache, salt, token_ids)
        self.pool.remember(cache, token_ids)
        self.live.append((cache, salt, token_ids))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), drafts=st.lists(st.integers(0, 2), max_size=20))
    def verify_chain(self, data: st.DataObject, drafts: list[int]) -> None:
        """Drafts are written, and all from some point on rolled back."""
        cache, salt, token_ids = self.pick(data)
        if not self.pool.grow(cache, len(token_ids) + len(drafts)):
            assert self.pool.largest(cache) < len(token_ids) + len(drafts)
            return
        write(cache, salt, [*token_ids, *drafts])
        num_accepted = data.draw(st.integers(0, len(drafts)))
        cache.keep(len(drafts), range(num_accepted))
        token_ids.extend(drafts[:num_accepted])
        self.pool.remember(cache, token_ids)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), length=st.integers(1, 6))
    def verify_tree(self, data: st.DataObject, length: int) -> None:
        """Rows of a path lie between rows of other branches, and are moved together."""
        cache, salt, token_ids = self.pick(data)
        path = sorted(data.draw(st.sets(st.integers(0, 3 * length - 1), min_size=length, max_size=length)))
        if not self.pool.grow(cache, len(token_ids) + 3 * length):
            return
        accepted = [*token_ids, *[2] * length]
        row = rows(salt, accepted, len(token_ids), len(accepted))
        key = torch.full((3 * length, 2, 2), -1.0)
        key[path] = row
        append(cache, key)
        cache.keep(3 * length, path)
        token_ids[:] = accepted
        self.pool.remember(cache, token_ids)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A sequence ends, or is preempted: what it knew may be found again."""
        one = self.pick(data)
        self.live.remove(one)
        self.texts.append(one[2])
        self.pool.free(one[0])

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.pool.check()
        used = {block for cache, _, _ in self.live for block in cache.blocks}
        assert self.pool.num_used_tokens == len(used) * BLOCK_SIZE
        for cache, salt, token_ids in self.live:
            assert cache.length == len(token_ids)
            check_contents(cache, salt, token_ids)

    def teardown(self) -> None:
        for cache, _, _ in self.live:
            self.pool.free(cache)
        self.pool.check()
        assert (self.pool.num_used_tokens, self.pool.num_available) == (0, 12)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_text_is_found_again_in_whole_blocks() -> None:
    """Prompt and answer alike, but one token is always left to compute."""
    pool = CachePool(CONFIG, 20 * BLOCK_SIZE)
    token_ids = text(1, 3)
    pool.free(fill(pool, [*token_ids, 5]))
    assert cached_length(pool, token_ids) == 3 * BLOCK_SIZE
    assert cached_length(pool, token_ids[:-1]) == 2 * BLOCK_SIZE
    assert cached_length(pool, [9, *token_ids]) == 0
    exact = pool.allocate(token_ids)
    assert exact is not None and exact.length == 2 * BLOCK_SIZE


def test_salts_keep_texts_apart() -> None:
    """The same tokens under another salt are not found."""
    pool = CachePool(CONFIG, 20 * BLOCK_SIZE)
    pool.free(fill(pool, text(1, 2), salt="a"))
    assert [cached_length(pool, text(1, 2), salt) for salt in ("a", "b", "")] == [2 * BLOCK_SIZE, 0, 0]


def test_the_least_recently_used_text_goes_first_and_from_its_end() -> None:
    """Using a text again makes it young; of one text the beginning is worth most."""
    pool = CachePool(CONFIG, 8 * BLOCK_SIZE)
    for first in (1, 2):
        pool.free(fill(pool, text(first, 3)))
    pool.free(fill(pool, [*text(1, 3), 0]))  # text 1 is used again, in the last free block too
    other = pool.allocate(text(3, 3))
    assert other is not None
    assert cached_length(pool, text(1, 3)) == 3 * BLOCK_SIZE
    assert cached_length(pool, text(2, 3)) < 3 * BLOCK_SIZE


def test_blocks_taken_one_by_one_are_the_oldest() -> None:
    """Where no window is left, eviction follows age alone."""
    pool = CachePool(CONFIG, 6 * BLOCK_SIZE)
    caches = [fill(pool, text(first, 1)) for first in range(6)]
    for i in (2, 4, 0):  # no two of them are neighbours
        pool.free(caches[i])
    scattered = pool.allocate(text(9, 2))
    assert scattered is not None and not scattered.is_run and set(scattered.blocks) == {2, 4}
    write(scattered, "", text(9, 2))
    check_contents(scattered, "", text(9, 2))
    pool.free(caches[5])
    assert cached_length(pool, text(0, 1)) == BLOCK_SIZE


def test_a_beginning_is_shared_only_when_there_is_no_room_to_copy_it() -> None:
    """Two running sequences of one beginning: a copy when a window is free, else references to the same blocks."""
    token_ids = text(1, 4)
    for num_blocks, is_shared in ((20, False), (6, True)):
        pool = CachePool(CONFIG, num_blocks * BLOCK_SIZE)
        first = fill(pool, [*token_ids, 5])
        second = fill(pool, [*token_ids, 8])
        assert bool(set(first.blocks) & set(second.blocks)) is is_shared
        assert second.is_run is not is_shared
        pool.free(first)
        pool.check()
        check_contents(second, "", [*token_ids, 8])


def test_a_conversation_goes_on_in_its_place() -> None:
    """When nothing younger lies behind a text, its next turn is written there without a copy."""
    pool = CachePool(CONFIG, 20 * BLOCK_SIZE)
    first = fill(pool, text(1, 3))
    blocks = list(first.blocks)
    pool.free(first)
    assert fill(pool, [*text(1, 3), 4]).blocks[:3] == blocks


def test_headroom_keeps_neighbours_apart() -> None:
    """Two sequences that are expected to grow both stay in one piece, in place."""
    pool = CachePool(CONFIG, 40 * BLOCK_SIZE)
    caches = [pool.allocate([first], num_expected=10 * BLOCK_SIZE) for first in (1, 2)]
    starts = [cache.blocks[0] for cache in caches if cache is not None]
    for num_positions in range(BLOCK_SIZE, 10 * BLOCK_SIZE + 1, BLOCK_SIZE):
        assert all(cache is not None and pool.grow(cache, num_positions) for cache in caches)
    assert all(cache is not None and cache.is_run for cache in caches)
    assert [cache.blocks[0] for cache in caches if cache is not None] == starts


def test_a_sequence_that_outgrew_its_place_moves_with_its_content() -> None:
    """It stays in one piece, is found where it is now, and leaves nothing behind."""
    pool = CachePool(CONFIG, 20 * BLOCK_SIZE)
    first, second = fill(pool, text(1, 2)), fill(pool, text(2, 2))
    assert second.blocks[0] == first.blocks[-1] + 1
    old = set(first.blocks)
    assert pool.grow(first, 3 * BLOCK_SIZE) and first.is_run and not old & set(first.blocks)
    pool.check()
    check_contents(first, "", text(1, 2))
    assert pool.num_used_tokens == 5 * BLOCK_SIZE
    pool.free(first)
    assert cached_length(pool, text(1, 2)) == 2 * BLOCK_SIZE


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    """Neither a start nor growth takes a part; cached blocks count as room, spare ones do not."""
    pool = CachePool(CONFIG, 4 * BLOCK_SIZE)
    cache = fill(pool, text(1, 2))
    assert not pool.grow(cache, 5 * BLOCK_SIZE)
    assert pool.allocate(text(2, 3)) is None
    assert pool.allocate(text(2, 2), num_spare=1) is None
    assert pool.num_available == 2
    pool.free(cache)
    assert pool.allocate(text(2, 4)) is not None


def test_a_copied_beginning_leaves_the_spare_blocks() -> None:
    """What is reused is copied to a better place only where as many blocks are left as were to be spared."""
    pool = CachePool(CONFIG, 8 * BLOCK_SIZE)
    fill(pool, text(1, 4))
    for num_spare, num_left in ((2, 3), (0, 0)):
        cache = pool.allocate([*text(1, 3), 7], num_spare=num_spare)
        assert cache is not None and cache.length == 3 * BLOCK_SIZE
        check_contents(cache, "", text(1, 3))
        pool.check()
        assert (pool.num_available, cache.is_run) == (num_left, num_spare == 0)
        pool.free(cache)


def test_the_sliding_maximum_is_the_naive_one() -> None:
    """Every width, and widths beyond the values."""
    values = torch.randint(0, 50, (17,), generator=torch.Generator().manual_seed(1)).numpy()
    for size in range(1, 20):
        naive = [max(values[i : i + size]) for i in range(len(values) - size + 1)]
        assert _sliding_maximum(values, size).tolist() == naive, size
