"""What is not allowed raises and changes nothing; the same events always give the same state."""

import msgspec
import pytest

from agentflow.errors import InvalidTransition
from agentflow.events import EVENT_CLASSES, EventType, State
from agentflow.state import TABLE, Finish, Notice, RunState, reduce
from tests import builders as b

# One run per state, stopped there, with a call that is open where there can be one.
STOPPED = {
    State.IDLE: [],
    State.THINKING: [b.begin()],
    State.AWAITING_MODEL: [b.begin(), b.model_start()],
    State.EXECUTING_TOOLS: [b.begin(), b.model_start(), b.model_complete("c1"), b.tool_start("c1")],
    State.SUSPENDED: [b.begin(), b.model_start(), b.model_complete("c1"), b.approval("c1")],
    State.COMPLETED: [b.begin(), b.final(RunState(run_id="r"))],
    State.FAILED: [b.begin(), b.failed()],
    State.CANCELLED: [b.begin(), b.cancelled()],
}
EVENTS = {
    event.type: event
    for event in (
        b.begin(), b.model_start(), b.delta("x"), b.rollback(), b.model_complete(), b.tool_start("c1"),
        b.tool_delta("c1"),
        b.tool_complete("c1"), b.tool_error("c1"), b.question("q"), b.approval("c1"), b.resolved("c1", "approved"),
        b.summary(), b.warning(), b.final(RunState(run_id="r")), b.failed(), b.cancelled(),
    )
}  # fmt: skip


ILLEGAL = [(state, event) for state in State for event in EVENTS if event not in TABLE[state]]


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_a_pair_that_is_not_in_the_table_raises_and_leaves_the_state(state, event):
    fold = b.Fold().all(*STOPPED[state])
    before = fold.state
    assert before.root.state is state
    with pytest.raises(InvalidTransition, match=rf"{event.value}.*{state.value}"):
        reduce(before, EVENTS[event])
    assert fold.state is before


def test_all_events_but_outputs_are_reduced():
    assert {cls.type for cls in EVENT_CLASSES} - set(EVENTS) == {EventType.STATE, EventType.GAP}


def test_a_state_event_is_an_output_and_changes_nothing():
    fold = b.Fold().all(b.begin())
    assert reduce(fold.state, fold.log[-1]) == (fold.state, ())


CALL = STOPPED[State.EXECUTING_TOOLS]


@pytest.mark.parametrize(
    ("begun", "event"),
    [
        ([b.begin()], b.model_start(2)),
        ([b.begin()], b.model_start(1, attempt=2)),
        ([b.begin()], b.delta("x", 0)),
        (STOPPED[State.AWAITING_MODEL], b.model_start()),
        (STOPPED[State.AWAITING_MODEL], b.model_start(attempt=3)),
        (STOPPED[State.AWAITING_MODEL], b.delta("x", attempt=2)),
        (STOPPED[State.AWAITING_MODEL], b.delta("x", iteration=2)),
        (STOPPED[State.AWAITING_MODEL], b.rollback(attempt=2)),
        (STOPPED[State.AWAITING_MODEL], b.model_complete(iteration=2)),
        ([*STOPPED[State.AWAITING_MODEL], b.delta("x")], b.model_start(attempt=2)),
        ([*STOPPED[State.AWAITING_MODEL], b.rollback()], b.delta("x")),
        ([*STOPPED[State.AWAITING_MODEL], b.rollback()], b.rollback()),
        ([*STOPPED[State.AWAITING_MODEL], b.rollback()], b.model_complete()),
        (CALL, b.tool_start("c1")),
        (CALL, b.tool_start("c1", attempt=2)),
        (CALL, b.tool_start("unknown")),
        ([*STOPPED[State.AWAITING_MODEL], b.model_complete("c1")], b.tool_start("c1", attempt=2)),
        ([*CALL, b.tool_error("c1", will_retry=True)], b.tool_start("c1", attempt=1)),
        (CALL, b.tool_complete("unknown")),
        (CALL, b.tool_complete("c1", attempt=2)),
        (CALL, b.tool_error("c1", attempt=2)),
        (CALL, b.tool_delta("c1", attempt=2)),
        (CALL, b.tool_delta("unknown")),
        (CALL, b.approval("c1")),
        (CALL, b.question("q")),
        (CALL, b.resolved("c1", "approved")),
        (CALL, b.failed()),
        (CALL, b.cancelled()),
        ([*CALL, b.tool_complete("c1")], b.tool_start("c1", attempt=2)),
        (STOPPED[State.SUSPENDED], b.resolved("unknown", "approved")),
        (STOPPED[State.SUSPENDED], b.cancelled()),
        ([b.begin()], b.question("q")),
    ],
)
def test_an_event_that_does_not_fit_the_data_raises(begun, event):
    fold = b.Fold().all(*begun)
    before = fold.state
    with pytest.raises(InvalidTransition):
        fold.add(event)
    assert fold.state is before


TWO = [b.begin(), b.model_start(), b.model_complete("c1", "c2"), b.tool_start("c1"), b.tool_start("c2")]


@pytest.mark.parametrize(
    "event",
    [b.tool_complete("c2"), b.tool_error("c2"), b.tool_delta("c2"), b.question("c2"), b.summary()],
)
def test_once_a_call_is_cancelled_only_the_end_can_follow(event):
    fold = b.Fold().all(*TWO, b.tool_error("c1", status="cancelled"))
    with pytest.raises(InvalidTransition, match="the run is ending"):
        fold.add(event)
    fold.all(b.warning(), b.tool_error("c2", status="cancelled"), b.cancelled())
    assert fold.state.ended


def test_only_the_root_ends_a_run():
    fold = b.Fold().all(b.begin())
    child = msgspec.structs.replace(b.failed(), chain_id="child", parent_chain_id="r")
    with pytest.raises(InvalidTransition, match="only the root"):
        reduce(fold.state, child)


def test_chains_of_a_run_are_folded_apart():
    child = msgspec.structs.replace(b.begin("sub"), chain_id="child", parent_chain_id="r")
    state, commands = reduce(b.Fold().all(b.begin("top")).state, child)
    assert (state.chain("child").input, state.root.input, commands[0].chain_id) == ("sub", "top", "child")


def test_the_usage_of_a_chain_is_the_sum_of_its_rounds():
    fold = b.Fold().all(*CALL, b.tool_complete("c1"), b.model_start(2), b.model_complete(iteration=2))
    assert fold.state.root.usage == b.USAGE + b.USAGE


def test_folding_a_log_with_its_state_events_gives_the_same_state():
    fold = b.Fold().all(*TWO, b.tool_complete("c1"), b.tool_complete("c2"), b.model_start(2), b.delta("x", 2))
    state = RunState(run_id="r")
    for event in fold.log:
        state, _ = reduce(state, event)
    assert state == fold.state


@pytest.mark.parametrize("begun", [[], [b.begin()], STOPPED[State.AWAITING_MODEL], CALL])
def test_a_correction_where_no_answer_is_judged_is_a_note_like_any_other(begun):
    fold = b.Fold().all(*begun)
    before = fold.state.root
    assert fold.add(b.output_invalid()) == ()
    assert fold.state.root == msgspec.structs.replace(before, warnings=("output_invalid",))


def test_a_reply_that_failed_is_answered_by_the_framework_only_if_it_was_told_how():
    failed = [*STOPPED[State.AWAITING_MODEL], b.model_complete(finish_reason="error")]
    assert b.Fold().all(*failed).commands == (Finish("r", "stop"),)
    assert b.Fold(degraded="Not now.").all(*failed).commands == (Notice("r", "Not now.", "degraded"),)
