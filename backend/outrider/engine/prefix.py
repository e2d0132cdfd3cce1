"""Which block holds which piece of text: blocks are found again by a digest of all tokens up to their end."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def root_digest(salt: str) -> bytes:
    """Where the chain of a sequence starts; texts of different salts never meet."""
    return hashlib.blake2b(salt.encode(), digest_size=32).digest()


def next_digest(digest: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest behind one more block of tokens. 256 bits: an outsider cannot make two texts meet."""
    return hashlib.blake2b(digest + array("q", token_ids).tobytes(), digest_size=32).digest()


class PrefixIndex:
    """One block per digest and one digest per block. Knows neither who uses a block nor what is in it."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    def __len__(self) -> int:
        return len(self._digest_of)

    def match(self, root: bytes, token_ids: Sequence[int], block_size: int) -> tuple[list[int], list[bytes]]:
        """Blocks, and their digests, of the longest known beginning of these tokens in whole blocks."""
        blocks: list[int] = []
        digests: list[bytes] = []
        digest = root
        for end in range(block_size, len(token_ids) + 1, block_size):
            digest = next_digest(digest, token_ids[end - block_size : end])
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
            digests.append(digest)
        return blocks, digests

    def add(self, digest: bytes, block: int) -> None:
        """Remember a block, unless another one holds the same text already."""
        assert block not in self._digest_of, block
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def forget(self, block: int) -> None:
        """The block's content goes; nothing happens when it was never remembered."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    def move(self, old: int, new: int) -> None:
        """What was in `old` is in `new` from now on."""
        digest = self._digest_of.pop(old, None)
        if digest is not None:
            assert new not in self._digest_of, (old, new)
            self._digest_of[new] = digest
            self._block_of[digest] = new
