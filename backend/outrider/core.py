"""What crosses layers: the vocabulary, a request's hints, a lane's load, and the report that goes into answers.

Wire objects are pydantic (the gateway writes them, the SDK reads them); everything inside is a dataclass.
One that is made for every request is not frozen, which would take several times as long; nothing changes it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import count
from operator import mul
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outrider.cost import SMALL_CPU, TREE_DEPTHS, ClosedCost, CostTable

#: What the text is for; a caller says it in `outrider.task`, or the classifier guesses.
Task = Literal["code", "edit", "quote", "extract", "summarise", "rag", "translate", "maths", "chat", "creative"]
TASKS: tuple[str, ...] = get_args(Task)

#: Drafters that lanes of some kind have, and the name that stands for none.
Drafter = Literal[
    "ngram", "suffix", "prediction", "draft_model", "layer_skip", "eagle2", "eagle3", "medusa", "hybrid"
]
DRAFTERS: tuple[str, ...] = get_args(Drafter)
OFF: Literal["off"] = "off"
#: Drafters whose drafts an engine of ours draws, those of heads from a temperature on.
DRAWN_DRAFTERS = frozenset({"draft_model", "layer_skip", "eagle2", "eagle3", "medusa", "hybrid"})
#: Largest number of draft tokens that a request may ask for per step.
MAX_K = 16


class Hints(BaseModel):
    """The request's `"outrider": {...}` object. Unknown keys are refused: a typo must not be ignored.

    Example::

        hints = Hints(task="code", drafter="ngram", k=4)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: Task | None = None
    """What the text is for; None lets the classifier decide."""
    drafter: Literal[Drafter, "off"] | None = None
    """Fix the drafter; None lets the policy decide, `off` means no speculation."""
    k: Annotated[int, Field(ge=0, le=MAX_K)] | None = None
    """Fix the number of draft tokens per step; 0 means no speculation."""
    off: bool = False
    """No speculation for this request, whatever the policy says."""
    exact: bool = False
    """Refuse the request when no lane honours all of its sampling exactly, whatever the policy says."""
    verbose: bool = False
    """Report the policy's inputs too."""
    background: bool = False
    """Answer at once with an id, and keep what comes for whoever asks for it later."""

    @model_validator(mode="after")
    def _agree(self) -> Hints:
        wants_none = self.off or self.drafter == OFF or self.k == 0
        if wants_none and (self.drafter in DRAFTERS or (self.k or 0) > 0):
            raise ValueError("off, drafter and k contradict each other")
        return self

    @property
    def is_off(self) -> bool:
        """Whether the request refuses speculation, in any of the ways to say so."""
        return self.off or self.drafter == OFF or self.k == 0


class WirePlan(BaseModel):
    """A plan as it stands in answers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    drafter: str
    k: int
    learn: bool = Field(default=True, repr=False)
    """False where the workload keeps look-ups to the request's own text."""


class Observed(BaseModel):
    """What happened, from the lane's own counts. Null when the request was not speculated: missing is not zero."""

    model_config = ConfigDict(extra="allow", frozen=True)

    num_verify_steps: int
    """Target forwards of the decode phase while speculation was on."""
    num_proposed: int | None
    """Draft tokens sent to verification; null when the lane cannot count them."""
    num_accepted: int
    accept_length: float
    """Tokens per verify step: accepted drafts plus the target's own token."""
    accepted_histogram: list[int]
    """Entry i counts verify steps in which exactly i draft tokens were accepted."""


class Report(BaseModel):
    """The answer's `outrider` object: what was asked, what ran, what happened, and why.

    Example::

        print(report.effective.drafter, report.observed and report.observed.accept_length, report.reasons)
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    requested: dict[str, Any]
    """The hints as given; empty when there were none."""
    effective: WirePlan
    """The plan that the lane ran."""
    observed: Observed | None
    lane: str
    workload: str
    """Name of the policy file that decided."""
    rule: str
    task: str
    reasons: list[str]
    hedged: list[str] | None = Field(default=None, exclude_if=lambda lanes: lanes is None)
    """Both lanes, where a second one was asked beside a silent one; left out otherwise."""
    inputs: dict[str, Any] | None = None
    """The policy's inputs, with `verbose`."""


@dataclass(slots=True)
class SpecStats:
    """Speculation counts of one finished request that was speculated.

    Identities (checked): the histogram sums to `num_verify_steps`, and its weighted sum is `num_accepted`.
    """

    num_verify_steps: int
    num_accepted: int
    histogram: tuple[int, ...]
    num_proposed: int | None = None
    by_draft: tuple[int, ...] | None = None
    """Entry i counts verify steps in which the i-th likeliest draft of a tree, or of a chain, was accepted."""

    def __post_init__(self) -> None:
        if sum(self.histogram) != self.num_verify_steps:
            raise ValueError(f"histogram {self.histogram} does not sum to {self.num_verify_steps} verify steps")
        if sum(map(mul, self.histogram, count())) != self.num_accepted:
            raise ValueError(f"histogram {self.histogram} does not weigh {self.num_accepted} accepted drafts")
        if self.by_draft is not None and sum(self.by_draft) != self.num_accepted:
            raise ValueError(f"{self.by_draft} does not sum to {self.num_accepted} accepted drafts")
        if self.num_verify_steps < 1:
            raise ValueError("a request that was never verified has no statistics")

    @property
    def accept_length(self) -> float:
        """Tokens emitted per verify step: those accepted and one more."""
        return 1 + self.num_accepted / self.num_verify_steps


