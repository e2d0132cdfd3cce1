"""Following a prediction: from its beginning, across replaced, inserted and left out tokens; silent when lost."""

from __future__ import annotations

import random

import pytest

from outrider.engine.drafters.prediction import NEAR, PredictionDrafter

PREDICTION = tuple(range(100, 160))


def after(prediction: tuple[int, ...], *answer: int) -> PredictionDrafter:
    drafter = PredictionDrafter(prediction)
    for token in answer:
        drafter.observe(token)
    return drafter


def test_it_starts_at_the_beginning_and_follows() -> None:
    """Before the first token the beginning is proposed, then what follows."""
    assert after(PREDICTION).propose(3).token_ids == (100, 101, 102)
    assert after(PREDICTION, 100, 101).propose(3).token_ids == (102, 103, 104)
    assert after(PREDICTION, *PREDICTION[:-1]).propose(3).token_ids == (159,)
    assert after(PREDICTION, *PREDICTION).propose(3).token_ids == ()
    assert after(()).propose(3).token_ids == ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((100, 101, 7), (103, 104)),  # one token in place of 102
        ((100, 101, 7, 8, 103), (104, 105)),  # two in place of one, found again at 103
        ((100, 101, 104), (105, 106)),  # two left out
        ((100, 101, 7, 102), (103, 104)),  # one inserted
        ((100, 101, 7, 8, 9, 102), (103, 104)),  # three inserted
        ((100, 101, 7, 8), ()),  # lost
        ((100, 101, 140, 141), (142, 143)),  # a long jump, seen with the second token
        ((100, 7, 8, 9, 10, 130, 131, 132), (133, 134)),  # a long gap
    ],
)
def test_it_finds_its_place_again(answer: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """A replaced token is stepped over; after anything else the text's own last tokens show the place."""
    assert after(PREDICTION, *answer).propose(2).token_ids == expected


def test_one_shared_token_far_away_is_no_place() -> None:
    """A lone token further off than `NEAR` says too little."""
    near, far = 102 + NEAR - 1, 103 + NEAR
    assert after(PREDICTION, 100, 101, 7, 8, near).propose(1).token_ids == (near + 1,)
    assert after(PREDICTION, 100, 101, 7, 8, far).propose(1).token_ids == ()


def test_the_longest_match_wins_and_then_the_nearest() -> None:
    """Of two places that end in the same token, the one that agrees longer; of equals the nearer one."""
    prediction = (1, 2, 3, 4, 9, 5, 1, 2, 3, 4, 9, 6, 50, 8, 4, 9, 7)
    assert after(prediction, 77, 78, 79, 8, 4, 9).propose(1).token_ids == (7,)
    assert after(prediction, 77, 78, 79, 3, 4, 9).propose(1).token_ids == (5,)
    assert after(prediction, *prediction[:9], 77, 78, 3, 4, 9).propose(1).token_ids == (6,)


@pytest.mark.parametrize("period", [600, 30, 4])
def test_a_mostly_right_prediction_saves_most_steps(period: int) -> None:
    """With one of ten tokens replaced, 600 tokens take less than a third of the steps, in a text that loops too."""
    rng = random.Random(0)
    answer = [rng.randrange(1000) for _ in range(period)] * (600 // period)
    prediction = tuple(2000 + rng.randrange(1000) if i % 10 == 9 else token for i, token in enumerate(answer))
    drafter = PredictionDrafter(prediction)
    at = num_steps = 0
    while at < len(answer):
        draft = drafter.propose(8).token_ids
        right = 0
        while right < len(draft) and answer[at + right : at + right + 1] == [draft[right]]:
            right += 1
        for token in answer[at : at + right + 1]:
            drafter.observe(token)
        at, num_steps = at + right + 1, num_steps + 1
    assert num_steps < 200
