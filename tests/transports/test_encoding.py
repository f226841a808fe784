import json

import pytest

from agentflow.events import (
    MAX_DELTA_BYTES,
    CancelledEvent,
    DeltaEvent,
    ErrorInfo,
    FailedEvent,
    FinalEvent,
    RunError,
    StateEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    decode,
    encode,
    stamp,
)
from agentflow.events import State as S
from agentflow.messages import Usage
from agentflow.transports.encoding import (
    MAX_WRITE,
    event_id,
    frame,
    frames,
    object_frame,
    opening,
    read_event_id,
    simple,
    simple_pending,
    writes,
)
from tests.builders import make
from tests.transports.served import read


def numbered(*events):
    for seq, event in enumerate(events, 1):
        stamp(event, seq, "2026-01-01T00:00:00.000000Z")
    return events


def delta(text, **fields):
    return make(DeltaEvent, text=text, **fields)


def test_a_frame_is_one_line_of_json_with_its_id():
    (event,) = numbered(delta("hello"))
    (only,) = frames([event], "events")
    assert only == b"id: r:1\ndata: " + encode(event) + b"\n\n"


NASTY = [
    "a\n\nb",
    "a\rb",
    "a\r\n\r\nb",
    "event: final",
    "\nid: 7\n",
    "data: x\n\n",
    "\u2028x\u2029",
    "\x85\x0b\x0c\x00",
    "ä🎈",
]


@pytest.mark.parametrize("text", NASTY)
def test_no_text_ends_a_line_or_begins_a_frame(text):
    events = numbered(
        delta(text),
        make(
            ToolErrorEvent, call_id="c", tool=text, status="error", error=ErrorInfo(kind="k", message=text), result=text
        ),
    )
    for form in ("simple", "events"):
        for batch in (False, True):
            whole = b"".join(frames(events, form, batch=batch))
            assert whole.count(b"\n\n") == len(list(frames(events, form, batch=batch)))
            assert not {b"\r", "\u2028".encode(), "\u2029".encode()} & {
                whole[i : i + n] for n in (1, 3) for i in range(len(whole))
            }
    (_, told), (_, error) = read(b"".join(frames(events, "events")).decode())
    assert (told["text"], error["tool"], error["result"]) == (text, text, text)
    assert read(b"".join(frames(events, "simple")).decode())[0][1]["rawContent"] == text


def test_what_is_escaped_decodes_to_the_same_event():
    (event,) = numbered(delta("\u2028"))
    line = next(iter(frames([event], "events"))).decode().split("\n")[1].removeprefix("data: ")
    assert decode(line) == event


@pytest.mark.parametrize(
    "name", ["", "r", "r:", "r:x", "r:1\n", "r:1\ndata: x", "r/..:1", "r:-1", ":1", "r:" + "1" * 16, "é:1"]
)
def test_ids_are_of_one_form(name):
    assert read_event_id(name) is None
    with pytest.raises(ValueError, match="is no id of an event"):
        frame(b"{}", name)


def test_an_id_names_a_run_and_an_event():
    (event,) = numbered(delta("x"))
    assert read_event_id(event_id(event)) == ("r", 1)


def test_a_stream_begins_with_where_to_come_back_to_and_dispatches_nothing():
    assert opening(1000, "r:0") == b"retry: 1000\nid: r:0\n\n"
    assert opening(1000) == b"retry: 1000\n\n"


def test_a_batch_is_one_array_with_the_id_of_its_last_event():
    events = numbered(delta("a"), delta("b"), delta("c", channel="reasoning"))
    assert [
        (name, [one["text"] for one in told])
        for name, told in read(b"".join(frames(events, "events", batch=True)).decode())
    ] == [("r:3", ["a", "b", "c"])]
    ((name, told),) = read(b"".join(frames(events, "simple", batch=True)).decode())
    assert (name, [one["rawContent"] for one in told]) == ("r:2", ["a", "b"])
    assert list(frames(numbered(delta("x", channel="reasoning")), "simple", batch=True)) == []


def test_a_batch_is_cut_where_it_would_be_too_large():
    events = numbered(*(delta("x" * 100_000) for _ in range(7)))
    arrays = list(frames(events, "events", batch=True))
    assert [len(told) for _, told in read(b"".join(arrays).decode())] == [2, 2, 2, 1]
    assert all(len(array) <= MAX_WRITE + 1000 for array in arrays)


def test_small_frames_are_written_together_and_large_ones_alone():
    assert list(writes([b"a", b"b"])) == [b"ab"]
    large = b"x" * MAX_DELTA_BYTES
    assert [len(piece) for piece in writes([b"a", large, b"b", b"c"])] == [1, len(large), 2]
    assert list(writes([])) == []


def test_the_simple_form_tells_of_text_tools_and_ends():
    ended = {"usage": Usage(input_tokens=1, output_tokens=2), "duration_ms": 5.0}
    told = [
        simple(event)
        for event in (
            delta("Hi"),
            make(ToolStartEvent, call_id="c", tool="t", arguments={"a": 1}, raw_arguments='{"a": 1}'),
            make(ToolCompleteEvent, call_id="c", tool="t", result="[success]\n2", duration_ms=3.0),
            make(
                ToolErrorEvent,
                call_id="c",
                tool="t",
                status="timeout",
                error=ErrorInfo(kind="k", message="m"),
                result="no",
            ),
            make(FinalEvent, text="Hi all", finish_reason="stop", iterations=1, **ended),
            make(FailedEvent, error=RunError(kind="status", message="no", retryable=True), **ended),
            make(CancelledEvent, reason="user", **ended),
        )
    ]
    assert [(one["type"], one["rawContent"]) for one in told] == [
        ("content", "Hi"),
        ("tool_call", ""),
        ("tool_result", "[success]\n2"),
        ("tool_result", "no"),
        ("done", "Hi all"),
        ("error", "no"),
        ("error", "the run was cancelled (user)"),
    ]
    data = [json.loads(one["data"]) for one in told]
    assert all((one["run_id"], one["session_id"]) == ("r", "s") for one in data)
    assert (data[1]["tool"], data[1]["arguments"], data[2]["call_id"]) == ("t", {"a": 1}, "c")
    assert (data[2]["status"], data[3]["status"]) == ("success", "timeout")
    assert (data[4]["state"], data[4]["usage"]["output_tokens"]) == ("completed", 2)
    assert (data[5]["kind"], data[5]["retryable"], data[6]["reason"]) == ("status", True, "user")
    assert all(set(one) == {"type", "rawContent", "data"} for one in told)


SILENT = [
    delta("thinking", channel="reasoning"),
    delta("a child's", chain_id="other"),
    make(ToolStartEvent, call_id="c", tool="t", arguments={}, raw_arguments="{}", attempt=2),
    make(
        ToolErrorEvent,
        call_id="c",
        tool="t",
        status="error",
        error=ErrorInfo(kind="k", message="m"),
        result="",
        will_retry=True,
    ),
    make(StateEvent, previous=S.IDLE, current=S.THINKING),
]


@pytest.mark.parametrize("event", SILENT, ids=lambda event: event.type)
def test_the_simple_form_passes_over_what_its_pages_do_not_show(event):
    assert simple(event) is None


def test_a_run_that_waits_is_done_for_now_in_the_simple_form():
    told = simple_pending("so far", (), "r", "s")
    assert (told["type"], told["rawContent"]) == ("done", "so far")
    assert json.loads(told["data"]) == {"run_id": "r", "session_id": "s", "state": "suspended", "pending": []}
    assert read(object_frame(told, "r:3", batch=True).decode()) == [("r:3", [told])]
