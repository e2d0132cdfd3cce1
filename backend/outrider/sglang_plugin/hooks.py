"""Features made of hooks into SGLang: each is put in as a whole, or not at all with the reason kept."""

from __future__ import annotations

import inspect
import logging
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hook:
    """One place in SGLang, and when `function` runs there.

    `assign` writes a module's name, which may hold None; `exists` only checks that the target is as expected.
    """

    target: str
    kind: Literal["before", "after", "around", "replace", "assign", "exists"]
    function: Callable[..., Any] | None = None
    parameters: tuple[str, ...] = ()
    """Names that the target must take; that it does is checked when the plugin is loaded."""

    def problem(self) -> str | None:
        """Why this hook cannot be put in, in words."""
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"{self.target} is not there ({error})"
        if self.kind == "assign":
            return None
        if not callable(found):
            return f"{self.target} is not a function"
        taken = inspect.signature(found).parameters
        lacking = [name for name in self.parameters if name not in taken]
        return f"{self.target} takes no {', '.join(lacking)}" if lacking else None

    def put_in(self) -> None:
        """Change SGLang at that place."""
        if self.kind == "assign":
            module, name = self.target.rsplit(".", 1)
            setattr(pkgutil.resolve_name(module), name, self.function)
        elif self.kind != "exists":
            from sglang.srt.plugins.hook_registry import HookRegistry, HookType

            HookRegistry.register(self.target, self.function, HookType(self.kind))

    def is_in(self) -> bool:
        """Whether SGLang did what it was told; it swallows its own failures."""
        if self.kind == "exists":
            return True
        found = pkgutil.resolve_name(self.target)
        if self.kind == "assign":
            return found is self.function
        # SGLang's wrappers hold their hook; what it wraps itself has a `__wrapped__` as well.
        while found is not None:
            cells = getattr(found, "__closure__", None) or ()
            if any(cell.cell_contents is self.function for cell in cells):
                return True
            found = getattr(found, "__wrapped__", None)
        return False


@dataclass(frozen=True, slots=True)
class Feature:
    """What a lane can do through hooks; the names are what the gateway reads."""

    names: tuple[str, ...]
    hooks: tuple[Hook, ...]
    setup: Callable[[], None] | None = None
    """Runs first, once; registers what is not a hook."""
    unused: Callable[[], str | None] = lambda: None
    """Asked when the lane runs: why its arguments leave the feature without a use."""

    def failed(self) -> str | None:
        """Why it is not there, once SGLang has applied all hooks."""
        failed = [hook.target for hook in self.hooks if not hook.is_in()]
        return f"SGLang did not apply the hooks on {', '.join(failed)}" if failed else None


@dataclass(slots=True)
class Installed:
    """What this process has."""

    features: list[Feature] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Feature -> why it is not there."""

    def install(self, features: Sequence[Feature]) -> None:
        """Put in what fits this version of SGLang; what does not is kept in `missing` with the reason, and logged."""
        for feature in features:
            problems = [problem for hook in feature.hooks if (problem := hook.problem()) is not None]
            if problems:
                self.missing |= dict.fromkeys(feature.names, "; ".join(problems))
                logger.error("outrider: not active on this lane: %s: %s", ", ".join(feature.names), problems)
                continue
            if feature.setup is not None:
                feature.setup()
            for hook in feature.hooks:
                hook.put_in()
            self.features.append(feature)

    def report(self) -> dict[str, Any]:
        """By name, as the gateway reads them: active, missing and why, without a use here and why."""
        active: list[str] = []
        missing, unused = dict(self.missing), dict[str, str]()
        for feature in self.features:
            if (reason := feature.failed()) is not None:
                missing |= dict.fromkeys(feature.names, reason)
            elif (reason := feature.unused()) is not None:
                unused |= dict.fromkeys(feature.names, reason)
            else:
                active += feature.names
        return {"active": active, "missing": missing, "unused": unused}
