"""Random numbers that belong to a position, not to a step: the output is then the same with any drafter and any k."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

#: Streams of one seed; numbers of different streams are independent.
_POSITIONS, _COINS, _DRAFTS, _CHOICES = 1, 2, 3, 4


class Choice(NamedTuple):
    """A token of a law, and whether rounding could have led to another one."""

    token_id: int
    is_near_tie: bool = False


class Coins(Protocol):
    """The random choices of one verify step, each independent of the others."""

    @property
    def is_seeded(self) -> bool:
        """Whether the output must depend on nothing but seed, position and target law."""

    def choose(
        self, depth: int, probs: torch.Tensor, slack: float = 0.0, doubtful: torch.Tensor | None = None
    ) -> Choice:
        """A token of the law `probs` [V] for the `depth`-th token from here, by the noise that its position owns.

        `slack` is how far rounding may have moved the ratio of two log probabilities; `doubtful` [V] are the
        probabilities of tokens that it may have moved into or out of the law, on the scale of `probs`, else zero.
        """

    def accept(self, probability: float) -> bool:
        """True with this probability, by a new coin."""

    def draw(self, weights: torch.Tensor) -> int:
        """A token with probability proportional to `weights` [V], not all zero, by new coins."""


@dataclass(slots=True)
class Noise:
    """The noise of one step of one request.

    A law is sampled by a race: token x arrives after an exponential time with rate P(x), and the first wins. That is
    the Gumbel argmax, log P(x) + G(x), in other words. Two laws that share a race's noise mostly pick the same token
    (arXiv 2408.07978), so a drafter that draws with `draft` from its own law agrees with the target often.
    """

    seed: int
    position: int
    """Output position of the step's first token; 0 is the request's first."""
    is_seeded: bool
    """Whether the caller gave the seed: then drafts use the target's own noise, else numbers that nobody reuses."""
    _num_coins: int = field(default=0, init=False)

    def choose(
        self, depth: int, probs: torch.Tensor, slack: float = 0.0, doubtful: torch.Tensor | None = None
    ) -> Choice:
        """probs [V] float64 -> the token at output position `position + depth`; depends on nothing else."""
        key = self._position_key(depth)
        winner, *close = _race(key, probs, 1, slack)
        is_near_tie = bool(close)
        if doubtful is not None and not is_near_tie:
            all_first = _race(key, torch.maximum(probs, doubtful), 1, slack)
            is_near_tie = bool(doubtful[winner] > 0.0) or all_first != [winner]
        return Choice(winner, is_near_tie)

    def draft(self, depth: int, probs: torch.Tensor, num_tokens: int = 1, branch: int = 0) -> list[int]:
        """probs [V] float64 -> `num_tokens` draft tokens drawn without replacement, in order, for `depth` from here.

        Fewer when fewer have a probability. `branch` tells apart the nodes of one depth. A rejected draft's noise
        must not be drawn from again, since verification by rejection looked at it; so without a seed the noise
        belongs to this step, while with one, where the target's own choice decides alone, it is the position's.
        """
        key = self._position_key(depth) if self.is_seeded else _key(self.seed, _DRAFTS, self.position, depth, branch)
        return _race(key, probs, num_tokens)

    def accept(self, probability: float) -> bool:
        """Whether to keep a draft: true with that probability."""
        return _unit(_mix(self._next_key())) < probability

    def draw(self, weights: torch.Tensor) -> int:
        """An index, each with the probability that its weight has of their sum."""
        return _race(self._next_key(), weights, 1)[0]

    def _position_key(self, depth: int) -> int:
        return _key(self.seed, _POSITIONS, self.position + depth)

    def _next_key(self) -> int:
        self._num_coins += 1
        return _key(self.seed, _COINS, self.position, self._num_coins)


def choice_seed(seed: int, index: int) -> int:
    """The seed of a request's `index`-th choice: the first has the request's own."""
    return seed if index == 0 else _key(seed, _CHOICES, index)


def _mix(x: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def _key(*parts: int) -> int:
    """Mixed after every part, so that neighbouring seeds or positions do not give shifted copies of one sequence."""
    key = 0
    for part in parts:
        key = _mix(((key ^ (part & _MASK)) + _GOLDEN) & _MASK)
    return key


def _unit(bits: int) -> float:
    """64 random bits -> (0, 1), both ends excluded exactly."""
    return ((bits >> 12) + 0.5) * 2.0**-52


@lru_cache(maxsize=4)
def _steps(vocab: int) -> npt.NDArray[np.uint64]:
    return np.arange(vocab, dtype=np.uint64) * np.uint64(_GOLDEN)


def _units(key: int, steps: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """SplitMix64 from `key` at the given multiples of its step: one number in (0, 1) per token."""
    x = steps + np.uint64(key)
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= np.uint64(_MIX_1)
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= np.uint64(_MIX_2)
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    x >>= np.uint64(12)
    units = x.astype(np.float64)
    units += 0.5
    units *= 2.0**-52
    return units


def _race(key: int, weights: torch.Tensor, num_tokens: int, slack: float = 0.0) -> list[int]:
    """weights [V] >= 0 -> the first `num_tokens` tokens to arrive, in order; none of weight zero.

    Behind them those that arrived later by a factor of less than exp(slack).
    """
    dense: npt.NDArray[np.float64] = weights.cpu().numpy()
    num_kept = np.count_nonzero(dense)
    kept = np.flatnonzero(dense) if num_kept < dense.size else slice(None)
    rates, units = dense[kept], _units(key, _steps(dense.size)[kept])
    num_tokens = min(num_tokens, int(num_kept))
    allowance = math.exp(slack)
    with np.errstate(over="ignore"):  # a time may be infinite when the rate is next to nothing
        # The arrival time -log(1 - u) / rate is at least u / rate, so logarithms are needed of few tokens only.
        bounds = units / rates
        first = [bounds.argmin()] if num_tokens == 1 else np.argpartition(bounds, num_tokens - 1)[:num_tokens]
        latest = (-np.log1p(-units[first]) / rates[first]).max()
        able = np.flatnonzero(bounds <= latest * allowance)
        times = -np.log1p(-units[able]) / rates[able]
        order = np.argsort(times, kind="stable")
        num_close = np.count_nonzero(times < times[order[num_tokens - 1]] * allowance) if slack else 0
    winners = able[order[: max(num_tokens, num_close)]]
    tokens = winners if isinstance(kept, slice) else kept[winners]
    return [int(token) for token in tokens]
