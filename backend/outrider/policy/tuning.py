"""What `outrider policy tune` writes: a workload's file with the advised limits, and all else as it stands there."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from outrider.core import Drafter
from outrider.policy.evaluate import Advice
from outrider.policy.limits import Band, DrafterLimits, WorkloadPolicy

_MODELINE = "# yaml-language-server: $schema=policy.schema.json\n"
#: Begins what was written here, and is replaced with what is found next time.
_OURS = "# Tuned: "


def tuned(advice: Advice, policy: WorkloadPolicy) -> WorkloadPolicy:
    """The policy with the advised limits, and with all else that it says. Drafters that never ran stay as they are,
    since nothing is known of them, and temperatures are only ever narrowed."""
    drafters = {name: limits for name, limits in policy.drafters.items() if name not in advice.ran}
    for name, most in sorted(advice.max_k.items()):
        limits = policy.limits_of(name) or DrafterLimits()
        least = {"min_k": most} if limits.min_k > most else {}
        drafters[cast(Drafter, name)] = limits.model_copy(update={"max_k": most, **least})
    changes: dict[str, Any] = {"drafters": drafters}
    hottest, bands = advice.max_temperature, policy.temperature
    if hottest is not None and not (bands and _ends_below(bands[-1], hottest)):
        cool = tuple(band for band in bands if _ends_below(band, hottest))
        last = bands[len(cool)] if bands else Band()
        changes["temperature"] = (*cool, last.model_copy(update={"max": hottest}))
    return policy.model_copy(update=changes)


def _ends_below(band: Band, value: float) -> bool:
    return band.max is not None and band.max < value


def to_yaml(advice: Advice, policy: WorkloadPolicy, text: str) -> str:
    """The policy's file, which is `text`, with the advised limits, and with the reasons as comments."""
    changed = tuned(advice, policy).model_dump(mode="json", exclude_unset=True)
    reasons = [
        f"from {advice.num_records} recorded requests, whose tokens per second are expected to become"
        f" {advice.gain:.2f} +- {advice.margin:.2f} times as many (95 %)",
        *advice.hints,
    ]
    body: str | None = text
    for key in ("drafters", "temperature"):
        if body is not None and key in changed:
            body = _with_key(body, key, _block(key, changed[key]))
    if body is None:
        reasons.append("the comments that stood here are lost, since keys do not begin lines of their own")
        body = _MODELINE + "".join(_block(key, value) for key, value in changed.items())
    own = "".join(f"{_OURS}{reason}.\n" for reason in reasons)
    body = re.sub(rf"^{_OURS}.*\n", "", body, flags=re.MULTILINE)
    return _MODELINE + own + body.removeprefix(_MODELINE)


def _block(key: str, value: Any) -> str:
    """JSON values are YAML that no version of it reads otherwise."""
    if key == "drafters" and value:
        return "drafters:\n" + "".join(f"  {name}: {json.dumps(limits)}\n" for name, limits in value.items())
    return f"{key}: {json.dumps(value, ensure_ascii=False)}\n"


def _with_key(text: str, key: str, block: str) -> str | None:
    """Another block in the place of this key's, or at the end; None where it cannot be told where that ends."""
    text = text if text.endswith("\n") else text + "\n"
    found = re.search(rf"^{key}[ \t]*:.*\n(?:(?:[ \t].*)?\n)*", text, re.MULTILINE)
    if found is None:
        return None if key == "drafters" else text + block
    after = re.search(r"^(?!#|\s*$).", text[found.end() :], re.MULTILINE)
    closed = all(found[0].count(a) == found[0].count(b) for a, b in ("{}", "[]"))
    if (after is not None and not after[0].isalpha()) or not closed:
        return None
    blank = found[0][len(found[0].rstrip("\n")) + 1 :]
    return text[: found.start()] + block + blank + text[found.end() :]
