"""The plan: how one request is speculated. The only part of the policy that runtimes and the engine know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.core import DRAFTERS, MAX_K, OFF

#: Drafters that look up in earlier answers.
LEARNERS = ("suffix", "hybrid")


@dataclass(frozen=True, slots=True)
class Plan:
    """A drafter and its `k`, the number of draft tokens proposed per step; `k == 0` exactly when off."""

    drafter: str
    k: int
    learn: bool = True
    """Whether it drafts from earlier answers of the same salt and keeps this one for later ones: of `LEARNERS`."""

    def __post_init__(self) -> None:
        if self.drafter != OFF and self.drafter not in DRAFTERS:
            raise ValueError(f"drafter must be one of {', '.join((OFF, *DRAFTERS))}, not {self.drafter!r}")
        if not 0 <= self.k <= MAX_K:
            raise ValueError(f"k must be between 0 and {MAX_K}, not {self.k}")
        if (self.k == 0) != (self.drafter == OFF):
            raise ValueError(f"k is 0 exactly when the drafter is {OFF!r}, not k={self.k} with {self.drafter!r}")
        if not self.learn and self.drafter not in LEARNERS:
            raise ValueError(f"learn is of {' and '.join(LEARNERS)} alone, not of {self.drafter!r}")

    @property
    def is_off(self) -> bool:
        """No speculation."""
        return self.k == 0

    def to_wire(self) -> dict[str, str | int]:
        """The form that travels in `custom_params.outrider` and in answers."""
        wire: dict[str, str | int] = {"drafter": self.drafter, "k": self.k}
        return wire if self.learn else wire | {"learn": False}

    @classmethod
    def from_wire(cls, data: Mapping[str, object]) -> Plan:
        """Parse `to_wire`'s form; ValueError names the field that is wrong."""
        unknown = sorted(set(data) - {"drafter", "k", "learn"})
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}, expected drafter and k, and learn at most")
        drafter, k, learn = data.get("drafter"), data.get("k"), data.get("learn", True)
        if not isinstance(drafter, str):
            raise ValueError(f"drafter must be a string, not {drafter!r}")
        if not isinstance(k, int) or isinstance(k, bool):
            raise ValueError(f"k must be an integer, not {k!r}")
        if not isinstance(learn, bool):
            raise ValueError(f"learn must be true or false, not {learn!r}")
        return cls(drafter, k, learn)


PLAN_OFF = Plan(OFF, 0)