@dataclass(slots=True)
class LaneLoad:
    """What a lane said about its load, and when. A lane that said nothing has no LaneLoad: unknown is not idle."""

    num_running: int
    num_waiting: int
    max_running: int
    read_at_s: float  # of `time.monotonic()`
    token_usage: float | None = None  # share of the key/value cache that is in use, 0..1
    tokens_per_s: float | None = None

    @property
    def num_requests(self) -> int:
        """Those that run and those that wait."""
        return self.num_running + self.num_waiting

    def to_wire(self) -> dict[str, float | None]:
        """With the reading's age in place of its time."""
        fields = asdict(self)
        return fields | {"age_s": round(time.monotonic() - fields.pop("read_at_s"), 3)}


#: What a request can ask of sampling and content that not every lane serves, or not exactly. `top_k_top_p` is both at
#: once, which SGLang's verification applies one after the other. What asks for a tool's call counts as a JSON schema.
Surface = Literal[
    "temperature", "min_p", "penalties", "logit_bias", "top_k_top_p", "logit_processor", "json_schema", "regex",
    "ebnf", "structural_tag", "logprobs", "seed", "lora", "images",
]  # fmt: skip
SURFACES: frozenset[str] = frozenset(get_args(Surface))


@dataclass(frozen=True, slots=True)
class DrafterAbility:
    """A drafter as one lane can run it."""

    drafter: str
    ks: Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_K)], ...], Field(min_length=1)]
    """The k that the lane can run, ascending and without 0; a server that is launched with one k has one."""
    is_sampled: bool = False
    """True for drafts that are drawn and verified against their draft law; False for deterministic ones."""
    max_context: int | None = None
    """Tokens of context that the drafter was made for; None: any."""
    depth: int = MAX_K
    """Draft steps of a round at most, where it drafts trees: of more nodes a tree gets broader and not deeper."""
    is_shared: bool = False
    """True when it learns from the texts of all tenants alike, so that a tenant's request must not use it."""
    min_num_rows: int = 1
    min_num_steps: int = 0
    """In every round whatever k is, as the server's launch has set it: rows of each request, and draft steps."""
    accuracy: tuple[float, ...] = ()
    """How often its likeliest token is right at each depth if those before were, as its card says; empty without."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneAbility:
    """What a lane can do. Lanes of one make share `drafters` and `cost`: decisions remember by these objects."""

    name: str
    drafters: tuple[DrafterAbility, ...]
    has_plain: bool = True
    """False when the lane can only speculate."""
    surfaces: frozenset[str] = SURFACES
    """What it serves at all."""
    exact: frozenset[str] = SURFACES
    """What it honours exactly, speculated or not."""
    max_running: Annotated[int, Field(ge=1)] = 16
    """Requests in one batch; the others wait."""
    cost: CostTable | ClosedCost = field(default_factory=ClosedCost)

    @classmethod
    def embedded(
        cls,
        name: str,
        drafters: tuple[str, ...] = ("ngram", "suffix", "prediction"),
        cost: CostTable | ClosedCost | None = None,
        max_running: int = 16,
    ) -> LaneAbility:
        """An engine of ours with the drafters that it always has or those given; it honours any plan exactly."""
        ks = tuple(range(1, MAX_K + 1))
        found = [DrafterAbility(d, ks, d in DRAWN_DRAFTERS, depth=TREE_DEPTHS.get(d, MAX_K)) for d in drafters]
        return cls(name, tuple(found), max_running=max_running, cost=cost or SMALL_CPU)


@dataclass(slots=True)
class LaneView:
    """A lane as a decision sees it: what it can do, and how busy it is."""

    ability: LaneAbility
    load: LaneLoad | None
    """Without the request that is decided; None means unknown, which is not idle."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU of this machine, as it was when it was read."""

    index: int
    utilisation: float | None
    """Share of the last sampling period in which a kernel ran, 0..1; None where it is not measured."""
    used_bytes: int
    total_bytes: int


class LaneState(Enum):
    """Life of a lane as the gateway sees it."""

    STARTING = "starting"  # launched or first contacted, not ready yet
    READY = "ready"  # takes requests
    PAUSED = "paused"  # answers that it takes none for now; what it runs goes on
    FAILED = "failed"  # died or stopped answering; a restart is scheduled
    STOPPED = "stopped"  # stopped by us, for good


#: Order among waiting requests, the most urgent first.
Priority = Literal["interactive", "default", "bulk"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)


@dataclass(slots=True)
class Outcome:
    """How one request ended; `dispatch` reports exactly one per request."""

    status: int
    """HTTP status; 499 when the client left."""
    error_code: str | None = None
    stats: SpecStats | None = None
    num_prompt_tokens: int = 0  # an estimate; 0 when the request ended before anything was decided
    num_completion_tokens: int | None = None
    text: str | None = None
    """Of an answer that came whole, for what can be learnt of it at its end; never kept."""
    queued_s: float = 0.0
    """Seconds from the end of reading to a place; `phases["admit"]` counts the reading, too."""
    first_event_s: float | None = None
    """Seconds from arrival to the first event relayed."""
    total_s: float = 0.0
    is_sent: bool = False
    """Something of it was sent to a lane."""
    num_events: int = 0  # of a stream, relayed
    num_slow_gaps: int = 0  # pauses between two events of a stream that a reader notices
    workload: str = "none"
    """The workload that decided; `none` when the request ended before."""
    tenant: str = "none"
    phases: dict[str, float] = field(default_factory=dict)
