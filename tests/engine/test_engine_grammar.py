"""Grammars along draft paths, and whole answers under a grammar with and without speculation."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from markov import ALPHABET, EOS, VOCAB, chain_law, write_ending_checkpoint
from outrider.cost import VERSION, CostTable
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.engine.tokenizer import Tokenizer
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.proposal import NO_DRAFT, PointMass, SampledChain, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw


def ids(text: str) -> tuple[int, ...]:
    return tuple(ALPHABET.index(c) for c in text)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("grammar") / "toy"
    write_ending_checkpoint(folder, chain)
    return folder


@pytest.fixture(scope="module")
def compiler(toy: Path) -> GrammarCompiler:
    return GrammarCompiler(Tokenizer(toy), VOCAB, (EOS,))


def allowed(masks: torch.Tensor) -> list[str]:
    """Each row's tokens; `$` is the end, `*` a row that allows all."""
    rows = ["".join("$" if i == EOS else ALPHABET[i] for i in row.nonzero().flatten().tolist()) for row in masks]
    return ["*" if len(row) == VOCAB else row for row in rows]


def test_masks_follow_the_draft_path_and_come_back(compiler: GrammarCompiler) -> None:
    """Row i + 1 is the grammar after draft i, the end is allowed where the text may end, nothing stays behind."""
    state = compiler.compile("regex", "AB*(CD?)?").start()
    for _ in range(2):
        assert allowed(state.masks(PointMass(ids("ABBC")))) == ["A", "BC$", "BC$", "BC$", "D$"]
    assert state.accept(ids("A")[0])
    assert allowed(state.masks(NO_DRAFT)) == ["BC$"]
    assert allowed(state.masks(PointMass(ids("CD")))) == ["BC$", "D$", "*"], "nothing is emitted after the whole text"
    assert not state.is_complete


def test_masks_of_a_tree_are_those_of_its_branches(compiler: GrammarCompiler) -> None:
    """Each node's row is the grammar after that node's own path, in whatever order the nodes stand."""
    state = compiler.compile("regex", "A(B(C|D)|E[FG])H").start()
    tree = TopKTree(ids("AZBECDFZ"), (-1, -1, 0, 0, 2, 2, 3, 3))
    assert allowed(state.masks(tree)) == ["A", "BE", "*", "CD", "FG", "H", "H", "H", "*"]


def test_the_proposal_loses_what_breaks_the_grammar(compiler: GrammarCompiler) -> None:
    """A chain is cut at its first misfit, a tree loses the branches, and whole proposals stay as they are."""
    state = compiler.compile("regex", "A(B(C|D)|E[FG])H").start()
    assert state.prune(PointMass(ids("ABCAH"))) == PointMass(ids("ABC"))
    assert state.prune(PointMass(ids("BB"))) == NO_DRAFT
    whole = PointMass(ids("AEFH"))
    assert state.prune(whole) is whole
    tree = TopKTree(ids("ZABEHFG"), (-1, -1, 1, 1, 2, 3, 3))
    assert state.prune(tree) == TopKTree(ids("ABEFG"), (-1, 0, 0, 2, 2))
    assert state.prune(NO_DRAFT) == NO_DRAFT


def test_a_drawn_misfit_is_kept_and_what_follows_it_is_not(compiler: GrammarCompiler) -> None:
    """Dropping a drawn token by its value would bias the output; its descendants can never be reached."""
    state = compiler.compile("regex", "A(B|C)D").start()
    rows = torch.rand(5, VOCAB, dtype=torch.float64)
    chain = state.prune(SampledChain(ids("AZBB"), rows[:4]))
    assert (chain.token_ids, chain.draft_probs.tolist()) == (ids("AZ"), rows[:2].tolist())
    tree = state.prune(SampledTree(ids("ZAAC"), (-1, -1, 0, 1), rows))
    assert (tree.token_ids, tree.parents) == (ids("ZAC"), (-1, -1, 1))
    assert tree.draft_probs.tolist() == rows[[0, 1, 2, 4]].tolist()


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", "[1", "unexpected end"),
        ("json", '"x"', "must be an object or boolean"),
        ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json", '{"type": "bogus"}', "bogus"),
        ("regex", "(A", "unclosed group"),
        ("ebnf", "root := 3", "Expected ::="),
        ("ebnf", "start: missing", "missing"),
        ("regex", "é", "no token of this model can begin"),
    ],
)
def test_what_is_no_grammar_is_refused(compiler: GrammarCompiler, kind: str, text: str, said: str) -> None:
    """The message says what is wrong, on one line."""
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        compiler.compile(kind, text)
    assert "\n" not in str(caught.value)


