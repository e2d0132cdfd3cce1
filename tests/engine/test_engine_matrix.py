"""Speculation changes no text: every drafter, k, company, law, grammar, reuse and preemption against plain decoding.

Two runs that batch differently round differently. Where their texts part, the first different token must have been
reported as a near tie.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from markov import EOS, VOCAB, add_end
from outrider.config import packaged_data
from outrider.engine.drafters import Drafter
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.layer_skip import LayerSet, write_layer_set
from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.kv_cache import BLOCK_SIZE
from outrider.engine.sequence import GenerateRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.proposal import TopKTree
from outrider.speculation.target import SamplingLaw
from outrider.workloads.suite import load_prompts
from random_heads import write_random_heads, write_toy_pair
from random_llama import write_random_llama

#: What the embedded engine has.
DRAFTERS = ("ngram", "suffix", "prediction", "draft_model", "layer_skip", "eagle2", "eagle3", "medusa", "hybrid")
KS = (1, 2, 4, 8)
NUM_TOKENS = 32
ROOMY = EngineLimits(max_running=16, max_total_tokens=8192, context_length=256)
TIGHT = EngineLimits(max_running=16, max_total_tokens=6 * BLOCK_SIZE, context_length=96, max_prefill_rows=9)
LAWS = {"greedy": SamplingLaw(0.0), "sampled": SamplingLaw(1.1, 20, 0.95, 0.01)}
#: Warm, so that heads draft trees that are not matched greedily, and with all that looks at earlier tokens.
PENALISED = SamplingLaw(0.5, 0, 0.98, 0.0, 1.2, 0.3, -0.2, ((1, 0.7), (3, -0.7)))
PATTERN = "([A-D]{2}[BD]){40}"
by_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
by_grammar = pytest.mark.parametrize("has_grammar", [False, True], ids=["free", "grammar"])


@dataclass
class Answer:
    """What became of one request."""

    token_ids: tuple[int, ...] = ()
    near_ties: tuple[int, ...] = ()
    num_cached: int = 0
    num_accepted: int = 0


def run(
    engine: Engine, requests: list[GenerateRequest], drafters: Mapping[str, Drafter] | None = None
) -> dict[str, Answer]:
    """`drafters`: by id, in place of those of the plans."""
    answers = {request.rid: Answer() for request in requests}
    for request in requests:
        engine.check(request, "prompt")
        own = (drafters or {}).get(request.rid)
        engine.add(request, None if own is None else GuardedDrafter(lambda own=own: own, VOCAB))
    while engine.has_work:
        for output in engine.step():
            answer = answers[output.rid]
            answer.token_ids += output.token_ids
            answer.near_ties += output.near_ties or ()
            answer.num_cached = output.num_cached
            answer.num_accepted += output.stats.num_accepted if output.stats else 0
            assert output.num_drafter_failures == 0
    return answers


def parting(found: Answer, plain: Answer) -> int | None:
    """Where two answers part, which must be at a near tie; None when they are the same."""
    if found.token_ids == plain.token_ids:
        return None
    pairs = enumerate(itertools.zip_longest(found.token_ids, plain.token_ids))
    place = next(i for i, (one, other) in pairs if one != other)
    assert place in found.near_ties or place in plain.near_ties, (place, found, plain)
    return place


def mostly_same(found: dict[str, Answer], plain: dict[str, Answer]) -> int:
    """Drafts accepted in all; ids are the plain answer's, a slash, and what tells them apart."""
    partings = [parting(answer, plain[rid.partition("/")[0]]) for rid, answer in found.items()]
    assert sum(place is not None for place in partings) <= 0.05 * len(found), partings
    return sum(answer.num_accepted for answer in found.values())


