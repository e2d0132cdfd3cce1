"""Suffix decoding against a slow, obvious implementation, isolation of keys, and the bound on memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.speculation.proposal import PointMass, TopKTree
from outrider.suffixes import DEPTH_PER_MATCHED, DOUBT, MAX_MATCH, MIN_PROB

Path = tuple[int, ...]


def obvious_follow(sequences: list[list[int]], context: list[int]) -> dict[int, tuple[int, tuple[int, int]]]:
    """How often and where last each token followed `context`."""
    size = len(context)
    found: dict[int, list[tuple[int, int]]] = {}
    for i, sequence in enumerate(sequences):
        for end in range(size, len(sequence)):
            if sequence[end - size : end] == context:
                found.setdefault(sequence[end], []).append((i, end))
    return {token: (len(places), places[-1]) for token, places in found.items()}


def obvious_growth(sequences: list[list[int]], context: list[int], k: int) -> tuple[float, list[Path]]:
    """Score and paths of the `k` likeliest nodes: likeliest first, newest of equals, then below the elder parent."""
    nodes: list[Path] = []
    score = 0.0
    open_nodes: list[tuple[float, tuple[int, int], int, Path]] = []
    prob, path, age = 1.0, (), 1
    while True:
        follow = obvious_follow(sequences, [*context, *path]) if len(path) < DEPTH_PER_MATCHED * len(context) else {}
        total = sum(n for n, _ in follow.values()) + DOUBT / (len(context) + len(path))
        likely = [(prob * n / total, at, age, (*path, t)) for t, (n, at) in follow.items()]
        open_nodes += [node for node in likely if node[0] >= MIN_PROB]
        if not open_nodes or len(nodes) == k:
            return score, nodes
        best = max(open_nodes)
        open_nodes.remove(best)
        prob, _, _, path = best
        score += prob
        age = -len(nodes)
        nodes.append(path)


def obvious_best(sources: list[list[list[int]]], text: list[int], k: int) -> list[Path]:
    """The nodes of the best score over all sources and match lengths; of equals the first source's, the longest's."""
    best: tuple[float, list[Path]] = (0.0, [])
    for sequences in sources:
        for length in range(min(MAX_MATCH, len(text)), 0, -1):
            found = obvious_growth(sequences, text[-length:], k)
            if found[0] > best[0]:
                best = found
    return best[1]


def paths_of(token_ids: tuple[int, ...], parents: tuple[int, ...]) -> list[Path]:
    paths: list[Path] = []
    for token, parent in zip(token_ids, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


tokens = st.lists(st.integers(0, 2), max_size=16)


@settings(max_examples=300, deadline=None)
@given(tokens, tokens, st.lists(tokens, max_size=3), st.integers(1, 6))
def test_proposals_have_the_best_expected_length(
    prompt: list[int], answer: list[int], earlier: list[list[int]], k: int
) -> None:
    """The tree is that of the best match over the own text and the earlier answers of the key, whatever became of
    earlier trees; that is told by its chances, of which none is above its parent's."""
    store = SuffixStore()
    for text in earlier:
        store.add("key", text)
    drafter = SuffixDrafter(prompt, store, "key")
    for token in answer:
        drafter.propose(k)
        drafter.observe(token)
    text = prompt + answer
    tree = drafter.propose(k)
    assert paths_of(tree.token_ids, tree.parents) == obvious_best([[text], earlier], text, k)
    is_chain = tree.parents == tuple(range(-1, len(tree) - 1))
    assert isinstance(tree, PointMass) is is_chain
    assert tree.chances is not None
    above = [1.0, *tree.chances]
    assert all(0 < chance < above[parent + 1] for chance, parent in zip(tree.chances, tree.parents, strict=True))


