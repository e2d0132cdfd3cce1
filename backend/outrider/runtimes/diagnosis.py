"""Why a lane's process died, read from the last lines that it wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What is recognised, in this order, and what it is called; `{0}` is the first group of the match.
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"((?:CUDA out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory).*)", "out of memory: {0}"),
        (r"(?i)((?:not enough memory|no memory left).*)", "out of memory: {0}"),
        (r"error: ((?:unrecognized arguments|ambiguous option|argument ).*)", "bad flag: {0}"),
        (r"(?i)address already in use|port \d+ (?:is )?(?:not available|in use|taken)", "port taken"),
        (r"ModuleNotFoundError: (No module named .*)", "the environment lacks a package: {0}"),
        (r"((?:OSError|HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError).*)", "no such model: {0}"),
        (r"^(?:\w+\.)*((?:\w*Error|AssertionError)\b.*)", "{0}"),
    )
)


def cause_of(lines: Iterable[str], code: int | None = None) -> str | None:
    """A cause that stands in the lines, the last one of the kind that is looked for first; None when none is known.

    `code` is the exit code: a kill that nobody here sent is the system's, most often for want of memory.
    """
    seen = list(lines)
    for pattern, cause in _CAUSES:
        for line in reversed(seen):
            if match := pattern.search(line):
                groups = match.groups() or (match.group(),)
                return cause.format(groups[0].strip())
    if code in (-9, 137):
        return "killed from outside, perhaps for want of memory"
    return None
