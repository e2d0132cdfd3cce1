"""The shape of a policy file: models, their JSON Schema, and what the models alone cannot refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from outrider.core import MAX_K, Drafter, Task

#: Rule names that decisions use when no rule of a file decided.
RULE_REQUEST = "request"
RULE_NONE = "no-rule"
RULE_PREDICTION = "prediction"
_RESERVED = (RULE_REQUEST, RULE_NONE, RULE_PREDICTION)

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\r\n]+$", strip_whitespace=True, min_length=1, max_length=200)]
K = Annotated[int, Field(ge=1, le=MAX_K)]
# Strictness would refuse the lists that YAML gives for our tuples; the items stay strict.
Tasks = Annotated[tuple[Task, ...], Field(strict=False, min_length=1)]


class _Model(BaseModel):
    """Unknown keys and loose types are refused: a rule that does not say what it seems to is worse than none."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Number = TypeVar("Number", bound=float)


class Range(_Model, Generic[Number]):
    """Inclusive bounds."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Range[Number]:
        if self.min is None and self.max is None:
            raise ValueError("expected min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"expected min <= max, found min {self.min:g} and max {self.max:g}")
        return self


class Temperatures(Range[Annotated[float, Field(ge=0)]]):
    """Inclusive bounds of a temperature."""


class Shares(Range[Annotated[float, Field(ge=0, le=1)]]):
    """Inclusive bounds between 0 and 1."""


class Counts(Range[Annotated[int, Field(ge=0)]]):
    """Inclusive bounds of a count."""


class When(_Model):
    """Conditions; all that are given must hold."""

    tasks: Tasks | None = None
    """a list of tasks, one of which the request has"""
    temperature: Temperatures | None = None
    """bounds of the sampling temperature"""
    prompt_tokens: Counts | None = None
    """bounds of the prompt's estimated length in tokens"""
    self_repetition: Shares | None = None
    """bounds of the share of the prompt's word 4-grams that occur more than once"""
    requests: Counts | None = None
    """bounds of the requests running and waiting on the lane, without this one; never holds while they are unknown"""

    @model_validator(mode="after")
    def _not_empty(self) -> When:
        if not self.model_fields_set:
            raise ValueError("expected at least one condition; leave `when` out for a rule that always holds")
        return self


class _Rule(_Model):
    name: Name
    """a name of lower-case letters, digits and hyphens"""
    when: When | None = None
    """conditions; without them the rule always holds"""
    reason: Line
    """one line that answers show"""


class PlanRule(_Rule):
    """Speculate with this drafter and k."""

    drafter: Drafter
    """a drafter"""
    k: K
    """the number of draft tokens per step"""


class OffRule(_Rule):
    """Do not speculate."""

    off: Literal[True]
    """true"""


class Match(_Model):
    """Which requests the workload is for."""

    tasks: Tasks
    """a list of tasks"""


#: Union tags as they appear in validation errors' locations; no key of a file can look like them.
RULE_TAGS: dict[str, type[_Rule]] = {"<off>": OffRule, "<plan>": PlanRule}


def _rule_tag(value: object) -> str:
    return "<off>" if isinstance(value, OffRule) or (isinstance(value, dict) and "off" in value) else "<plan>"


Rule = Annotated[Annotated[OffRule, Tag("<off>")] | Annotated[PlanRule, Tag("<plan>")], Discriminator(_rule_tag)]


class WorkloadPolicy(_Model):
    """One policy file."""

    version: Literal[1]
    """1"""
    workload: Name
    """a name of lower-case letters, digits and hyphens, used by one file only"""
    description: str | None = None
    """what the workload is"""
    match: Match | None = None
    """which requests come here; without it only the requests that no other file matches, when this is the default"""
    default_k: K = 5
    """the number of draft tokens per step for a request that fixes the drafter where the rule says off"""
    exact: bool = False
    """whether a request is refused when no lane honours all of its sampling exactly"""
    load_max_age_s: Annotated[float, Field(gt=0)] = 10.0
    """seconds after which a reading of the lane's load counts as unknown"""
    rules: Annotated[tuple[Rule, ...], Field(strict=False, min_length=1)]
    """a list of rules; the first whose conditions all hold decides"""


Location = tuple[str | int, ...]


def contradictions(policy: WorkloadPolicy) -> Iterator[tuple[Location, str]]:
    """Where a valid file cannot mean what it says, as a location and a message."""
    seen = set(_RESERVED)
    always: str | None = None
    for index, rule in enumerate(policy.rules):
        if rule.name in _RESERVED:
            yield ("rules", index, "name"), f"expected another name, {rule.name!r} is reserved"
        elif rule.name in seen:
            yield ("rules", index, "name"), f"expected a name of its own, {rule.name!r} is used by an earlier rule"
        if isinstance(rule, PlanRule) and rule.drafter == "prediction":
            message = "expected another drafter, 'prediction' is taken by itself for requests that carry a prediction"
            yield ("rules", index, "drafter"), message
        if always is not None:
            yield ("rules", index), f"can never be reached, since rule {always!r} has no conditions"
        seen.add(rule.name)
        always = always or (rule.name if rule.when is None else None)


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