def test_chances_follow_what_became_of_earlier_drafts() -> None:
    """Nothing else does: after drafts that were right the same tokens are likelier, after wrong ones less."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    fresh = SuffixDrafter([*text, 0, 1, 2, 3, 4], SuffixStore(), "").propose(2)
    right, wrong = (SuffixDrafter([*text, 0, 1, 2, 3], SuffixStore(), "") for _ in range(2))
    right.propose(4)
    right.observe(4)
    wrong.propose(4)
    for token in (0, 1, 2, 3, 4):
        wrong.observe(token)
    assert right.propose(2).token_ids == wrong.propose(2).token_ids == fresh.token_ids == (5, 6)
    chances = [drafts.chances or () for drafts in (right.propose(2), fresh, wrong.propose(2))]
    assert all(a > b > c > 0 for a, b, c in zip(*chances, strict=True))


def test_a_longer_match_may_propose_more() -> None:
    """A shared pair is followed for four tokens, three for six, one for two."""
    store = SuffixStore()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert SuffixDrafter([*text, 0, 3], store, "").propose(8).token_ids == (4, 5)
    assert SuffixDrafter([*text, 0, 2, 3], store, "").propose(8).token_ids == (4, 5, 6, 7)
    assert SuffixDrafter([*text, 0, 1, 2, 3], store, "").propose(8).token_ids == (4, 5, 6, 7, 8, 9)


def test_where_two_continuations_are_likely_both_are_proposed() -> None:
    """Each with what followed it, the likelier ones first; a sure continuation is a chain."""
    tree = SuffixDrafter([7, 8, 1, 2, 7, 8, 1, 2, 7, 8, 3, 4, 7, 8], SuffixStore(), "").propose(4)
    assert isinstance(tree, TopKTree)
    assert paths_of(tree.token_ids, tree.parents) == [(1,), (1, 2), (1, 2, 7), (3,)]
    assert isinstance(SuffixDrafter([7, 8, 1, 2, 7, 8], SuffixStore(), "").propose(4), PointMass)


def test_the_more_frequent_continuation_wins_and_then_the_newer() -> None:
    """Frequency decides; of equally frequent ones the newest."""
    store = SuffixStore()
    assert SuffixDrafter([7, 1, 7, 1, 7, 2, 7], store, "").propose(1).token_ids == (1,)
    assert SuffixDrafter([7, 1, 7, 2, 7], store, "").propose(1).token_ids == (2,)


def test_a_path_ends_where_it_gets_unlikely() -> None:
    """Below a probability of a tenth nothing is proposed."""
    spread = [token for other in range(1, 12) for token in (0, other)]
    assert SuffixDrafter([*spread, 0], SuffixStore(), "").propose(4).token_ids == ()


def test_earlier_answers_are_seen_by_the_same_key_only() -> None:
    """Another key, and a request without one, learn nothing; a request without one teaches nothing."""
    store = SuffixStore()

    def answer(key: str, *token_ids: int) -> None:
        drafter = SuffixDrafter([50], store, key)
        for token in token_ids:
            drafter.observe(token)
        drafter.free()

    answer("a", 1, 2, 3, 4)
    answer("", 1, 2, 8, 9)
    assert SuffixDrafter([1, 2], store, "a").propose(4).token_ids == (3, 4)
    for key in ("", "b", "A"):
        assert SuffixDrafter([1, 2], store, key).propose(4).token_ids == ()


def test_the_store_is_bounded_and_forgets_the_key_used_longest_ago() -> None:
    """Tokens are counted over all keys; a key that was read stays, the other goes."""
    store = SuffixStore(max_tokens=100, max_generation=40)
    store.add("old", range(30))
    store.add("used", range(30))
    store.add("new", range(30))
    assert store.automata("old")
    store.add("new", range(100, 130))
    assert store.num_tokens <= 100
    assert not store.automata("used") and store.automata("old") and store.automata("new")


def test_a_key_forgets_its_oldest_answers() -> None:
    """Within a key, a full generation replaces the one before it; newer answers stay."""
    store = SuffixStore(max_tokens=1000, max_generation=40)
    for start in (0, 100, 200):
        store.add("a", range(start, start + 35))
        assert store.num_tokens <= 80
    proposals = [SuffixDrafter([start, start + 1], store, "a").propose(2).token_ids for start in (0, 100, 200)]
    assert proposals == [(), (102, 103), (202, 203)]


def test_an_answer_longer_than_a_generation_keeps_its_end() -> None:
    """No answer makes the store exceed its bound."""
    store = SuffixStore(max_tokens=100, max_generation=40)
    store.add("a", range(500))
    assert store.num_tokens == 40
    assert SuffixDrafter([490, 491], store, "a").propose(2).token_ids == (492, 493)


def test_a_loop_is_drafted_to_the_full_length() -> None:
    """A text of one repeated token goes on, and stays cheap: counting stops at the depth that can matter."""
    assert SuffixDrafter([7] * 3000, SuffixStore(), "").propose(8).token_ids == (7,) * 8
