"""Two results of the same suite held against each other."""

from __future__ import annotations

from outrider.errors import ConfigError
from outrider.workloads.figures import against
from outrider.workloads.results import Against, Record, Result


def pairs_of(a: Result, b: Result) -> list[tuple[str, str]]:
    """Arms of `a` with those of `b`: by name, or the only ones of both. ConfigError when none belong together."""
    names = [arm.name for arm in a.arms], [arm.name for arm in b.arms]
    if shared := [name for name in names[0] if name in names[1]]:
        return [(name, name) for name in shared]
    if len(names[0]) == len(names[1]) == 1:
        return [(names[0][0], names[1][0])]
    raise ConfigError(f"no arm is in both: {', '.join(names[0])} and {', '.join(names[1])}")


def compare(a: Result, b: Result) -> list[Against]:
    """What `b` has of what `a` has, request by request. ConfigError when they are not of the same suite."""
    if a.suite_digest != b.suite_digest:
        raise ConfigError(
            f"these are runs of different suites: {a.suite} ({a.suite_digest}, {a.arrivals}, seed {a.seed}) and "
            f"{b.suite} ({b.suite_digest}, {b.arrivals}, seed {b.seed})"
        )
    found = []
    for ours, theirs in pairs_of(a, b):
        rows = against(_of(b, theirs), _of(a, ours))
        found += [row.model_copy(update={"arm": f"{theirs} of B", "base": f"{ours} of A"}) for row in rows]
    return found


def differences(a: Result, b: Result) -> list[str]:
    """Conditions that are not the same, each with both values; the interruption and the bottleneck of either too."""
    names = dict.fromkeys([*a.conditions, *b.conditions])
    found = [
        f"{name}: {a.conditions.get(name, '-')} / {b.conditions.get(name, '-')}"
        for name in names
        if a.conditions.get(name) != b.conditions.get(name)
    ]
    for label, one in (("A", a), ("B", b)):
        if not one.is_complete:
            found.append(f"{label} is not complete")
        found += [f"the load generator of {label} was the bottleneck: {why}" for why in one.generator.reasons]
    return found


def _of(result: Result, arm: str) -> list[Record]:
    return [record for record in result.records if record.arm == arm]
