import msgspec
import pytest

from agentflow.errors import LimitError
from agentflow.stores import letters
from agentflow.stores.base import MAX_LETTER_BYTES, MAX_LETTERS, Letter, cancel_letter

LETTER = Letter(id="1", verb="amend", target="c", arguments={"a": [1, 2**70, None, "\u2028"]}, by="u")


def test_a_letter_comes_back_from_its_bytes():
    for letter in (LETTER, cancel_letter("user"), Letter(id="", verb="answer")):
        assert letters.decode(letters.encode(letter)) == letter


def test_bytes_that_are_no_letter_are_refused():
    for data in (b"", b"{}", b'{"id": "1", "verb": "sing"}', b'{"id": "1"}', b"user"):
        with pytest.raises(msgspec.DecodeError):
            letters.decode(data)


def test_there_is_room_up_to_the_bounds():
    size = len(letters.encode(LETTER))
    assert letters.has_room(LETTER, [1] * (MAX_LETTERS - 1))
    assert not letters.has_room(LETTER, [1] * MAX_LETTERS)
    assert letters.has_room(LETTER, [MAX_LETTER_BYTES - size])
    assert not letters.has_room(LETTER, [MAX_LETTER_BYTES - size + 1])


def test_a_cancel_always_has_room():
    assert letters.has_room(cancel_letter("user"), [MAX_LETTER_BYTES] * MAX_LETTERS)


def test_who_finds_no_room_is_told_of_the_run_and_the_bounds():
    error = letters.no_room("r")
    assert isinstance(error, LimitError)
    assert "inbox of run 'r' is full: 100 letters" in str(error)
