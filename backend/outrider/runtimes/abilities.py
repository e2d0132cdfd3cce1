"""What a lane can do, read from its `/server_info`: drafters and their k, and what its verifier samples exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from outrider.algorithms import DRAFTER_OF
from outrider.core import DRAFTERS, DRAWN_DRAFTERS, MAX_K, SURFACES, DrafterAbility, LaneAbility
from outrider.cost import SMALL_CPU, TREE_DEPTHS, ClosedCost, CostTable
from outrider.runtimes.dialects import GENERATE, MESSAGES, RESPONSES

#: Devices on which SGLang's own verification takes the argmax, whatever the temperature.
_ARGMAX_DEVICES = ("cpu", "xpu")
#: What every lane honours where it serves it: the masks and biases of verification are those of plain decoding.
_GRAMMARS: frozenset[str] = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
_ALWAYS_EXACT: frozenset[str] = _GRAMMARS | {"logit_bias", "logprobs", "lora", "images"}
#: What an engine of ours does not serve unless it says so.
_NOT_OURS: frozenset[str] = frozenset({"logit_processor", "structural_tag", "lora", "images"})
#: By SGLang's grammar backend, what it does not serve; the others serve all.
_NO_GRAMMARS = {"none": _GRAMMARS, "outlines": frozenset({"ebnf", "structural_tag"})}
#: Requests in one batch of a lane that does not say.
_USUAL_RUNNING = 16
#: Rounds on an accelerator, where nothing was measured.
_ACCELERATOR = ClosedCost()
#: A drafter's name, its least and largest k, rows and draft steps of every round, accuracies, and the context that it
#: was made for: what it is kept by.
_Make = tuple[str, int, int, int, int, tuple[float, ...], int | None]

#: What every server has, and what SGLang has besides.
OPENAI_ROUTES = frozenset({"/v1/chat/completions", "/v1/completions", GENERATE})
SGLANG_ROUTES = OPENAI_ROUTES | {RESPONSES, MESSAGES}


@dataclass(frozen=True, slots=True)
class KRange:
    """The k that a drafter can be asked for."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Abilities:
    """A lane's own word about itself. The default is a lane that only decodes and honours nothing special."""

    drafters: Mapping[str, KRange] = field(default_factory=dict)
    can_be_off: bool = True
    surfaces: frozenset[str] = _ALWAYS_EXACT
    """Honoured exactly, speculated or not."""
    plugin: tuple[str, ...] | None = None
    """Our plugin's active parts; None when there is no plugin."""
    counts_proposed: bool = True
    """False where rounds do not all verify what the server was launched for, by which SGLang multiplies its count."""
    top_k: int | None = None
    num_draft_tokens: int | None = None
    attention_backend: str | None = None
    context_length: int | None = None
    max_running: int | None = None
    version: str | None = None
    device: str | None = None
    served: frozenset[str] = SURFACES
    """Taken at all."""
    is_embedded: bool = False
    cost: CostTable | None = None
    """Rounds as the lane itself measured them."""
    accuracy: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By head: how often its likeliest token is right at each depth, as its card says."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """By drafter, as far as it is known: tokens of context that it was made for."""
    routes: frozenset[str] = OPENAI_ROUTES
    model: str | None = None
    """What its weights were read from."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Parts of our plugin that could not be put in, and why."""

    def without_plans(self) -> Abilities:
        """On a route that carries no plan: what the lane does by itself, which is to draft all that it was set to."""
        ranges = {name: KRange(ks.max, ks.max) for name, ks in self.drafters.items()}
        return replace(self, drafters=ranges, can_be_off=not ranges)

    def to_wire(self) -> dict[str, Any]:
        """For people and for `/outrider/lanes`."""
        return {
            "drafters": {name: [ks.min, ks.max] for name, ks in self.drafters.items()},
            "can_be_off": self.can_be_off,
            "exact_surfaces": sorted(self.surfaces),
            "plugin": self.plugin,
            "top_k": self.top_k,
            "num_draft_tokens": self.num_draft_tokens,
            "attention_backend": self.attention_backend,
            "context_length": self.context_length,
            "drafter_contexts": dict(self.contexts),
            "max_running": self.max_running,
            "version": self.version,
            "model": self.model,
            "routes": sorted(self.routes),
        }


