"""EAGLE and Medusa drafting: what is proposed depends on the text alone."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.engine.attention import Segment
from outrider.engine.drafters import FeatureDrafter
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings, Shape
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
from outrider.engine.drafters.model_chain import MAX_CATCH_UP
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.info import ServerOptions, server_info
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.taps import Taps
from outrider.policy.plan import Plan
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
    assert found.chances is not None and found.chances[0] == heads.accuracy[0][0], "by which few rows are chosen"


ROOMY = EngineLimits(
    max_running=64, max_total_tokens=8192, context_length=128, max_prefill_rows=2048, max_step_rows=4096
)


def test_a_lossy_engine_claims_nothing_exactly(toy_folder: Path, toy_heads: DraftOptions) -> None:
    """So that a workload which says `exact: true` never uses it; without the mode all is honoured."""
    for is_lossy in (False, True):
        drafting = DraftOptions(medusa=toy_heads.medusa, is_lossy=is_lossy)
        options = ServerOptions(toy_folder, "toy", limits=ROOMY, drafting=drafting)
        own = server_info(Engine(toy_folder, ROOMY, drafting), options)
        abilities = read_abilities(own)
        assert "medusa" in abilities.drafters and own["outrider"]["is_lossy"] is is_lossy
        assert bool(abilities.surfaces) is not is_lossy
