"""Readings of the state: the messages a provider is shown, what a session keeps, and the record of the calls."""

from agentflow.events import State
from agentflow.messages import Message, unpaired
from agentflow.state import RunState, kept_messages, tool_records, turn_messages
from tests import builders as b


def test_nothing_is_known_of_a_run_that_has_not_begun():
    state = RunState(run_id="r")
    assert (state.root.state, state.ended, state.root.iteration) == (State.IDLE, False, 0)
    assert (turn_messages(state.root), kept_messages(state.root), tool_records(state.root)) == ((), (), ())


def test_the_messages_of_a_run_are_its_rounds():
    fold = b.Fold().all(
        b.begin("hello"), b.model_start(), b.delta("hm", channel="reasoning"), b.delta("Look: "),
        b.model_complete("c1", "c2"),
        b.tool_start("c1"), b.tool_start("c2"), b.tool_error("c2"), b.tool_complete("c1"), b.model_start(2),
        b.delta("Done", 2),
    )  # fmt: skip
    user, first, one, two, last = turn_messages(fold.state.root)
    assert user == Message(role="user", content="hello")
    assert (first.content, first.reasoning, [c.call_id for c in first.tool_calls]) == ("Look: ", "hm", ["c1", "c2"])
    assert (one.call_id, one.content, two.call_id, two.content) == ("c1", "[success]\nok", "c2", "[error: error]")
    assert last == Message(role="assistant", content="Done")
    assert unpaired((user, first, one, two, last)) is None


def test_what_a_session_keeps_ends_with_the_assistant():
    fold = b.Fold().all(b.begin(), b.failed(0))
    assert [m.content for m in kept_messages(fold.state.root)] == ["hello", "[no answer: the run failed]"]
    fold = b.Fold().all(b.begin(), b.model_start(), b.delta("half"), b.cancelled())
    assert [m.content for m in kept_messages(fold.state.root)] == ["hello", "half"]


def test_a_rolled_back_text_is_in_no_message():
    fold = b.Fold().all(b.begin(), b.model_start(), b.delta("half"), b.rollback())
    assert [m.role for m in turn_messages(fold.state.root)] == ["user"]


def test_an_answer_to_a_question_in_the_text_is_a_message_of_the_user():
    fold = b.Fold().all(b.begin(), b.model_start(), b.delta("Which?"), b.model_complete(), b.question("q"))
    fold.add(b.resolved("q", "answered", text="blue"))
    assert [(m.role, m.content) for m in turn_messages(fold.state.root)][1:] == [
        ("assistant", "Which?"),
        ("user", "blue"),
    ]


def test_records_tell_the_last_outcome_and_the_whole_time():
    fold = b.Fold().all(
        b.begin(), b.model_start(), b.model_complete("c1"), b.tool_start("c1"), b.tool_error("c1", will_retry=True),
        b.tool_start("c1", attempt=2), b.tool_complete("c1", attempt=2),
    )  # fmt: skip
    (record,) = tool_records(fold.state.root)
    assert (record.call_id, record.status, record.result, record.arguments) == ("c1", "success", "[success]\nok", {})


def test_a_call_is_found_in_its_round_only():
    fold = b.Fold().all(b.begin(), b.model_start(), b.model_complete("c1"), b.tool_start("c1"))
    call = fold.state.root.find("c1")
    assert (call.status, call.started, fold.state.root.find("c2")) == ("running", True, None)
    fold.all(b.tool_complete("c1"), b.model_start(2))
    assert fold.state.root.find("c1") is None


def test_a_reply_that_failed_is_in_no_message_once_another_answer_took_its_place():
    fold = b.Fold(degraded="Not now.").all(
        b.begin(), b.model_start(), b.delta("half"), b.model_complete(finish_reason="error")
    )
    assert [m.content for m in turn_messages(fold.state.root)][1:] == ["half"]  # until then it is all there is
    fold.add(b.delta("Not now.", 2))
    assert [m.content for m in turn_messages(fold.state.root)][1:] == ["Not now."]


def test_a_correction_is_said_as_by_the_user():
    fold = b.Fold().all(b.begin(), b.model_start(), b.delta("cold"), b.model_complete(), b.output_invalid())
    messages = [(m.role, m.content) for m in turn_messages(fold.state.root)]
    assert messages[1:] == [("assistant", "cold"), ("user", "Answer again.")]
    assert kept_messages(fold.state.root)[-1].role == "assistant"
