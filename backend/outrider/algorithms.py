"""SGLang's names of its ways to speculate, and the drafters of ours that they are."""

from __future__ import annotations

from collections.abc import Mapping

#: SGLang's algorithm -> our drafter.
DRAFTER_OF: Mapping[str, str] = {
    "NGRAM": "ngram",
    "STANDALONE": "draft_model",
    "EAGLE": "eagle2",
    "NEXTN": "eagle2",
    "EAGLE3": "eagle3",
}
