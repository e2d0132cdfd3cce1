"""Where a lane is not what its profile has it be, in sentences for people."""

from __future__ import annotations

from outrider.core import OFF
from outrider.profiles import SGLangSection, SpeculationSection, UrlSection
from outrider.runtimes.abilities import Abilities
from outrider.runtimes.launch import attention_backend


def disagreements(profile: SGLangSection | UrlSection, found: Abilities) -> tuple[str, ...]:
    """What the profile says and the server does not, in sentences; the server's word counts."""
    lacks = [f"plugin.{name} is not active: {why}" for name, why in found.missing.items()]
    how = profile.speculation
    differences = [] if how is None else _speculation_differs(how, found)
    if isinstance(profile, SGLangSection):
        pairs = (
            ("attention_backend", attention_backend(profile), found.attention_backend),
            ("context_length", profile.context_length, found.context_length),
            ("max_running", profile.max_running, found.max_running),
        )
        differences += [(key, want, has) for key, want, has in pairs if None not in (want, has)]
        if found.plugin is None and found.drafters:
            lacks.append("the plugin is not active, so k is what the server was launched with")
    said = [f"{key}: the profile says {want}, the server {has}" for key, want, has in differences if want != has]
    return (*said, *lacks)


def _speculation_differs(said: SpeculationSection, found: Abilities) -> list[tuple[str, object, object]]:
    drafter = next(iter(found.drafters), OFF)
    differences: list[tuple[str, object, object]] = [("speculation.drafter", said.drafter, drafter)]
    if said.drafter == drafter != OFF:
        differences.append(("speculation.k", said.num_steps, found.drafters[drafter].max))
        if found.num_draft_tokens is not None:
            differences.append(("speculation.draft_tokens", said.num_verified, found.num_draft_tokens))
        if found.top_k is not None:
            differences.append(("speculation.top_k", said.top_k, found.top_k))
    return differences
