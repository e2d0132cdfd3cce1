from __future__ import annotations

import pytest

from outrider.runtimes.diagnosis import cause_of, guess_of


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB", "out of memory: OutOfMemoryError"),
        (
            "RuntimeError: Not enough memory. Please try --mem-fraction-static.",
            "out of memory: Not enough",
        ),
        ("launch_server.py: error: unrecognized arguments: --nope 3", "bad flag: unrecognized arguments: --nope 3"),
        ("x.py: error: argument --dtype: invalid choice: 'f8'", "bad flag: argument --dtype: invalid choice: 'f8'"),
        (
            "ERROR: [Errno 98] while attempting to bind on ('127.0.0.1', 3): address already in use",
            "port taken",
        ),
        (
            "python: Error while finding module specification (ModuleNotFoundError: No module named 'sglang')",
            "the environment lacks a package: No module named 'sglang'",
        ),
        ("OSError: /x is not a local folder", "the model cannot be read: OSError: /x is not a local folder"),
        ("OSError: Repo id must be in the form 'a/b': '/x'.", "the model cannot be read: OSError: Repo id"),
        ("huggingface_hub.errors.RepositoryNotFoundError: 404", "the model cannot be read: RepositoryNotFoundError"),
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 28] No space"),
        ("ModuleNotFoundError: odd", "ModuleNotFoundError: odd"),
        ("ValueError: EAGLE is not supported", "ValueError: EAGLE is not supported"),
        ("[2026-11-29] The server is fired up", None),
    ],
)
def test_causes_are_recognised(line, expected):
    """In what SGLang, Python and the system write."""
    cause = cause_of(["loading", line, "Killed"])
    assert cause is None if expected is None else cause.startswith(expected)


def test_the_deeper_cause_is_told_before_what_follows_from_it():
    """A scheduler that runs out of memory takes the others with it, who complain later."""
    lines = ["torch.OutOfMemoryError: CUDA out of memory", "RuntimeError: Rank 0 scheduler died"]
    assert cause_of(lines).startswith("out of memory")


@pytest.mark.parametrize(("code", "is_known"), [(137, True), (-9, True), (1, False), (None, False)])
def test_a_kill_from_outside_is_told(code, is_known):
    """When nothing was written."""
    assert (guess_of(code) is not None) == is_known