def test_a_model_without_an_end_takes_no_grammar(toy: Path) -> None:
    """Where a grammar may end the model must be able to say so."""
    with pytest.raises(ValueError, match="no token that ends an answer"):
        GrammarCompiler(Tokenizer(toy), VOCAB, ()).compile("regex", "A")


def test_compiled_grammars_are_shared(compiler: GrammarCompiler) -> None:
    """The same text is compiled once, and two requests do not move each other."""
    grammar = compiler.compile("regex", "ABC")
    assert compiler.compile("regex", "ABC") is grammar
    first, second = grammar.start(), grammar.start()
    assert first.accept(ids("A")[0])
    assert (allowed(first.masks(NO_DRAFT)), allowed(second.masks(NO_DRAFT))) == (["B"], ["A"])


def run(engine: Engine, requests: list[GenerateRequest]) -> dict[str, tuple[str, Finish | None, int]]:
    """Text, finish and accepted drafts by id."""
    texts: dict[str, str] = {}
    ended: dict[str, tuple[str, Finish | None, int]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            texts[output.rid] = texts.get(output.rid, "") + output.text
            if output.finish is not None:
                ended[output.rid] = texts[output.rid], output.finish, output.stats.num_accepted if output.stats else 0
    return ended


PLANS = [PLAN_OFF, *(Plan("ngram", k) for k in (1, 2, 4, 8))]
PROMPT = tuple(itertools.chain.from_iterable(itertools.product(range(4), repeat=2)))


@pytest.mark.parametrize("pattern", ["([ABCD]{2}D){12}", "(A|BA|C+D)*(DDD)+", "[AB]*C[ABD]{5,30}", "D(AB){3,9}"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_does_not_change_an_answer_under_a_grammar(toy: Path, pattern: str, temperature: float) -> None:
    """Any k, alone and together, gives the plain answer; a finished one matches, a cut one could have."""
    engine = Engine(toy, EngineLimits(max_running=16, max_total_tokens=4096, context_length=512))
    grammar = engine.grammars.compile("regex", pattern)
    law, eos = SamplingLaw(temperature), frozenset({EOS})
    requests = [
        GenerateRequest(f"{i}/{seed}", PROMPT, law, 40, plan, seed, (), eos, grammar)
        for i, plan in enumerate(PLANS)
        for seed in range(3)
    ]
    ended = run(engine, requests)
    for seed in range(3):
        assert len({ended[f"{i}/{seed}"][0] for i in range(len(PLANS))}) == 1
    for text, finish, _ in ended.values():
        assert finish is not None
        if finish.kind == "stop":
            assert re.fullmatch(pattern, text)
    assert sum(num_accepted for _, _, num_accepted in ended.values()) > 20


def test_the_answer_ends_with_the_grammar(toy: Path) -> None:
    """A text that nothing can follow ends at its last token, without an end token and without room left over."""
    engine = Engine(toy, EngineLimits(context_length=512))
    grammar = engine.grammars.compile("regex", "ABCD")
    for plan in PLANS:
        request = GenerateRequest("a", PROMPT, SamplingLaw(0.0), 40, plan, 0, (), frozenset({EOS}), grammar=grammar)
        assert run(engine, [request])["a"][:2] == ("ABCD", Finish("stop"))


def test_drafts_that_break_the_grammar_are_never_verified(toy: Path) -> None:
    """The prompt repeats what the grammar forbids, and every proposal that reaches a step fits it."""
    engine = Engine(toy, EngineLimits(context_length=512))
    grammar = engine.grammars.compile("regex", "(AB|CD){8}")
    prompt = ids("ABCABDABCDACDB" * 4)
    plan = Plan("ngram", 8)
    engine.add(GenerateRequest("a", prompt, SamplingLaw(0.0), 40, plan, 0, (), frozenset({EOS}), grammar=grammar))
    engine.add(GenerateRequest("free", prompt, SamplingLaw(0.0), 16, plan, 0))
    num_proposed = {"a": 0, "free": 0}
    num_misfits = {"a": 0, "free": 0}
    while engine.has_work:
        for sequence in engine.scheduler:
            if sequence.num_output == 0:
                continue
            proposal = sequence.propose()
            text = "".join(ALPHABET[i] for i in (*sequence.token_ids[len(prompt) :], *proposal.token_ids))
            num_proposed[sequence.request.rid] += len(proposal)
            num_misfits[sequence.request.rid] += not re.fullmatch("(AB|CD)*[AC]?", text)
        engine.step()
    assert num_misfits["a"] == 0 and num_proposed["a"] > 0
    assert num_misfits["free"] > 0, "the drafter proposed nothing that the grammar could have refused"


def test_a_grammar_that_gets_stuck_ends_its_request_alone(toy: Path) -> None:
    """No token of the model fits the second character: the request is aborted with the reason, others go on."""
    engine = Engine(toy, EngineLimits(context_length=512))
    stuck = GenerateRequest("stuck", PROMPT, SamplingLaw(0.0), 9, PLAN_OFF, 0)
    stuck = dataclasses.replace(stuck, grammar=engine.grammars.compile("regex", "Bé"))
    ended = run(engine, [stuck, GenerateRequest("free", PROMPT, SamplingLaw(0.0), 9, PLAN_OFF, 0)])
    text, finish, _ = ended["stuck"]
    assert text == "B" and finish is not None and (finish.kind, finish.status) == ("abort", 500)
    assert finish.message is not None and finish.message.startswith("the grammar cannot go on")
    assert ended["free"][1] == Finish("length")


class _DrawingDrafter:
    """Draws every token from one law that knows no grammar."""

    LAW = torch.zeros(VOCAB, dtype=torch.float64).index_fill_(0, torch.tensor(ids("AC")), 0.5)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def observe(self, token_id: int) -> None:
        """Its law does not depend on the text."""

    def propose(self, k: int) -> SampledChain:
        return SampledChain(tuple(self._random.choices(ids("AC"), k=k)), self.LAW.expand(k, -1))

    def free(self) -> None:
        """Holds nothing."""


def test_the_cut_of_a_drawn_chain_does_not_look_at_its_tokens(toy: Path, chain: np.ndarray) -> None:
    """Where two drafts pay and one does not, a misfit in the first must not decide that nothing is verified."""
    cost = CostTable(
        version=VERSION, key={}, num_sequences=(1,), widths=(1, 2, 3), contexts=(1,),
        round_s=(((1.0,), (1.9,), (1.9,)),), bytes_per_token=1, weight_bytes=1, read_s=1.0,
    )  # fmt: skip
    engine = Engine(toy, EngineLimits(max_running=1, context_length=64), cost=cost)
    grammar, num_samples = engine.grammars.compile("regex", "[AB]{9}"), 800
    request = GenerateRequest(
        "a", PROMPT, SamplingLaw(), 4, Plan("draft_model", 2), 0, grammar=grammar, is_seeded=False
    )
    counts: Counter[tuple[int, ...]] = Counter()
    num_proposed = 0
    for seed in range(num_samples):
        drafter = GuardedDrafter(partial(_DrawingDrafter, seed), VOCAB)
        engine.add(dataclasses.replace(request, seed=seed), drafter)
        tokens: tuple[int, ...] = ()
        while engine.has_work:
            for output in engine.step():
                tokens += output.token_ids
                num_proposed += output.stats.num_proposed or 0 if output.stats else 0
        counts[tokens[:3]] += 1
    law = chain_law(chain, 1.0)[:, :2]
    law /= law.sum(axis=1, keepdims=True)
    cells = list(itertools.product(range(2), repeat=3))
    expected = [law[PROMPT[-1], a] * law[a, b] * law[b, c] * num_samples for a, b, c in cells]
    g_test = stats.power_divergence([counts[cell] for cell in cells], expected, lambda_="log-likelihood")
    assert num_proposed > num_samples and g_test.pvalue > 1e-3, (counts, expected)
