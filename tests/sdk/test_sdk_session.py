"""Sessions: conversations that only grow."""

from __future__ import annotations

import pytest

from outrider import Session, ToolAnswer, ToolCall

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


def test_what_may_be_edited_or_quoted_is_kept() -> None:
    """The last text of each kind; what failed, or leads to something else, is not."""
    session = Session()
    first, second, quoted = (ToolAnswer(ToolCall(), text, None, 0.0, kind) for text, kind in
                             (("a", "edit"), ("b", "edit"), ("c", "quote")))  # fmt: skip
    failed = ToolAnswer(ToolCall(), "d", OSError(), 0.0, "edit")
    session.take([HELLO], [first])
    session.take([ANSWER], [second, quoted, failed, ToolAnswer(ToolCall(), "e", None, 0.0, "json")])
    assert session.messages == [HELLO, ANSWER]
    assert session.sources == (second, quoted)