@dataclass
class World:
    """A small target with a draft model and a layer set, with room for everything and with too little."""

    folder: Path
    prompts: list[tuple[int, ...]]
    plain: dict[tuple[SamplingLaw, bool], dict[str, Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = DraftOptions(
            self.folder / "draft", self.folder / "set.json",
            (self.folder / "eagle", self.folder / "eagle3"), self.folder / "medusa",
        )  # fmt: skip
        self.roomy = Engine(self.folder / "target", ROOMY, options)
        self.tight = Engine(self.folder / "target", TIGHT, options)

    def request(self, index: int, suffix: str, plan: Plan, law: SamplingLaw, has_grammar: bool) -> GenerateRequest:
        """Prompt `index` with this plan; its prediction is its plain answer with every seventh token wrong."""
        prediction = None
        if plan.drafter == "prediction":
            tokens = self.alone(law, has_grammar)[str(index)].token_ids
            prediction = tuple(token if i % 7 else 1 for i, token in enumerate(tokens))
        grammar = self.roomy.grammars.compile("regex", PATTERN) if has_grammar else None
        return GenerateRequest(
            f"{index}{suffix}", self.prompts[index], law, NUM_TOKENS, plan, seed=9, prediction_ids=prediction,
            stop_token_ids=frozenset({EOS}), grammar=grammar,
        )  # fmt: skip

    def alone(self, law: SamplingLaw, has_grammar: bool) -> dict[str, Answer]:
        """Plain answers, each decoded alone."""
        if (law, has_grammar) not in self.plain:
            fresh = Engine(self.folder / "target", ROOMY)
            requests = [self.request(i, "", PLAN_OFF, law, has_grammar) for i in range(len(self.prompts))]
            self.plain[law, has_grammar] = {r.rid: run(fresh, [r])[r.rid] for r in requests}
        return self.plain[law, has_grammar]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> World:
    """A chain of four tokens, on which look-up finds much, and a draft model that follows a blurred copy."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy_pair(folder, chain)
    write_layer_set(folder / "set.json", LayerSet(num_layers=1, skip=()))
    return World(folder, [tuple((7 * i * i + 3 * i + s) % 4 for i in range(19 + s)) for s in range(12)])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A random model, on which everything that came before matters."""
    folder = tmp_path_factory.mktemp("llama")
    for name, num_layers in (("target", 3), ("draft", 1)):
        write_random_llama(folder / name, num_layers=num_layers)
        add_end(folder / name)
    write_layer_set(folder / "set.json", LayerSet(num_layers=3, skip=(1,)))
    write_random_heads(folder, folder / "target")
    return World(folder, [tuple((7 * i * i + 3 * i + s) % 60 for i in range(19 + s)) for s in range(12)])


@pytest.fixture(params=["toy", "llama"])
def world(request: pytest.FixtureRequest) -> World:
    return request.getfixturevalue(request.param)


@by_law
@by_grammar
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_alone_and_again_with_reuse(world: World, drafter: str, law: SamplingLaw, has_grammar: bool) -> None:
    """One at a time with each k, the second time from a cache that knows the text."""
    found = {}
    for k in KS:
        for again in ("first", "again"):
            request = world.request(0, f"/{k}/{again}", Plan(drafter, k), law, has_grammar)
            found |= run(world.roomy, [request])
    mostly_same(found, world.alone(law, has_grammar))
    assert all(answer.num_cached >= BLOCK_SIZE for rid, answer in found.items() if rid.endswith("again"))


@by_grammar
@pytest.mark.parametrize(
    ("law", "k"),
    [*((law, k) for law in LAWS.values() for k in KS), (PENALISED, 4)],
    ids=[*(f"{name}-{k}" for name in LAWS for k in KS), "penalised-4"],
)
@pytest.mark.parametrize("room", ["roomy", "tight"])
def test_all_at_once(world: World, room: str, k: int, law: SamplingLaw, has_grammar: bool) -> None:
    """Every drafter and none in one batch; without room, what was preempted is read again and goes on the same."""
    engine: Engine = getattr(world, room)
    before = engine.scheduler.num_preemptions
    plans = [*(Plan(name, k) for name in DRAFTERS), PLAN_OFF, Plan("suffix", k), Plan("ngram", 9 - k)]
    requests = [world.request(i, f"/{k}", plan, law, has_grammar) for i, plan in enumerate(plans)]
    found = run(engine, requests)
    assert len(requests) == len(world.prompts) == 12
    assert mostly_same(found, world.alone(law, has_grammar)) > 0
    num_preempted = engine.scheduler.num_preemptions - before
    # With long drafts answers may end before the blocks do.
    assert num_preempted > 0 if room == "tight" and k == 1 else num_preempted == 0 or room == "tight"
    engine.pool.check()


WAYS = ("eagle chain", "eagle static", "eagle int8", "eagle3 chain", "eagle3 static", "medusa chain")


def drafter_of(world: World, way: str, request: GenerateRequest) -> Drafter:
    """Heads as no plan lets them draft, but benches do."""
    name, _, shape = way.partition(" ")
    target = world.roomy.model
    if name == "medusa":
        return MedusaDrafter(MedusaHeads(world.folder / "medusa", target), request, is_chain=True)
    head = EagleHead(world.folder / name, target, is_int8=shape == "int8")
    settings = EagleSettings(shape if shape in ("chain", "static") else "dynamic")
    return EagleDrafter(head, DraftMemory(head, 512), request, settings)


@pytest.mark.parametrize("law", [*LAWS.values(), PENALISED], ids=[*LAWS, "penalised"])
@pytest.mark.parametrize(("room", "has_grammar"), [("roomy", False), ("tight", True)], ids=["roomy", "tight"])
def test_every_way_in_which_heads_draft(world: World, room: str, law: SamplingLaw, has_grammar: bool) -> None:
    """Chains, static trees and 8 bits, in one batch with several k, with room and without, and again
    from a cache that holds the prompts."""
    engine: Engine = getattr(world, room)
    found = {}
    for turn in (0, 1):
        requests = [
            world.request(i, f"/{way}/{turn}", Plan("eagle2", KS[(i + turn) % 4]), law, has_grammar)
            for i, way in enumerate(WAYS)
        ]
        drafters = {one.rid: drafter_of(world, way, one) for one, way in zip(requests, WAYS, strict=True)}
        found |= run(engine, requests, drafters)
    assert mostly_same(found, world.alone(law, has_grammar)) > 0
    engine.pool.check()


def test_trees_are_among_what_was_verified(toy: World) -> None:
    """Where two continuations are likely the suffix drafter proposes both, and some first choices are wrong."""
    request = toy.request(0, "", Plan("suffix", 8), LAWS["sampled"], False)
    toy.roomy.add(request)
    num_trees = num_second = 0
    while toy.roomy.has_work:
        (sequence,) = toy.roomy.scheduler
        proposal = sequence.propose() if sequence.num_output else None
        (output,) = toy.roomy.step()
        if isinstance(proposal, TopKTree) and output.token_ids:
            num_trees += 1
            first, *others = (t for t, p in zip(proposal.token_ids, proposal.parents, strict=True) if p == -1)
            num_second += output.token_ids[0] in others
            assert first not in others
    assert num_trees > 5 and num_second > 0


@pytest.fixture(scope="module")
def real(model_folder: Path) -> Engine:
    return Engine(model_folder, EngineLimits(max_running=16))


SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},'
    ' "required": ["name", "size"], "additionalProperties": false}'
)
REAL = [(0.0, False, 20), (0.7, False, 4), (1.5, False, 4), (0.7, True, 4), (1.5, True, 4)]


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("temperature", "has_grammar", "num_prompts"), REAL)
def test_the_real_model(real: Engine, temperature: float, has_grammar: bool, num_prompts: int) -> None:
    """Prompts of mixed kinds: alone without speculation, and together with several drafters and k in one batch."""
    prompts = load_prompts(packaged_data("workloads") / "tasks.yaml")
    prompts = prompts[:: len(prompts) // num_prompts]
    assert len(prompts) == num_prompts
    grammar = real.grammars.compile("json", SCHEMA) if has_grammar else None
    eos = frozenset(real.model.config.eos_token_ids)

    def request(rid: str, plan: Plan, prediction: tuple[int, ...] | None = None) -> GenerateRequest:
        text = next(prompt.text for prompt in prompts if prompt.name == rid.partition("/")[0])
        ids = tuple(real.tokenizer.encode_chat([{"role": "user", "content": text}]))
        law = SamplingLaw(temperature)
        return GenerateRequest(rid, ids, law, 24, plan, 7, (), eos, prediction, grammar=grammar)

    plain = {p.name: run(real, [request(p.name, PLAN_OFF)])[p.name] for p in prompts}
    together = []
    for i, prompt in enumerate(prompts):
        name, predicted = prompt.name, (1, *plain[prompt.name].token_ids[1:])
        for k in (1, 4, 8):
            drafter = ("ngram", "suffix")[(i + k) % 2]
            together.append(request(f"{name}/{drafter}/{k}", Plan(drafter, k)))
        if i < 4:
            together.append(request(f"{name}/prediction/8", Plan("prediction", 8), predicted))
            together.append(request(f"{name}/layer_skip/2", Plan("layer_skip", 2)))
    assert mostly_same(run(real, together), plain) > num_prompts, "equality says little without accepted drafts"
