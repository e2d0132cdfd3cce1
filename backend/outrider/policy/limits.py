"""The shape of a policy file, what a workload allows, wants and may try: models, JSON Schema, contradictions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from outrider.core import MAX_K, Drafter, LaneAbility, Task
from outrider.policy.plan import LEARNERS

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
K = Annotated[int, Field(ge=1, le=MAX_K)]
Share = Annotated[float, Field(ge=0, le=1)]
# Strictness would refuse the lists that YAML gives for our tuples; the items stay strict.
Tasks = Annotated[tuple[Task, ...], Field(strict=False, min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]


class _Model(BaseModel):
    """Unknown keys and loose types are refused: a limit that does not say what it seems to is worse than none."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Match(_Model):
    """Which requests the workload is for; all that is given must hold."""

    tasks: Tasks | None = None
    """a list of tasks"""
    models: Texts | None = None
    """a list of model names as requests give them"""
    tenants: Texts | None = None
    """a list of tenants"""
    headers: dict[Text, Text] | None = None
    """a mapping of request headers to their values"""

    @model_validator(mode="after")
    def _not_empty(self) -> Match:
        if not self.model_fields_set:
            raise ValueError("expected at least one condition; leave `match` out for a workload that is named only")
        return self


class DrafterLimits(_Model):
    """How a drafter may be used."""

    min_k: K = 1
    """the least number of draft tokens per step, of trees that of their nodes"""
    max_k: K = 5
    """the largest number of draft tokens per step, of trees that of their nodes"""
    prior: Share | None = None
    """the expected acceptance of the first draft at temperature 0, before anything is learnt"""
    learn: bool = True
    """for `suffix` and `hybrid` only: whether it drafts from earlier answers of the same tenant and `cache_salt`, and
    keeps this one; without a salt it never does"""

    @model_validator(mode="after")
    def _ordered(self) -> DrafterLimits:
        if self.min_k > self.max_k:
            raise ValueError(f"expected min_k <= max_k, found min_k {self.min_k} and max_k {self.max_k}")
        return self


class Band(_Model):
    """What holds up to a value."""

    max: Annotated[float, Field(ge=0)] | None = None
    """the value up to which the band reaches, included; only the last band may leave it out"""
    max_k: Annotated[int, Field(ge=0, le=MAX_K)] = MAX_K
    """the largest number of draft tokens per step, 0 for none"""


Bands = Annotated[tuple[Band, ...], Field(strict=False)]


class Objective(_Model):
    """What is aimed at; without a limit the most tokens per second."""

    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    """milliseconds per output token that are enough; the fewest drafts that reach them are taken"""
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    """seconds in which an answer of the request's `max_tokens` must be written"""

    @model_validator(mode="after")
    def _one(self) -> Objective:
        if (self.tpot_ms is None) == (self.deadline_s is None):
            raise ValueError("expected one of tpot_ms and deadline_s")
        return self


class BudgetShares(_Model):
    """Shares of the k that priorities get while other requests are on the lane."""

    high: Share = 1.0
    """the share of requests with a priority above 0"""
    normal: Share = 1.0
    """the share of requests without a priority"""
    low: Share = 1.0
    """the share of requests with a priority below 0"""


class Exploration(_Model):
    """How many requests may serve to learn."""

    share: Annotated[float, Field(ge=0, le=0.2)] = 0.02
    """the largest share of requests that try another drafter than the best known"""
    control: Annotated[float, Field(ge=0, le=0.2)] = 0.01
    """the share of time in which requests run plain although speculation is expected to gain, to keep comparing"""


class Trial(_Model):
    """A second workload that is decided beside this one."""

    workload: Name
    """the name of the workload to try"""
    mode: Literal["canary", "shadow"]
    """canary runs the other's decision for a share of requests, shadow only reports it"""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """the share of requests"""


