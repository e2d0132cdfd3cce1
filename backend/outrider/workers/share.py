"""One worker's share of the limits, so that all workers together let through what the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.config import Config, KeySection
from outrider.errors import ConfigError

_KEY_LIMITS = ("requests_per_min", "tokens_per_min", "max_concurrent")


@dataclass(frozen=True, slots=True)
class Share:
    """Worker `index` of `count`. The shares of a limit differ by 1 at most, and their sum is the limit."""

    index: int = 0
    count: int = 1

    def of(self, limit: int) -> int:
        """This worker's part of a limit; the parts of all add up to it."""
        return limit // self.count + (self.index < limit % self.count)

    def of_config(self, config: Config) -> Config:
        """The places and queue of admission, and the open runs. Keys have theirs in `of_keys`.

        ConfigError for a limit of which some worker would have nothing.
        """
        places, runs = config.admission, config.runs
        admission = places.model_copy(update={
            "max_in_flight": self._some("admission.max_in_flight", places.max_in_flight),
            "max_queued": self.of(places.max_queued),
        })  # fmt: skip
        own_runs = runs.model_copy(update={"max_open": self._some("runs.max_open", runs.max_open)})
        return config.model_copy(update={"admission": admission, "runs": own_runs})

    def of_keys(self, sections: Sequence[KeySection]) -> tuple[KeySection, ...]:
        """Every key with this worker's share of its limits. ConfigError as above."""
        return tuple(self._of_key(one) for one in sections)

    def _of_key(self, section: KeySection) -> KeySection:
        given = {name: limit for name in _KEY_LIMITS if (limit := getattr(section, name)) is not None}
        what = f"of the key {section.name}"
        return section.model_copy(update={name: self._some(f"{name} {what}", limit) for name, limit in given.items()})

    def _some(self, what: str, limit: int) -> int:
        if limit < self.count:
            raise ConfigError(f"{what} is {limit}, of which {self.count} workers cannot each have a share")
        return self.of(limit)


ALONE = Share()
