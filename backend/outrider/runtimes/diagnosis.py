"""Why a lane's process died, read from the last lines that it wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Of all that is an OSError, what SGLang's reader of models says of a name or a folder that is none.
_NO_MODEL = r"Repo id|Incorrect path|We couldn't|Can't load|\S+ is not a |\S+ does not appear"
#: What is recognised, in this order, and what it is called; `{0}` is the first group of the match.
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"((?:CUDA out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory).*)", "out of memory: {0}"),
        (r"(?i)((?:not enough memory|no memory left).*)", "out of memory: {0}"),
        (r"error: ((?:unrecognized arguments|ambiguous option|argument ).*)", "bad flag: {0}"),
        (r"(?i)address already in use|port \d+ (?:is )?(?:not available|in use|taken)", "port taken"),
        (r"ModuleNotFoundError: (No module named '[^']*')", "the environment lacks a package: {0}"),
        (
            rf"((?:OSError: (?:{_NO_MODEL})|HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError).*)",
            "the model cannot be read: {0}",
        ),
        (r"^(?:\w+\.)*((?:\w*Error|AssertionError)\b.*)", "{0}"),
    )
)


def cause_of(lines: Iterable[str]) -> str | None:
    """A cause that stands in the lines, the last one of the kind that is looked for first; None where none is."""
    seen = list(lines)
    for pattern, cause in _CAUSES:
        for line in reversed(seen):
            if match := pattern.search(line):
                groups = match.groups() or (match.group(),)
                return cause.format(groups[0].strip())
    return None


def guess_of(code: int | None) -> str | None:
    """By the exit code: a kill that nobody here sent is the system's, most often for want of memory."""
    return "killed from outside, perhaps for want of memory" if code in (-9, 137) else None