class WorkloadPolicy(_Model):
    """One policy file."""

    version: Literal[1]
    """1"""
    workload: Name
    """a name of lower-case letters, digits and hyphens, used by one file only"""
    description: str | None = None
    """what the workload is"""
    match: Match | None = None
    """which requests come here; without it only those that no file matches, when this is the default"""
    task: Task | None = None
    """what its requests are for where they do not say so themselves; without it that is guessed from their text"""
    exact: bool = False
    """whether a request is refused when no lane honours all of its sampling exactly"""
    drafters: dict[Drafter, DrafterLimits]
    """a mapping of allowed drafters to their limits; an empty one never speculates"""
    temperature: Bands = ()
    """a list of bands of the temperature, ascending; above the last there is no speculation"""
    load: Bands = ()
    """a list of bands of the number of other requests on the lane, ascending; above the last there is no speculation,
    and a lane of unknown load counts as full"""
    objective: Objective | None = None
    """what is aimed at; without it the most tokens per second"""
    shares: BudgetShares = BudgetShares()
    """shares of the k by priority"""
    exploration: Exploration = Exploration()
    """how many requests may serve to learn"""
    fallback: Literal["nearest", "refuse"] = "nearest"
    """what happens to a request that fixes a plan which no lane can run"""
    hedge_after_ms: Annotated[float, Field(gt=0)] | None = None
    """milliseconds without a byte of the answer after which a second lane with room is asked too; without it never,
    nor for answers that are drawn and come whole, since the faster of two would be the shorter"""
    trial: Trial | None = None
    """a second workload that is decided beside this one"""
    load_max_age_s: Annotated[float, Field(gt=0)] = 10.0
    """seconds after which a reading of the lane's load counts as unknown"""

    def limits_of(self, drafter: str) -> DrafterLimits | None:
        """None when the drafter is not allowed."""
        return self.drafters.get(cast(Drafter, drafter))


Location = tuple[str | int, ...]


def contradictions(policy: WorkloadPolicy) -> Iterator[tuple[Location, str]]:
    """Where a valid file cannot mean what it says, as a location and a message."""
    for drafter, limits in policy.drafters.items():
        if drafter not in LEARNERS and not limits.learn:
            names = " and ".join(LEARNERS)
            yield ("drafters", drafter, "learn"), f"expected none: only {names} learn from earlier answers"
    tasks = policy.match and policy.match.tasks
    if policy.task is not None and tasks and policy.task not in tasks:
        yield ("task",), f"expected one of match.tasks, {', '.join(tasks)}, found {policy.task!r}"
    yield from _bands("temperature", policy.temperature)
    yield from _bands("load", policy.load)
    if policy.trial is not None and policy.trial.workload == policy.workload:
        yield ("trial", "workload"), "expected another workload than this one"


def _bands(name: str, bands: Sequence[Band]) -> Iterator[tuple[Location, str]]:
    before: float | None = None
    for index, band in enumerate(bands):
        if band.max is None and index < len(bands) - 1:
            yield (name, index), "expected max, since only the last band may leave it out"
        if band.max is not None and before is not None and band.max <= before:
            yield (
                (name, index, "max"),
                f"expected more than {before:g}, where the band before ends, found {band.max:g}",
            )
        before = band.max if band.max is not None else before


def unmet(policy: WorkloadPolicy, names: Collection[str]) -> Iterator[tuple[Location, str]]:
    """What the workloads of these names cannot give: a trial of none of them."""
    if policy.trial is not None and policy.trial.workload not in names:
        known = ", ".join(sorted(names))
        yield ("trial", "workload"), f"expected a known workload, one of {known}, found {policy.trial.workload!r}"


def beyond(policy: WorkloadPolicy, lanes: Collection[LaneAbility]) -> Iterator[tuple[Location, str]]:
    """What no lane can give, drafters and k; nothing without lanes."""
    known = ", ".join(sorted({ability.drafter for lane in lanes for ability in lane.drafters})) or "none"
    for drafter, limits in policy.drafters.items() if lanes else ():
        ks = [k for lane in lanes for ability in lane.drafters if ability.drafter == drafter for k in ability.ks]
        if not ks:
            yield ("drafters", drafter), f"expected a drafter that some lane has, one of {known}"
        elif limits.max_k > max(ks):
            yield ("drafters", drafter, *_given("max_k", limits)), f"{_at_most(max(ks))}, found max_k {limits.max_k}"
        elif limits.min_k > max(ks):
            yield ("drafters", drafter, "min_k"), _at_most(max(ks))
    most = max((k for lane in lanes for ability in lane.drafters for k in ability.ks), default=0)
    for name, bands in (("temperature", policy.temperature), ("load", policy.load)):
        for index, band in enumerate(bands):
            # Without it a band bounds nothing.
            if most and "max_k" in band.model_fields_set and band.max_k > most:
                yield (name, index, "max_k"), f"{_at_most(most)}, found {band.max_k}"


def _at_most(k: int) -> str:
    return f"expected at most {k}, the largest k of any lane"


def _given(name: str, model: BaseModel) -> tuple[str, ...]:
    """The key's place, or none where its default holds."""
    return (name,) if name in model.model_fields_set else ()


class _PolicySchema(GenerateJsonSchema):
    """A key is absent or has a value: null is refused by the loader, so the schema must not offer it."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **WorkloadPolicy.model_json_schema(schema_generator=_PolicySchema),
    }
