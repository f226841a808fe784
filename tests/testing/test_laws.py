"""Every law is obeyed by good logs and broken by at least one log that differs in one place."""

import msgspec
import pytest

from agentflow.events import (
    CancelledEvent,
    DeltaEvent,
    ErrorInfo,
    FailedEvent,
    FinalEvent,
    GapEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RollbackEvent,
    RunError,
    State,
    StateEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolRecord,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.messages import ToolCall, Usage
from agentflow.state import TERMINAL_STATES
from agentflow.testing import law_of_calls, laws
from agentflow.testing.laws import LawError, assert_laws, check_laws

USAGE = Usage(input_tokens=3, output_tokens=2)
COMMON = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
S = State


def log(*events):
    """The events, numbered and timed."""
    return [
        msgspec.structs.replace(event, seq=seq, ts=f"2026-01-01T00:00:00.{seq:06}Z")
        for seq, event in enumerate(events, 1)
    ]


def make(kind, iteration=1, **fields):
    return kind(**COMMON | {"iteration": iteration} | fields)


def state(previous, current, iteration=1, **fields):
    return make(StateEvent, iteration, previous=previous, current=current, **fields)


def model_start(iteration=1, attempt=1):
    return make(
        ModelStartEvent, iteration, provider="p", model="m", attempt=attempt, messages=1, input_tokens_estimate=1
    )


def delta(text, iteration=1, **fields):
    return make(DeltaEvent, iteration, text=text, **fields)


def model_complete(iteration=1, *names):
    calls = tuple(ToolCall(call_id=f"c{number}", name=name, raw_arguments="{}") for number, name in enumerate(names))
    return make(ModelCompleteEvent, iteration, tool_calls=calls, usage=USAGE, duration_ms=1.0)


def tool_start(call_id="c0", tool="add", **fields):
    return make(ToolStartEvent, call_id=call_id, tool=tool, arguments={}, raw_arguments="{}", **fields)


def tool_complete(call_id="c0", tool="add", **fields):
    return make(ToolCompleteEvent, call_id=call_id, tool=tool, duration_ms=1.0, **{"result": "3"} | fields)


def tool_error(call_id="c0", tool="add", **fields):
    error = ErrorInfo(kind="failed", message="no")
    return make(ToolErrorEvent, call_id=call_id, tool=tool, error=error, result="no", **{"status": "error"} | fields)


def final(text, iteration=1, tools=(), usage=USAGE, **fields):
    fields = {"iterations": iteration} | fields
    return make(
        FinalEvent, iteration, text=text, finish_reason="stop", usage=usage, tools=tools, duration_ms=1.0, **fields
    )


def record(call_id="c0", status="success", result="3"):
    return ToolRecord(call_id=call_id, tool="add", arguments={}, status=status, result=result, duration_ms=1.0)


BEGIN = [
    make(InputEvent, 0, text="hi"),
    state(S.IDLE, S.THINKING, 0),
    model_start(),
    state(S.THINKING, S.AWAITING_MODEL),
]
ANSWER = [delta("a"), delta("b"), model_complete(), state(S.AWAITING_MODEL, S.THINKING)]
PLAIN = [*BEGIN, *ANSWER, state(S.THINKING, S.COMPLETED), final("ab")]

ASK = [*BEGIN, delta("so"), model_complete(1, "add", "add"), state(S.AWAITING_MODEL, S.THINKING)]
RUN = [*ASK, tool_start(), state(S.THINKING, S.EXECUTING_TOOLS), tool_start("c1")]
TOOLS = [
    *RUN,
    make(ToolDeltaEvent, call_id="c0", tool="add", data=1),
    tool_error("c1", will_retry=True),
    tool_complete(),
    tool_start("c1", attempt=2),
    tool_error("c1", attempt=2),
    state(S.EXECUTING_TOOLS, S.THINKING),
    model_start(2),
    state(S.THINKING, S.AWAITING_MODEL, 2),
    delta("c", 2),
    model_complete(2),
    state(S.AWAITING_MODEL, S.THINKING, 2),
    state(S.THINKING, S.COMPLETED, 2),
    final("c", 2, tools=(record(), record("c1", "error", "no")), usage=USAGE + USAGE),
]
RETRIED = [
    *BEGIN,
    delta("x"),
    make(RollbackEvent, attempt=1, reason="retry"),
    model_start(attempt=2),
    delta("a", attempt=2),
    delta("why", attempt=2, channel="reasoning"),
    model_complete(),
    state(S.AWAITING_MODEL, S.THINKING),
    state(S.THINKING, S.COMPLETED),
    final("a", usage=USAGE + USAGE),
]
NOTICE = [
    *RUN,
    tool_complete(),
    tool_complete("c1"),
    state(S.EXECUTING_TOOLS, S.THINKING),
    delta("stop", 2),
    state(S.THINKING, S.COMPLETED, 2),
    final("stop", 2, tools=(record(), record("c1"))),
]
CANCEL = make(CancelledEvent, reason="user", usage=USAGE, duration_ms=1.0)
CANCELLED = [
    *RUN,
    tool_error(status="cancelled"),
    tool_error("c1", status="cancelled"),
    state(S.EXECUTING_TOOLS, S.CANCELLED),
    CANCEL,
]
FAILED = [
    *BEGIN,
    delta("a"),
    state(S.AWAITING_MODEL, S.FAILED),
    make(FailedEvent, error=RunError(kind="truncated", message="cut"), usage=USAGE, duration_ms=1.0),
]
NEVER_BEGUN = [state(S.IDLE, S.CANCELLED, 0), make(CancelledEvent, 0, reason="user", usage=Usage(), duration_ms=0.0)]
CHILD = {"chain_id": "k", "parent_chain_id": "r", "path": ("agent", "child")}
NESTED = [
    *BEGIN,
    model_complete(1, "add"),
    state(S.AWAITING_MODEL, S.THINKING),
    tool_start(child_chain_id="k"),
    state(S.THINKING, S.EXECUTING_TOOLS),
    make(InputEvent, 0, text="do it", **CHILD),
    state(S.IDLE, S.THINKING, 0, **CHILD),
    make(ModelStartEvent, provider="p", model="m", messages=1, input_tokens_estimate=1, **CHILD),
    state(S.THINKING, S.AWAITING_MODEL, **CHILD),
    make(ModelCompleteEvent, usage=USAGE, duration_ms=1.0, **CHILD),
    state(S.AWAITING_MODEL, S.THINKING, **CHILD),
    state(S.THINKING, S.COMPLETED, **CHILD),
    tool_complete(),
    state(S.EXECUTING_TOOLS, S.THINKING),
    model_start(2),
    state(S.THINKING, S.AWAITING_MODEL, 2),
    delta("c", 2),
    model_complete(2),
    state(S.AWAITING_MODEL, S.THINKING, 2),
    state(S.THINKING, S.COMPLETED, 2),
    final("c", 2, tools=(record(),), usage=USAGE + USAGE + USAGE),
]

GOOD = {
    "plain": PLAIN,
    "tools": TOOLS,
    "retried": RETRIED,
    "notice": NOTICE,
    "cancelled": CANCELLED,
    "failed": FAILED,
    "never begun": NEVER_BEGUN,
    "nested": NESTED,
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_log_breaks_no_law(name):
    assert check_laws(log(*GOOD[name])) == []
    assert_laws(log(*GOOD[name]))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_log_may_stop_after_any_append_when_it_need_not_have_ended(name):
    events = log(*GOOD[name])
    for length in range(len(events)):
        before_an_end = length and getattr(events[length - 1], "current", None) in TERMINAL_STATES
        if not before_an_end and not isinstance(events[length], StateEvent):
            assert check_laws(events[:length], ended=False) == []


def changed(events, position, **fields):
    """The log with other fields in one event."""
    events = log(*events)
    events[position] = msgspec.structs.replace(events[position], **fields)
    return events


def without(events, *positions):
    gone = {position % len(events) for position in positions}
    return log(*(event for position, event in enumerate(events) if position not in gone))


def inserted(events, position, *more):
    return log(*events[:position], *more, *events[position:])


BROKEN = {
    "a number is missing": (changed(PLAIN, 4, seq=9), "seq 9 (delta) stands at place 5"),
    "the run id changes": (changed(PLAIN, 4, run_id="q"), "run_id changes"),
    "the session changes": (changed(PLAIN, 4, session_id="q"), "session_id changes"),
    "the trace changes": (changed(PLAIN, 4, trace_id="1" * 32), "trace_id changes"),
    "the trace id is no trace id": ([changed(PLAIN, 0, trace_id="x")[0]], "not 32 hex digits"),
    "a time stamp is local": (changed(PLAIN, 4, ts="2026-01-01T00:00:00.000005"), "is not RFC 3339"),
    "time goes back": (changed(PLAIN, 4, ts="2025-01-01T00:00:00.000000Z"), "is before that of the event before"),
    "a chain moves": (changed(PLAIN, 4, path=("other",)), "changes its parent or path"),
    "a child has no parent": (changed(PLAIN, 4, chain_id="k"), "the root, and only it"),
    "a parent is unknown": (changed(PLAIN, 4, **CHILD | {"parent_chain_id": "z"}), "the parent 'z' has no event"),
    "a delta is too large": (changed(PLAIN, 4, text="x" * 262_144), "more than 262144"),
    "an event is too large": (changed(PLAIN, 0, text="x" * 1_048_576), "more than 1048576"),
    "a result is too large": (changed(NOTICE, 10, result="x" * 65_537), "a result of 65537 bytes"),
    "a gap is stored": (
        inserted(PLAIN, 5, make(GapEvent, after_seq=1, next_seq=3, missed=1)),
        "never in a log",
    ),
    "there is no input": (without(PLAIN, 0), "begins with its input"),
    "there is no end": (without(PLAIN, -1), "does not end with a terminal event"),
    "there are two ends": (log(*PLAIN, state(S.THINKING, S.CANCELLED), CANCEL), "is not the last event"),
    "something follows the end": (
        log(*PLAIN, make(WarningEvent, code="late", message="")),
        "(final): a terminal event is not the last event",
    ),
    "a child ends the run": (changed(PLAIN, -1, **CHILD), "is its root's"),
    "the last state is missing": (without(PLAIN, -2), "the state into completed must stand directly before it"),
    "the last state is another": (changed(FAILED, -2, current=S.CANCELLED), "the state into failed must stand"),
    "states do not chain up": (changed(PLAIN, 3, previous=S.IDLE), "but the chain was thinking"),
    "a state changes nothing": (
        inserted(PLAIN, 5, state(S.AWAITING_MODEL, S.AWAITING_MODEL)),
        "changes nothing",
    ),
    "a state has no cause": (
        inserted(PLAIN, 0, state(S.IDLE, S.THINKING)),
        "beside no event that could have caused it",
    ),
    "a cause changes a chain twice": (
        inserted(PLAIN, 4, state(S.AWAITING_MODEL, S.THINKING)),
        "beside no event that could have caused it",
    ),
    "a child is ended by something else": (
        inserted(NESTED, 11, state(S.THINKING, S.COMPLETED, 0, **CHILD)),
        "beside no event that could have caused it",
    ),
    "a child changes on behalf of its parent": (
        inserted(NESTED, 16, state(S.COMPLETED, S.THINKING, **CHILD)),
        "beside no event that could have caused it",
    ),
    "a state is not in the table": (changed(PLAIN, 3, current=S.EXECUTING_TOOLS), "cannot lead from thinking"),
    "an event is not allowed": (inserted(PLAIN, 2, model_complete()), "not allowed in state thinking"),
    "a state is missing": (without(PLAIN, 1), "but the chain cannot stay idle"),
    "a round goes back": (changed(TOOLS, 20, iteration=1), "round 1 after round 2"),
    "a round is left out": (changed(TOOLS, 16, iteration=3), "round 3, attempt 1, expected (2, 1)"),
    "an attempt is left out": (changed(RETRIED, 6, attempt=3), "round 1, attempt 3, expected (1, 2)"),
    "an attempt is not rolled back": (without(RETRIED, 5), "neither whole nor rolled back"),
    "a rollback is for another attempt": (changed(RETRIED, 5, attempt=2), "ends no open model call"),
    "a delta is of another attempt": (changed(RETRIED, 7, attempt=1), "round 1, attempt 1 is not the open one"),
    "a delta is of another round": (changed(PLAIN, 5, iteration=2), "round 2, attempt 1 is not the open one"),
    "a delta has no model call": (inserted(PLAIN, 8, delta("x")), "which has no open model call"),
    "a tool is overtaken by a round": (changed(NOTICE, 7, iteration=2), "a tool of round 2"),
    "a result is told wrongly": (changed(NOTICE, 11, result="x"), "is ('add', 'success', '3') in tools"),
    "the text is not the answer": (changed(PLAIN, -1, text="a"), "is not the joined answer"),
    "the text has a void attempt": (changed(RETRIED, -1, text="xa"), "is not the joined answer"),
    "the text has an earlier round": (changed(TOOLS, -1, text="soc"), "is not the joined answer"),
    "the rounds are miscounted": (changed(TOOLS, -1, iterations=1), "but the last round is 2"),
    "a call is not told": (changed(TOOLS, -1, tools=(record(),)), "call 'c1' is None in tools"),
    "a call is made up": (changed(PLAIN, -1, tools=(record(),)), "None in the log"),
    "the usage is not the sum": (changed(PLAIN, -1, usage=USAGE + USAGE), "sum up to"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_found(name):
    events, message = BROKEN[name]
    assert any(message in violation for violation in check_laws(events)), check_laws(events)


OWN_LAWS = {*laws._LAWS, *laws._LAWS_OF_AN_END} - {*law_of_calls.LAWS, law_of_calls.every_call_is_closed}


def test_each_law_is_broken_by_some_log_here():
    broken = {law.__name__ for law in OWN_LAWS if any(list(law(events)) for events, _ in BROKEN.values())}
    assert broken == {law.__name__ for law in OWN_LAWS}


def test_all_violations_and_the_outline_are_told():
    with pytest.raises(LawError, match=r"seq 9(.|\n)*does not end(.|\n)*the log: 1:input 2:state"):
        assert_laws(changed(PLAIN[:-2], 4, seq=9))


def test_an_empty_log_has_no_end_but_may_be_one_that_failed():
    assert check_laws([]) == ["the log does not end with a terminal event"]
    assert check_laws([], ended=False) == []


def test_the_texts_in_final_tools_may_be_cut_to_fit():
    text = "x" * 60_000
    names = ["add"] * 10
    events = [
        *BEGIN,
        model_complete(1, *names),
        state(S.AWAITING_MODEL, S.THINKING),
        tool_start(),
        state(S.THINKING, S.EXECUTING_TOOLS),
        *(tool_start(f"c{number}") for number in range(1, 10)),
        *(tool_complete(f"c{number}", result=text) for number in range(10)),
        state(S.EXECUTING_TOOLS, S.THINKING),
        delta("stop", 2),
        state(S.THINKING, S.COMPLETED, 2),
        final("stop", 2, tools=tuple(record(f"c{number}", result=text[:-1]) for number in range(10))),
    ]
    assert check_laws(log(*events)) == []
