"""Every law of calls is obeyed by good logs and broken by at least one log that differs in one place."""

import pytest

from agentflow.events import (
    ApprovalEvent,
    QuestionEvent,
    ResolvedEvent,
    State,
    ToolDeltaEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.testing import law_of_calls
from agentflow.testing.laws import check_laws
from tests.testing.test_laws import (
    ASK,
    CANCELLED,
    CHILD,
    NESTED,
    NOTICE,
    TOOLS,
    changed,
    delta,
    final,
    inserted,
    log,
    make,
    record,
    state,
    tool_complete,
    tool_error,
    tool_start,
    without,
)

S = State


def approval(call_id="c0", **arguments):
    return make(ApprovalEvent, call_id=call_id, tool="add", arguments=arguments, arguments_hash="0" * 64)


def resolved(target, decision, **fields):
    return make(ResolvedEvent, target=target, decision=decision, **fields)


END = [
    tool_complete("c1"),
    state(S.EXECUTING_TOOLS, S.THINKING),
    delta("stop", 2),
    state(S.THINKING, S.COMPLETED, 2),
    final("stop", 2, tools=(record(), record("c1"))),
]
APPROVED = [
    *ASK,
    approval(),
    state(S.THINKING, S.EXECUTING_TOOLS),
    approval("c1"),
    state(S.EXECUTING_TOOLS, S.SUSPENDED),
    resolved("c0", "approved"),
    state(S.SUSPENDED, S.EXECUTING_TOOLS),
    tool_start(),
    tool_complete(),
    state(S.EXECUTING_TOOLS, S.SUSPENDED),
    resolved("c1", "amended", arguments={"key": "b"}),
    state(S.SUSPENDED, S.EXECUTING_TOOLS),
    make(ToolStartEvent, call_id="c1", tool="add", arguments={"key": "b"}, raw_arguments="{}"),
    *END,
]
ASKED = [
    *ASK,
    tool_start(),
    state(S.THINKING, S.EXECUTING_TOOLS),
    make(QuestionEvent, question_id="c0", text="Which?"),
    tool_start("c1"),
    make(QuestionEvent, question_id="c1", text="When?"),
    state(S.EXECUTING_TOOLS, S.SUSPENDED),
    resolved("c0", "answered", text="this"),
    state(S.SUSPENDED, S.EXECUTING_TOOLS),
    tool_complete(),
    state(S.EXECUTING_TOOLS, S.SUSPENDED),
    resolved("c1", "answered", text="now"),
    state(S.SUSPENDED, S.EXECUTING_TOOLS),
    *END,
]
AMENDED = [
    *ASK,
    tool_start(),
    state(S.THINKING, S.EXECUTING_TOOLS),
    tool_start("c1"),
    resolved("c0", "amended", arguments={}),
    resolved("c0", "amended", arguments={}),
    tool_error(status="amended", will_retry=True),
    tool_start(attempt=2),
    tool_complete(attempt=2),
    *END,
]
GOOD = {"approved": APPROVED, "asked": ASKED, "amended": AMENDED, "nested": NESTED}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_log_breaks_no_law(name):
    assert check_laws(log(*GOOD[name])) == []


BROKEN = {
    "a call is of another tool": (changed(NOTICE, 10, tool="sub"), "for another tool"),
    "a call closes twice": (inserted(NOTICE, 11, tool_complete()), "'c0' was closed before"),
    "a call closes without a start": (without(NOTICE, 9), "attempt 1 of call 'c1' is not open"),
    "an attempt starts twice": (inserted(NOTICE, 10, tool_start("c1")), "attempt 1 of call 'c1' is open"),
    "a delta is of no open call": (
        inserted(ASK + CANCELLED[7:], 9, make(ToolDeltaEvent, call_id="c1", tool="add", data=1)),
        "attempt 1 of call 'c1' is not open",
    ),
    "nobody asked for a call": (changed(NOTICE, 7, call_id="zz"), "no model asked for call 'zz'"),
    "a call id comes twice": (changed(TOOLS, 19, tool_calls=TOOLS[5].tool_calls), "'c0' was used before"),
    "a child uses a call id of its parent": (
        changed(NESTED, 12, tool_calls=NESTED[4].tool_calls),
        "'c0' was used before",
    ),
    "a call stays open": (without(CANCELLED, 11), "'c1' was never closed"),
    "a call is not even started": (without(CANCELLED, 9, 11), "'c1' was never closed"),
    "a retry never comes": (changed(CANCELLED, 11, will_retry=True), "'c1' was never closed"),
    "a run goes on after a cancelled call": (changed(TOOLS, 14, status="cancelled"), "comes after a cancelled call"),
    "a child has no call": (changed(NESTED, 6, child_chain_id=None), "begins with its input, after the call"),
    "a child has no input": (without(NESTED, 8), "begins with its input, after the call"),
    "a child has not ended": (without(NESTED, 14), "the chain 'k' of this call's agent has not ended before it"),
    "a child goes on after its end": (
        inserted(NESTED, 17, make(WarningEvent, code="late", message="", **CHILD)),
        "comes after the end of its chain",
    ),
    "a call runs before its approval": (without(APPROVED, 11, 12), "ran without approval, or not as it was approved"),
    "a rejected call runs": (changed(APPROVED, 11, decision="rejected"), "ran without approval"),
    "a call runs with other arguments": (changed(APPROVED, 13, arguments={"key": "x"}), "not as it was approved"),
    "a call runs with those before the amendment": (changed(APPROVED, 18, arguments={}), "not as it was approved"),
    "a call is decided twice": (
        inserted(APPROVED, 13, resolved("c0", "rejected")),
        "nothing waits for a decision on 'c0'",
    ),
    "a call is amended that has its result": (
        inserted(AMENDED, 15, resolved("c0", "amended", arguments={})),
        "nothing waits for a decision on 'c0'",
    ),
    "a call that runs is approved": (changed(AMENDED, 10, decision="approved"), "nothing waits for a decision on 'c0'"),
    "nobody was asked": (changed(ASKED, 13, target="zz"), "nothing waits for a decision on 'zz'"),
    "a call runs in a suspended chain": (changed(ASKED, 11, question_id="zz"), "suspended, but call 'c1' is running"),
    "a child works below a suspended chain": (
        inserted(NESTED, 12, state(S.EXECUTING_TOOLS, S.SUSPENDED)),
        "suspended, but call 'c0' is running",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_found(name):
    events, message = BROKEN[name]
    assert any(message in violation for violation in check_laws(events)), check_laws(events)


def test_each_law_is_broken_by_some_log_here():
    every = {*law_of_calls.LAWS, law_of_calls.every_call_is_closed}
    assert {law for law in every if any(list(law(events)) for events, _ in BROKEN.values())} == every


def test_a_log_may_stop_at_the_state_of_a_suspended_chain():
    assert check_laws(log(*ASKED[:13]), ended=False) == []
    assert check_laws(log(*ASKED[:11], ASKED[12]), ended=False) != []
