import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.models import framing
from agentflow.models.framing import ErrorPayload, EventSplitter, LineSplitter

BODY = (
    b": a comment\n\ndata: one\n\ndata:two\nid: 7\nretry: 10\n\n"
    b"data:  three \xf0\x9f\x98\x80 \xe2\x80\xa8 \xc2\x85 \x0b.\r\n\r\ndata: a\ndata: b\r\rdata\n\nunknown: x\n\n"
)
EVENTS = [b"one", b"two", b" three \xf0\x9f\x98\x80 \xe2\x80\xa8 \xc2\x85 \x0b.", b"a\nb", b""]


def events(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def test_only_lf_cr_and_crlf_end_a_line():
    assert events(BODY) == EVENTS


def test_every_cut_into_two_gives_the_same_events():
    for body in (BODY, b"\xef\xbb\xbf" + BODY, BODY.replace(b"\n", b"\r\n").replace(b"\r\r\n", b"\r\n")):
        for at in range(len(body) + 1):
            assert events(body[:at], body[at:]) == EVENTS


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_any_cuts_give_the_same_events(points):
    points = [0, *sorted(points), len(BODY)]
    assert events(*(BODY[start:end] for start, end in itertools.pairwise(points))) == EVENTS


@given(st.binary(max_size=200), st.integers(1, 9))
def test_any_bytes_give_the_same_events_in_any_pieces(body, size):
    assert events(*(body[at : at + size] for at in range(0, len(body), size))) == events(body)


def test_a_blank_line_without_data_dispatches_nothing():
    assert events(b"id: 1\n\n: comment\n\n\n\nevent: ping\n\n") == []


def test_an_event_named_error_says_so():
    first, second, third = events(b"event: error\ndata: x\n\ndata: y\n\nevent: error\n\ndata: z\n\n")
    assert isinstance(first, ErrorPayload)
    assert not isinstance(second, ErrorPayload)
    assert not isinstance(third, ErrorPayload), "a name without data is forgotten at the blank line"


def test_what_is_left_at_the_end_is_the_last_event_so_far():
    splitter = EventSplitter()
    splitter.feed(b"data: one\n\ndata: two\nda")
    splitter.feed(b"ta: three")
    twin = splitter.copy()
    assert twin.rest() == b"two\nthree"
    assert splitter.feed(b"!\n\n") == [b"two\nthree!"]
    assert splitter.rest() is None


def test_a_body_of_half_a_byte_order_mark_has_no_event():
    splitter = EventSplitter()
    assert splitter.feed(b"\xef\xbb") == []
    assert splitter.rest() is None


@pytest.mark.parametrize("size", [1_000, 64 * 1024, 10**9])
@pytest.mark.parametrize("line", [b"data: " + b"x" * 90, b"data: " + b"x" * 93 + b"\n", b"data:xx\n" * 12])
def test_an_event_that_is_too_large_is_an_overflow(monkeypatch, size, line):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 100_000)
    splitter = EventSplitter()
    body = b"data: before\n\n" + line * 5_000 + b"\n\n"
    seen = [event for at in range(0, len(body), size) for event in splitter.feed(body[at : at + size])]
    assert seen == [b"before"]
    assert splitter.overflow
    assert splitter.rest() is None


def test_comments_for_ever_are_not_held():
    splitter = EventSplitter()
    for _ in range(3):
        assert splitter.feed(b": ping\n" * 1_000_000) == []
    assert not splitter.overflow
    assert splitter._held == 0


def lines_of(body: bytes, size: int) -> tuple[list[bytes], bytes | None]:
    splitter = LineSplitter()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [line for piece in pieces for line in splitter.feed(piece)], splitter.rest()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_whatever_the_pieces(size):
    assert lines_of(b'{"a":"\xe2\x80\xa8"}\r\n\n  \n{"b":1}\nrest', size) == (
        [b'{"a":"\xe2\x80\xa8"}', b'{"b":1}'],
        b"rest",
    )
    assert lines_of(b"a\n", size) == ([b"a"], None)
    assert lines_of(b"", size) == ([], None)


def test_a_line_over_the_bound_ends_the_lines(monkeypatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 5)
    splitter = LineSplitter()
    assert splitter.feed(b"12345\n123") == [b"12345"]
    assert not splitter.overflow
    assert splitter.copy().feed(b"456\n7\n") == []
    assert splitter.feed(b"456") == []
    assert splitter.overflow
    assert (splitter.feed(b"\nabc\n"), splitter.rest()) == ([], None)


def test_a_line_over_the_bound_after_good_ones_does_not_hide_them(monkeypatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 5)
    splitter = LineSplitter()
    assert splitter.feed(b"a\n1234567\nb\n") == [b"a"]
    assert splitter.overflow
