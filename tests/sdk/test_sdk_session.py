"""Sessions: conversations that only grow."""

from __future__ import annotations

import pytest

from outrider import Session

HELLO = {"role": "user", "content": "Hello."}
ANSWER = {"role": "assistant", "content": "Hi."}


def test_messages_are_added_at_the_end() -> None:
    """What a caller does with the lists that went in or came out changes nothing."""
    given = [dict(HELLO)]
    session = Session(given)
    given.append(ANSWER)
    session.messages.append(ANSWER)
    assert session.messages == [HELLO]
    session.add([ANSWER])
    assert session.messages == [HELLO, ANSWER]


def test_one_run_at_a_time() -> None:
    """It is free again after a run, also one that failed."""
    session = Session()
    with pytest.raises(KeyError), session.in_use():
        with pytest.raises(RuntimeError, match="in use"), session.in_use():
            pass
        raise KeyError
    with session.in_use():
        pass
