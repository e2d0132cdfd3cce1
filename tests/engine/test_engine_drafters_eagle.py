"""EAGLE and Medusa drafting in the engine: what is proposed depends on the text alone, and laws stay the target's."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from markov import chain_law
from outrider.engine.attention import Segment
from outrider.engine.drafters import FeatureDrafter
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings, Shape
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.eagle_hybrid import USUAL_GAIN, HybridDrafter
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
from outrider.engine.drafters.model_chain import MAX_CATCH_UP
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.info import ServerOptions, server_info
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.taps import Taps
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.runtimes.abilities import read_abilities
from outrider.speculation.proposal import PointMass, Proposal, SampledChain, TopKTree
from outrider.speculation.target import SamplingLaw
from random_heads import write_random_heads
from random_llama import write_random_llama

PROMPT = tuple(itertools.chain.from_iterable(itertools.product(range(4), repeat=2)))
SHAPES: dict[str, tuple[Shape, float, type[Proposal]]] = {
    "dynamic": ("dynamic", 0.0, TopKTree), "static": ("static", 0.3, TopKTree), "chain": ("chain", 0.0, PointMass),
    "drawn": ("dynamic", 1.0, SampledChain),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    write_random_llama(folder / "target", num_layers=5)
    write_random_heads(folder, folder / "target", range(3, 60))
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> LlamaModel:
    return LlamaModel(folder / "target")


def text_of(num_tokens: int, wrong: int = 0) -> tuple[int, ...]:
    return tuple((11 * i * i + 5 * i + wrong) % 64 for i in range(num_tokens))


def request(prompt: tuple[int, ...], temperature: float = 0.0) -> GenerateRequest:
    return GenerateRequest("a", prompt, SamplingLaw(temperature), 400, Plan("eagle2", 7), seed=3)


def features_of(target: LlamaModel, tokens: tuple[int, ...], points: tuple[int, ...]) -> torch.Tensor:
    taps = Taps(points)
    target.forward([Segment(target.new_cache(len(tokens)), tokens, 1)], taps=taps)
    return taps.features(points, range(len(tokens)))


def show(drafter: FeatureDrafter, target: LlamaModel, text: tuple[int, ...], start: int, num_known: int) -> None:
    """The states of positions from `start` on, and the tokens after the first `num_known`; the last has no state."""
    features = features_of(target, text, drafter.points)[start : len(text) - 1]
    drafter.observe_features(start, features)
    for token in text[num_known:]:
        drafter.observe(token)


def same(one: Proposal, other: Proposal) -> bool:
    if isinstance(one, SampledChain) and isinstance(other, SampledChain):
        return one.token_ids == other.token_ids and torch.allclose(one.draft_probs, other.draft_probs, atol=1e-4)
    return (type(one), one.token_ids, one.parents) == (type(other), other.token_ids, other.parents)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("name", SHAPES)
def test_rejected_drafts_leave_no_trace(folder: Path, target: LlamaModel, kind: str, name: str) -> None:
    """After any number of accepted drafts a drafter proposes what one that sees the text for the first time does."""
    shape, temperature, proposal_type = SHAPES[name]
    head = EagleHead(folder / kind, target)
    memory = DraftMemory(head, 2000)

    def make(prompt: tuple[int, ...]) -> EagleDrafter:
        return EagleDrafter(head, memory, request(prompt, temperature), EagleSettings(shape))

    text = text_of(60)
    old = make(text[:20])
    show(old, target, text[:21], 0, 20)
    known = 21
    for more in (1, 4, 2, 8, 1):
        assert len(old.propose(7)) == 7
        show(old, target, text[: known + more], known - 1, known)
        known += more
    found = old.propose(7)
    assert isinstance(found, proposal_type)
    fresh = make(text[:20])
    show(fresh, target, text[:known], 0, 20)
    assert same(found, fresh.propose(7))
    other = make(text_of(20, wrong=1))
    show(other, target, text_of(known, wrong=1), 0, 20)
    assert not same(found, other.propose(7)), "what is proposed should depend on the text"
    for drafter in (old, fresh, other):
        drafter.free()
    assert memory.num_reserved == 0


def test_a_long_text_is_read_in_parts_and_again(folder: Path, target: LlamaModel) -> None:
    """Nothing is drafted before the head has caught up; states that are shown again change nothing."""
    head = EagleHead(folder / "eagle", target)
    text = text_of(MAX_CATCH_UP + 100)
    drafter = EagleDrafter(head, DraftMemory(head, 2000), request(text[:-1]), EagleSettings())
    assert drafter.propose(4) == PointMass(())
    show(drafter, target, text, 0, len(text) - 1)
    assert [len(drafter.propose(4)) for _ in range(2)] == [0, 4]
    features = features_of(target, text, drafter.points)
    before = drafter.propose(4)
    drafter.observe_features(0, features[:100])
    drafter.observe_features(100, features[100 : len(text) - 1])
    assert same(drafter.propose(4), before)
    drafter.observe(text[0])
    assert drafter.propose(4) == PointMass(()), "a state is missing"


def test_what_has_outgrown_the_head_keeps_no_states(folder: Path, target: LlamaModel) -> None:
    """A text longer than the head's context is not drafted, and the states of it that were shown are let go."""
    head = EagleHead(folder / "eagle", target)
    text = text_of(head.config.context_length + 4)
    drafter = EagleDrafter(head, DraftMemory(head, 2000), request(text[:-1]), EagleSettings())
    features = torch.zeros(len(text) - 1, target.config.hidden_size)
    states = weakref.ref(features)
    drafter.observe_features(0, features)
    drafter.observe(text[-1])
    assert drafter.propose(4) == PointMass(())
    del features
    assert states() is None


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_cached_beginning_has_no_states(folder: Path, target: LlamaModel, kind: str) -> None:
    """The head then drafts from what follows it."""
    head, text = EagleHead(folder / kind, target), text_of(50)
    drafter = EagleDrafter(head, DraftMemory(head, 2000), request(text[:40]), EagleSettings())
    show(drafter, target, text, 32, 40)
    proposal = drafter.propose(5)
    assert len(proposal) == 5 and set(proposal.token_ids) <= set(range(3, 60))