def read_abilities(info: Mapping[str, Any]) -> Abilities:
    """From the body of `/server_info`, of SGLang or of the embedded engine.

    ValueError when the server speculates in a way that no plan can name.
    """
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    own = info.get("outrider")
    if isinstance(own, Mapping):
        return _embedded(info, own)
    plugin = _plugin(state)
    drafters, can_be_off = _speculation(info, plugin or ())
    return Abilities(
        drafters=drafters,
        can_be_off=can_be_off,
        surfaces=_surfaces(info, plugin or (), is_speculating=bool(drafters)),
        plugin=plugin,
        counts_proposed="steps" not in (plugin or ()) and info.get("speculative_adaptive") is not True,
        top_k=_count(info, "speculative_eagle_topk"),
        num_draft_tokens=_count(info, "speculative_num_draft_tokens"),
        attention_backend=_text(info, "attention_backend"),
        context_length=_count(info, "context_length") or _count(info, "max_req_input_len"),
        max_running=_max_running(states) or _count(info, "max_running_requests"),
        version=_text(info, "version"),
        model=_text(info, "model_path"),
        device=_text(info, "device"),
        served=_served(info),
        routes=SGLANG_ROUTES,
        missing=_missing(state),
    )


def _max_running(states: object) -> int | None:
    """Of all data-parallel ranks, as their loads are summed too; None when one of them does not say."""
    ranks = states if isinstance(states, list) else []
    counts = [_count(one, "effective_max_running_requests_per_dp") for one in ranks if isinstance(one, Mapping)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(ranks) else None


def _served(info: Mapping[str, Any]) -> frozenset[str]:
    """SGLang refuses what was not switched on, and grammars that its backend does not know."""
    switches = {"logit_processor": "enable_custom_logit_processor", "lora": "enable_lora"}
    unknown = _NO_GRAMMARS.get(_text(info, "grammar_backend") or "", frozenset[str]())
    return SURFACES - unknown - {surface for surface, switch in switches.items() if info.get(switch) is False}


def _embedded(info: Mapping[str, Any], own: Mapping[str, Any]) -> Abilities:
    max_k = _count(own, "max_k")
    if max_k is None:
        raise ValueError("its /server_info has no outrider.max_k")
    names = [name for name in _names(own, "drafters") if name in DRAFTERS]
    exact = SURFACES.intersection(_names(own, "exact_surfaces"))
    return Abilities(
        drafters={name: KRange(1, min(max_k, MAX_K)) for name in names},
        surfaces=exact,
        context_length=_count(info, "context_length"),
        max_running=_count(info, "max_running_requests"),
        version=_text(info, "version"),
        model=_text(info, "model_path"),
        served=SURFACES - (_NOT_OURS - exact),
        is_embedded=True,
        cost=None if own.get("cost") is None else CostTable.model_validate(own["cost"]),
        accuracy=dict(_accuracy(own.get("drafter_info"))),
        contexts=dict(_contexts(own.get("drafter_info"))),
    )


def _accuracy(info: object) -> Iterator[tuple[str, tuple[float, ...]]]:
    """ValueError when a card's are no rates."""
    for name, one in info.items() if isinstance(info, Mapping) else ():
        rates = one.get("accuracy", ()) if isinstance(one, Mapping) else ()
        is_list = isinstance(rates, list | tuple)
        if not is_list or not all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in rates):
            raise ValueError(f"its drafter_info.{name}.accuracy is no list of rates between 0 and 1")
        yield str(name), tuple(map(float, rates))


def _contexts(info: object) -> Iterator[tuple[str, int]]:
    for name, one in info.items() if isinstance(info, Mapping) else ():
        context = _count(one, "context_length") if isinstance(one, Mapping) else None
        if context is not None:
            yield str(name), context


def _plugin(state: Mapping[str, Any]) -> tuple[str, ...] | None:
    """SGLang swallows a plugin's errors: only what the plugin itself reports as active counts."""
    report = state.get("outrider")
    active = report.get("active") if isinstance(report, Mapping) else None
    return tuple(name for name in active if isinstance(name, str)) if isinstance(active, list) else None


def _missing(state: Mapping[str, Any]) -> Mapping[str, str]:
    report = state.get("outrider")
    missing = report.get("missing") if isinstance(report, Mapping) else None
    return {str(name): str(why) for name, why in missing.items()} if isinstance(missing, Mapping) else {}


