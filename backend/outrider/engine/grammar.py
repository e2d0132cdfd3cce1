"""Structured output: grammars compiled once, and one request's place in its grammar, also along draft tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import orjson
import torch
from llguidance import LLMatcher, LLTokenizer, grammar_from

from outrider.engine.tokenizer import Tokenizer
from outrider.speculation.proposal import Proposal, SampledChain, SampledTree

#: A JSON schema; a regular expression that the whole answer matches; GBNF from `root` on or Lark from `start` on.
GrammarKind = Literal["json", "regex", "ebnf"]

#: Compiled grammars that are kept; agents send the same few schemas over and over.
_CACHE_SIZE = 128


class GrammarCompiler:
    """Grammars over one model's tokens. Callable from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self.compile = lru_cache(_CACHE_SIZE)(self._compile)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        """Made when the first grammar comes: it takes a good part of a second."""
        if not self._eos_token_ids:
            raise ValueError("the model has no token that ends an answer, which grammars need")
        return LLTokenizer(self._tokenizer.to_json(), n_vocab=self._vocab_size, eos_token=list(self._eos_token_ids))

    def _compile(self, kind: GrammarKind, text: str) -> Grammar:
        """ValueError, saying what is wrong, when `text` is no grammar or uses what is not supported."""
        if kind == "json":
            orjson.loads(text)
        matcher = LLMatcher(self._tokens, grammar_from(kind, text), log_level=0)
        if not matcher.is_error() and not matcher.validate_tokens(_allowed(matcher).nonzero()[0][:1].tolist()):
            raise ValueError("no token of this model can begin a text of this grammar")
        if matcher.is_error():
            raise ValueError(_error(matcher))
        return Grammar(matcher, self._vocab_size)


class Grammar:
    """A compiled grammar at its beginning, shared by all requests that use it."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def start(self) -> GrammarState:
        """A state of its own for one sequence, at the beginning."""
        return GrammarState(self._matcher.deep_copy(), self._vocab_size)


class GrammarState:
    """Where one request stands in its grammar: after its committed tokens. Draft paths are walked and walked back."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    @property
    def is_complete(self) -> bool:
        """Whether nothing more can follow, so that the answer ends without waiting for the token that says so."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """What is wrong after `accept` failed."""
        return _error(self._matcher)

    def accept(self, token_id: int) -> bool:
        """Take a committed token; False when the grammar cannot go on, as when no token of the model fits it."""
        return self._matcher.consume_token(token_id)

    def masks(self, proposal: Proposal) -> torch.Tensor:
        """[n + 1, V] bool, True where the grammar allows the token; row 0 now, row i + 1 after draft token i.

        A row that the grammar does not reach, or reaches when it is complete, allows all: no token of it is emitted.
        """
        masks = np.ones((len(proposal) + 1, self._vocab_size), dtype=np.bool_)

        def fill(node: int) -> None:
            if not self.is_complete:
                masks[node + 1] = _allowed(self._matcher)[: self._vocab_size]

        self._walk(proposal, fill)
        return torch.from_numpy(masks)

    def prune(self, proposal: Proposal) -> Proposal:
        """The proposal without tokens that break the grammar and without what follows them.

        Drawn tokens are kept even then, only their descendants go: whether a drawn token is submitted must not depend
        on its value (arXiv 2211.17192 needs its residual law). The masked target gives it probability zero.
        """
        fitting: set[int] = set()
        self._walk(proposal, fitting.add)
        is_drawn = isinstance(proposal, SampledChain | SampledTree)
        parents = enumerate(proposal.parents)
        return proposal.only([i for i, parent in parents if i in fitting or (is_drawn and parent in fitting)])

    def _walk(self, proposal: Proposal, visit: Callable[[int], None]) -> None:
        """Call `visit(node)` with the grammar at each node that it reaches, -1 first; ends where it began."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(proposal.parents):
            children.setdefault(parent, []).append(node)

        def enter(node: int) -> None:
            visit(node)
            for child in children.get(node, ()):
                if not self.is_complete and self._matcher.try_consume_tokens([proposal.token_ids[child]]):
                    enter(child)
                    self._matcher.rollback(1)

        enter(-1)


def _error(matcher: LLMatcher) -> str:
    """The library's message on one line, without the grammar's text that it may quote at length."""
    return " ".join(matcher.get_error().split())[:300]


def _allowed(matcher: LLMatcher) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[at least V] bool; where no token fits, the library allows token 0, which it then does not consume."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little").view(np.bool_)
