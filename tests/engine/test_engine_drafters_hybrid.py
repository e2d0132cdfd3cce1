"""A hybrid looks up first and asks its head elsewhere; each part goes on as if it had drafted alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.hybrid import USUAL_GAIN, HybridDrafter
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.taps import Taps
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.proposal import Proposal, SampledChain, TopKTree
from outrider.speculation.target import SamplingLaw
from random_heads import write_random_heads
from random_llama import write_random_llama

#: Repeats itself in the middle, and not at its ends.
TEXT = (*range(24), *(30, 31, 32, 33) * 5, *range(40, 56))
NUM_PROMPT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    write_random_llama(folder / "target", num_layers=5)
    write_random_heads(folder, folder / "target", range(3, 60))
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> LlamaModel:
    return LlamaModel(folder / "target")


@pytest.fixture(scope="module", params=["eagle", "eagle3"])
def head(request: pytest.FixtureRequest, folder: Path, target: LlamaModel) -> EagleHead:
    return EagleHead(folder / request.param, target)


def features_of(target: LlamaModel, tokens: tuple[int, ...], points: tuple[int, ...]) -> torch.Tensor:
    taps = Taps(points)
    target.forward([Segment(target.new_cache(len(tokens)), tokens, 1)], taps=taps)
    return taps.features(points, range(len(tokens)))


def parts(head: EagleHead, prompt: tuple[int, ...], temperature: float) -> tuple[EagleDrafter, SuffixDrafter]:
    request = GenerateRequest("a", prompt, SamplingLaw(temperature), 400, Plan("hybrid", 7), seed=3)
    eagle = EagleDrafter(head, DraftMemory(head, 2000), request, EagleSettings())
    return eagle, SuffixDrafter(prompt, SuffixStore(), "")


def same(one: Proposal, other: Proposal) -> bool:
    if isinstance(one, SampledChain) and isinstance(other, SampledChain):
        return one.token_ids == other.token_ids and torch.allclose(one.draft_probs, other.draft_probs, atol=1e-4)
    return (type(one), one.token_ids, one.parents) == (type(other), other.token_ids, other.parents)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parts_take_turns_and_lose_nothing(target: LlamaModel, head: EagleHead, temperature: float) -> None:
    """Whichever drafted before, each proposal is what that part would propose that has seen the text alone."""
    features = features_of(target, TEXT, head.points)
    hybrid = HybridDrafter(*parts(head, TEXT[:NUM_PROMPT], temperature))
    hybrid.observe_features(0, features[: NUM_PROMPT - 1])
    turns, known = list[str](), NUM_PROMPT
    for more in (1, 3, 2, 4, 1, 2, 3, 1, 2, 1, 1, 4, 2, 5, 3, 2):
        hybrid.observe_features(known - 1, features[known - 1 : known + more - 1])
        for token in TEXT[known : known + more]:
            hybrid.observe(token)
        known += more
        found = hybrid.propose(5)
        eagle, text = parts(head, TEXT[:NUM_PROMPT], temperature)
        eagle.observe_features(0, features[: known - 1])
        for token in TEXT[NUM_PROMPT:known]:
            eagle.observe(token)
            text.observe(token)
        grown = text.grow(5)
        copied = TopKTree(grown.token_ids, grown.parents)
        is_copied = same(found, copied)
        assert len(found) and (is_copied or same(found, eagle.propose(5)))
        assert is_copied == (grown.score >= hybrid.gain and len(copied) > 0)
        assert not is_copied or (isinstance(found, TopKTree) and found.chances is not None)
        turns.append("text" if is_copied else "head")
    assert [turn for turn, _ in itertools.groupby(turns)] == ["head", "text", "head"]


def test_it_drafts_in_turns_within_one_answer(toy_folder: Path, toy_heads: DraftOptions) -> None:
    """As a plan names it: where the text repeats itself look-up drafts, elsewhere the head; and no draft is lost on
    the text, which is that of plain decoding."""
    limits = EngineLimits(max_running=4, max_total_tokens=1024, context_length=128)
    engine = Engine(toy_folder, limits, toy_heads)
    for temperature in (0.0, 0.9):
        kinds, answers = set[str](), list[tuple[int, ...]]()
        for plan in (PLAN_OFF, Plan("hybrid", 4)):
            engine.add(GenerateRequest("a", (0, 1, 2, 3, 9, 8, 7), SamplingLaw(temperature), 48, plan, seed=3))
            tokens: tuple[int, ...] = ()
            while engine.has_work:
                for output in engine.step():
                    tokens += output.token_ids
                    assert output.num_drafter_failures == 0
                for sequence in engine.scheduler:
                    if sequence.num_output and sequence.drafter is not None:
                        text = SuffixDrafter(sequence.token_ids, SuffixStore(), "")
                        grown = text.grow(min(4, sequence.num_remaining - 1))
                        is_copied = same(sequence.propose(), TopKTree(grown.token_ids, grown.parents))
                        kinds.add("text" if is_copied else "head")
            answers.append(tokens)
        assert answers[0] == answers[1] and kinds == {"head", "text"}
    assert not any(memory.num_reserved for memory in engine.drafters.memory.values())


def test_a_head_that_drafts_nothing_is_not_blamed(target: LlamaModel, head: EagleHead) -> None:
    """While it has no states or still reads, what it is expected to get right stays, and what the text repeats is
    drafted whatever it promises; a wrong draft lowers it."""
    prompt = tuple(range(20))
    hybrid = HybridDrafter(*parts(head, prompt, 0.0))
    assert hybrid.gain == USUAL_GAIN
    for token in range(20, 30):
        assert not len(hybrid.propose(4)), "it was shown no state, and no token came twice"
        hybrid.observe(token)
    hybrid.observe(20)
    found = hybrid.propose(2)
    assert found.token_ids == (21, 22) and hybrid.gain == USUAL_GAIN
    seen = (*range(30), 20, 63)
    hybrid.observe_features(0, features_of(target, seen, hybrid.points)[: len(seen) - 1])
    hybrid.observe(63)
    assert len(hybrid.propose(4)) == 4
    hybrid.observe(62)
    hybrid.propose(4)
    assert hybrid.gain < USUAL_GAIN
    hybrid.free()


def test_a_hybrid_needs_a_head(toy_folder: Path, toy_heads: DraftOptions) -> None:
    """It is offered where one is loaded, drafts with the first, and takes no memory beside that head's."""
    limits = EngineLimits(max_total_tokens=512, context_length=128)
    assert "hybrid" not in Engine(toy_folder, limits).drafters.makers
    assert "hybrid" not in Engine(toy_folder, limits, DraftOptions(medusa=toy_heads.medusa)).drafters.makers
    for eagle, name in ((toy_heads.eagle, "eagle2"), (toy_heads.eagle[::-1], "eagle3")):
        drafters = Engine(toy_folder, limits, DraftOptions(eagle=eagle)).drafters
        assert drafters.info["hybrid"]["head"] == name and "hybrid" not in drafters.memory
        assert drafters.digests["hybrid"] == drafters.digests[name]
        assert drafters.info["hybrid"]["accuracy"] == drafters.info[name]["accuracy"] != []
        context = drafters.memory[name].context_length
        assert (drafters.info[name]["context_length"], drafters.info["hybrid"]["context_length"]) == (context, None)