def _speculation(info: Mapping[str, Any], plugin: tuple[str, ...]) -> tuple[Mapping[str, KRange], bool]:
    """Drafters with their k, and whether the lane can leave speculation out."""
    algorithm = info.get("speculative_algorithm")
    if algorithm is None:
        return {}, True
    drafter = DRAFTER_OF.get(str(algorithm))
    if drafter is None:
        raise ValueError(f"it speculates by {algorithm}, which no plan can name")
    num_tokens, num_steps = _count(info, "speculative_num_draft_tokens"), _count(info, "speculative_num_steps")
    k = None if num_tokens is None else num_tokens - 1
    if drafter != "ngram":
        k = num_steps
    if k is None or not 1 <= k <= MAX_K:
        raise ValueError(f"it speculates with k={k}, and plans go from 1 to {MAX_K}")
    has_caps = "k" in plugin
    return {drafter: KRange(1 if has_caps else k, k)}, has_caps


def _surfaces(info: Mapping[str, Any], plugin: tuple[str, ...], *, is_speculating: bool) -> frozenset[str]:
    found: set[str] = set(_ALWAYS_EXACT)
    has_seeds = "seeds" in plugin or info.get("enable_deterministic_inference") is True
    # SGLang's own verification draws by steps and drafts: only ours, on a CPU, gives a position its noise.
    if (has_seeds and not is_speculating) or {"seeds", "sampling"} <= set(plugin):
        found.add("seed")
    if not is_speculating:
        found |= {"temperature", "top_k_top_p", "min_p", "penalties"}
        if info.get("enable_custom_logit_processor") is True:
            found.add("logit_processor")
        return frozenset(found)
    thresholds = [info.get(f"speculative_accept_threshold_{name}", 1.0) for name in ("single", "acc")]
    is_lossless = all(isinstance(value, int | float) and value >= 1 for value in thresholds)
    if is_lossless and ("sampling" in plugin or info.get("device") not in _ARGMAX_DEVICES):
        found.add("temperature")
        # Plain sampling of other backends cuts one filter after the other, the plugin's verification jointly.
        if "min_p" in plugin and ("sampling" in plugin or info.get("sampling_backend") == "pytorch"):
            found |= {"min_p", "top_k_top_p"}
    return frozenset(found)


def _count(info: Mapping[str, Any], key: str) -> int | None:
    value = info.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _names(info: Mapping[str, Any], key: str) -> list[str]:
    value = info.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _text(info: Mapping[str, Any], key: str) -> str | None:
    value = info.get(key)
    return value if isinstance(value, str) else None


def lane_ability(name: str, able: Abilities) -> LaneAbility:
    """What decisions need of it. Lanes of one make share the objects by which decisions remember them."""
    makes = tuple(
        (name, ks.min, ks.max, *_least(name, ks.max, able), able.accuracy.get(name, ()), able.contexts.get(name))
        for name, ks in able.drafters.items()
    )
    is_slow = able.is_embedded or able.device in _ARGMAX_DEVICES
    return LaneAbility(
        name,
        _drafters(makes, is_embedded=able.is_embedded),
        has_plain=able.can_be_off,
        surfaces=able.served,
        exact=able.surfaces,
        max_running=able.max_running or _USUAL_RUNNING,
        cost=able.cost or (SMALL_CPU if is_slow else _ACCELERATOR),
    )


def _least(drafter: str, max_k: int, able: Abilities) -> tuple[int, int]:
    """Rows and draft steps of every round, whatever k is. SGLang verifies all that it was launched for and drafts all
    steps, unless it switches them; then a head or a draft model still passes over what was accepted."""
    if able.is_embedded:
        return 1, 0
    if able.counts_proposed:
        return able.num_draft_tokens or max_k + 1, 1 if drafter == "ngram" else max_k
    return 1, 1


@lru_cache(maxsize=256)
def _drafters(makes: tuple[_Make, ...], *, is_embedded: bool) -> tuple[DrafterAbility, ...]:
    """An engine of ours draws the drafts of models; SGLang takes the likeliest, and keeps n-grams of all texts in one
    store."""
    return tuple(
        DrafterAbility(
            drafter,
            tuple(range(least, most + 1)),
            is_sampled=is_embedded and drafter in DRAWN_DRAFTERS,
            depth=TREE_DEPTHS.get(drafter, MAX_K) if is_embedded else MAX_K,
            is_shared=not is_embedded and drafter == "ngram",
            min_num_rows=rows,
            min_num_steps=steps,
            accuracy=accuracy,
            max_context=context,
        )
        for drafter, least, most, rows, steps, accuracy, context in makes
    )
