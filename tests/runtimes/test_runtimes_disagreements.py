from __future__ import annotations

import pytest

from outrider.profiles import SGLangSection, UrlSection
from outrider.runtimes.abilities import Abilities, KRange
from outrider.runtimes.disagreements import disagreements

PLAIN = Abilities(plugin=(), attention_backend="triton", max_running=6)
TREE = Abilities(
    {"eagle3": KRange(3, 3)}, plugin=(), top_k=4, num_draft_tokens=8, attention_backend="flashinfer", max_running=6
)
STOCK = Abilities({"ngram": KRange(7, 7)}, num_draft_tokens=8)
NGRAM = {"drafter": "ngram", "k": 7}


def launched(**fields):
    return SGLangSection(**{"name": "a", "kind": "sglang", "max_running": 6, **fields})


def test_a_profile_that_disagrees_is_reported_key_by_key():
    """The server's word is in every sentence."""
    tree = {"drafter": "eagle3", "k": 5, "top_k": 8, "draft_tokens": 32, "draft": "d"}
    profile = launched(attention_backend="triton", max_running=48, speculation=tree)
    assert disagreements(profile, TREE) == (
        "speculation.k: the profile says 5, the server 3",
        "speculation.draft_tokens: the profile says 32, the server 8",
        "speculation.top_k: the profile says 8, the server 4",
        "attention_backend: the profile says triton, the server flashinfer",
        "max_running: the profile says 48, the server 6",
    )
    assert disagreements(profile, PLAIN)[0] == "speculation.drafter: the profile says eagle3, the server off"


@pytest.mark.parametrize(("device", "meant"), [("cuda", "flashinfer"), ("cpu", "torch_tree")])
def test_a_backend_that_a_profile_leaves_to_us_counts_too(device, meant):
    """It is what the server was told to take."""
    assert disagreements(launched(device=device), Abilities(attention_backend=meant, max_running=6)) == ()
    assert disagreements(launched(device=device), PLAIN) == (
        f"attention_backend: the profile says {meant}, the server triton",
    )


def test_a_profile_that_says_nothing_cannot_disagree():
    """A URL is believed to be anything, also a server without our plugin."""
    profile = UrlSection(name="a", kind="url", urls=["http://x"])
    assert disagreements(profile, TREE) == disagreements(profile, STOCK) == ()


def test_what_our_plugin_lacks_is_told():
    """SGLang swallows its errors. Of a server that we launch it is told that there is none at all."""
    sentence = "the plugin is not active, so k is what the server was launched with"
    assert disagreements(launched(speculation=NGRAM), STOCK) == (sentence,)
    assert disagreements(launched(), Abilities()) == ()
    moved = Abilities({"ngram": KRange(1, 7)}, plugin=("k",), missing={"seeds": "x.y is not there"})
    for profile in (launched(speculation=NGRAM), UrlSection(name="a", kind="url", urls=["http://x"])):
        assert disagreements(profile, moved) == ("plugin.seeds is not active: x.y is not there",)