def test_the_first_draft_follows_from_the_weights(folder: Path, target: LlamaModel) -> None:
    """Medusa's head i reads the state before the last token and proposes the i-th token after it."""
    heads = MedusaHeads(folder / "medusa", target)
    text = text_of(30)
    drafter = MedusaDrafter(heads, request(text[:20]), is_chain=True)
    show(drafter, target, text, 0, 20)
    feature = features_of(target, text, drafter.points)[28]
    expected = []
    stored = load_file(folder / "medusa" / "medusa_lm_head.safetensors")
    output = load_file(folder / "target" / "model.safetensors")["lm_head.weight"].float()[3:60]
    for i in range(3):
        block = stored[f"{i}.0.linear.weight"].float() @ feature + stored[f"{i}.0.linear.bias"].float()
        expected.append(3 + int((output @ (feature + torch.nn.functional.silu(block))).argmax()))
    assert drafter.propose(8) == PointMass(tuple(expected))
    tree = MedusaDrafter(heads, request(text[:20]))
    show(tree, target, text, 0, 20)
    found = tree.propose(8)
    assert isinstance(found, TopKTree) and len(found) == 8 and set(expected[:1]) <= set(found.token_ids)


def joint_law_p(engine: Engine, chain: np.ndarray, drafter: str, temperature: float) -> tuple[float, float]:
    """p-value of a G-test of two successive tokens, and drafts accepted a step; no request has a seed."""
    num_samples, counts, accepted, steps = 400, Counter[tuple[int, ...]](), 0, 0
    for seed in range(num_samples):
        law = SamplingLaw(temperature)
        engine.add(GenerateRequest(str(seed), PROMPT, law, 4, Plan(drafter, 4), seed, is_seeded=False))
    tokens: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
            assert output.num_drafter_failures == 0
            if output.stats is not None:
                accepted += output.stats.num_accepted
                steps += output.stats.num_verify_steps
    counts.update(answer[1:3] for answer in tokens.values())
    law_at = chain_law(chain, temperature)
    cells = list(itertools.product(range(4), repeat=2))
    start = law_at[PROMPT[-1], :4]
    expected = [float(start @ law_at[:4, a]) * law_at[a, b] * num_samples for a, b in cells]
    observed = [counts[cell] for cell in cells]
    assert sum(observed) == num_samples
    test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    return float(test.pvalue), accepted / steps


ROOMY = EngineLimits(
    max_running=64, max_total_tokens=8192, context_length=128, max_prefill_rows=2048, max_step_rows=4096
)


@pytest.fixture(scope="module")
def toy_heads(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> DraftOptions:
    folder = tmp_path_factory.mktemp("toy-heads")
    write_random_heads(folder, toy_folder, range(4))
    return DraftOptions(eagle=(folder / "eagle", folder / "eagle3"), medusa=folder / "medusa")


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_drawn_chains_have_the_laws_that_they_carry(toy_folder: Path, toy_heads: DraftOptions, kind: str) -> None:
    """Over the noise of many requests two tokens have the joint law of their rows, and the first draft of the next
    position is independent of the last one's. Rejection relies on it, and the texts' own law shows little of it."""
    target, text, num_samples = LlamaModel(toy_folder), (*PROMPT, 1, 2), 800
    folder = toy_heads.eagle[0].parent / kind
    medusa = MedusaHeads(folder, target) if kind == "medusa" else None
    head = None if medusa else EagleHead(folder, target)
    points = (medusa or head).points
    features = features_of(target, text, points)
    pairs, again, laws = Counter[tuple[int, ...]](), np.zeros((4, 4), dtype=int), dict[int, torch.Tensor]()
    for seed in range(num_samples):
        one = replace(request(PROMPT, 8.0), seed=seed, is_seeded=False)
        if medusa is not None:
            drafter = MedusaDrafter(medusa, one)
        else:
            drafter = EagleDrafter(head, DraftMemory(head, 1000), one, EagleSettings())
        drafter.observe(text[-2])
        drafter.observe_features(0, features[: len(PROMPT)])
        chain = drafter.propose(2)
        assert isinstance(chain, SampledChain)
        pairs[chain.token_ids] += 1
        laws[-1], laws[chain.token_ids[0]] = chain.draft_probs
        drafter.observe(text[-1])
        drafter.observe_features(len(PROMPT), features[len(PROMPT) : len(text) - 1])
        again[chain.token_ids[0], drafter.propose(1).token_ids[0]] += 1
        drafter.free()
    cells = [(a, b) for a in laws if a >= 0 for b in range(4)]
    expected = np.array([float(laws[-1][a] * laws[a][b]) * num_samples for a, b in cells])
    observed = np.array([pairs[cell] for cell in cells])
    common = expected > 5
    observed = [*observed[common], num_samples - observed[common].sum() + 1]
    expected = [*expected[common], num_samples - expected[common].sum() + 1]
    assert stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue > 1e-4, (observed, expected)
    seen = again[again.sum(axis=1) > 20][:, again.sum(axis=0) > 20]
    assert seen.shape >= (2, 2) and stats.chi2_contingency(seen).pvalue > 1e-4, again


@pytest.mark.parametrize("temperature", [0.5, 1.2], ids=["tree", "drawn"])
@pytest.mark.parametrize("drafter", ["eagle2", "eagle3", "medusa"])
def test_the_joint_law_of_tokens(
    toy_folder: Path, toy_heads: DraftOptions, chain: np.ndarray, drafter: str, temperature: float
) -> None:
    """Trees below a temperature, drawn chains from it on: the target's law, with drafts accepted and rejected."""
    engine = Engine(toy_folder, ROOMY, toy_heads)
    p_value, accepted = joint_law_p(engine, chain, drafter, temperature)
    assert p_value > 1e-3 / 6
    assert 0.02 < accepted < 1.9


def test_typical_acceptance_has_another_law(toy_folder: Path, toy_heads: DraftOptions, chain: np.ndarray) -> None:
    """The lossy mode is what it says; greedy requests and other drafters stay exact under it."""
    lossy = DraftOptions(eagle=toy_heads.eagle, medusa=toy_heads.medusa, is_lossy=True)
    engine = Engine(toy_folder, ROOMY, lossy)
    assert joint_law_p(engine, chain, "medusa", 1.2)[0] < 1e-4
    assert joint_law_p(engine, chain, "eagle2", 1.2)[0] > 1e-4


def test_a_lossy_engine_claims_nothing_exactly(toy_folder: Path, toy_heads: DraftOptions) -> None:
    """So that a workload which says `exact: true` never uses it; without the mode all is honoured."""
    for is_lossy in (False, True):
        drafting = DraftOptions(medusa=toy_heads.medusa, is_lossy=is_lossy)
        options = ServerOptions(toy_folder, "toy", limits=ROOMY, drafting=drafting)
        own = server_info(Engine(toy_folder, ROOMY, drafting), options)
        abilities = read_abilities(own)
        assert "medusa" in abilities.drafters and own["outrider"]["is_lossy"] is is_lossy
        assert bool(abilities.surfaces) is not is_lossy


def test_a_hybrid_looks_up_first(toy_folder: Path, toy_heads: DraftOptions) -> None:
    """Where the text repeats itself look-up drafts, elsewhere the head; the text is that of plain decoding."""
    engine = Engine(toy_folder, ROOMY, toy_heads)
    head = EagleHead(toy_heads.eagle[0], engine.model)
    memory, kinds, answers = DraftMemory(head, 4000), set[str](), list[tuple[int, ...]]()
    for prompt in ((0, 1, 2, 3, 9, 8, 7), PROMPT):
        for plan in (PLAN_OFF, Plan("eagle2", 4)):
            one = GenerateRequest("a", prompt, SamplingLaw(0.9), 48, plan, seed=3)
            eagle = EagleDrafter(head, memory, one, EagleSettings())
            hybrid = HybridDrafter(eagle, prompt)
            drafter = None if plan.is_off else GuardedDrafter(lambda hybrid=hybrid: hybrid, 64)
            engine.add(one, drafter)
            tokens: tuple[int, ...] = ()
            while engine.has_work:
                for output in engine.step():
                    tokens += output.token_ids
                    assert output.num_drafter_failures == 0
                for sequence in engine.scheduler:
                    if sequence.num_output and sequence.drafter is not None:
                        kinds.add(type(sequence.propose()).__name__)
            answers.append(tokens)
    assert answers[0] == answers[1] and answers[2] == answers[3]
    assert kinds >= {"TopKTree", "SampledChain"} and memory.num_reserved == 0


def test_a_hybrid_does_not_blame_a_head_that_drafts_nothing(folder: Path, target: LlamaModel) -> None:
    """While a head has no states or still reads, what it is expected to get right stays; a wrong draft lowers it."""
    head = EagleHead(folder / "eagle", target)
    # No token comes twice at first, so that look-up finds nothing.
    prompt = tuple(range(20))
    eagle = EagleDrafter(head, DraftMemory(head, 2000), request(prompt), EagleSettings())
    hybrid = HybridDrafter(eagle, prompt)
    assert hybrid.gain == USUAL_GAIN
    for token in range(20, 30):
        assert not len(hybrid.propose(4)), "it was shown no state"
        hybrid.observe(token)
    assert hybrid.gain == USUAL_GAIN
    seen = (*range(30), 63)
    hybrid.observe_features(0, features_of(target, seen, hybrid.points)[: len(seen) - 1])
    hybrid.observe(63)
    assert len(hybrid.propose(4)) == 4
    hybrid.observe(62)
    hybrid.propose(4)
    assert hybrid.gain < USUAL_GAIN
    hybrid.free()
