import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.memory.pairing import repair
from agentflow.messages import Message, unpaired
from tests.memory.histories import BROKEN, assert_sendable, call, paired_turns, result, says, user


def shown(messages):
    """A history in short: texts, and ids of calls and results."""
    return [
        message.call_id if message.role == "tool" else (message.text, *(one.call_id for one in message.tool_calls))
        for message in messages
    ]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([user(), says("", call("a"))], [("hello",), ("", "a"), "a"], id="a call without a result"),
        pytest.param(
            [user(), says("", call("a"), call("b"), call("c")), result("c"), result("a"), user("stop")],
            [("hello",), ("", "a", "b", "c"), "a", "b", "c", ("stop",)],
            id="three calls, two results, stopped (B021)",
        ),
        pytest.param(
            [user(), says("", call("a")), result("a"), result("a"), says()],
            [("hello",), ("", "a"), "a", ("hi",)],
            id="a result given twice (B023)",
        ),
        pytest.param([result("a"), user(), result("b")], [("hello",)], id="results without a call (B025)"),
        pytest.param(
            [says("", call("a")), user("well?"), result("a"), says()],
            [("", "a"), "a", ("well?",), ("hi",)],
            id="a result that came late stands beside its call",
        ),
        pytest.param(
            [says("", call("x")), result("x"), says("", call("x")), result("x")],
            [("", "x"), "x", ("", "x-2"), "x-2"],
            id="one id for every call of the session (B016, B018)",
        ),
        pytest.param(
            [says("", call("x"), call("x")), result("x"), result("x")],
            [("", "x", "x-2"), "x", "x-2"],
            id="one id for two calls of a message (B001)",
        ),
        pytest.param(
            [says("", call("x"), call("x-2")), result("x"), result("x-2"), says("", call("x")), result("x")],
            [("", "x", "x-2"), "x", "x-2", ("", "x-3"), "x-3"],
            id="a new id is nobody else's",
        ),
        pytest.param(
            [says("", call(""), call(" ")), result(""), result(" ")],
            [("", "call-2", "call-3"), "call-2", "call-3"],
            id="blank ids (B006)",
        ),
        pytest.param(
            [says("", call("a"), call("b")), says("", call("c")), result("a"), result("c"), result("b")],
            [("", "a", "b"), "a", "b", ("", "c"), "c"],
            id="calls of two messages answered in a heap",
        ),
        pytest.param(
            [Message(role="user", content="odd", tool_calls=(call("a"),)), result("a")],
            [("odd",)],
            id="only an assistant calls",
        ),
    ],
)
def test_every_call_has_one_result_beside_it(messages, expected):
    repaired = repair(messages)
    assert shown(repaired) == expected
    assert_sendable(repaired)


def test_results_stay_with_their_calls_where_ids_are_used_again():
    history = [says("", call("x")), result("x", "first"), says("", call("x")), result("x", "second")]
    assert [message.text for message in repair(history) if message.role == "tool"] == ["first", "second"]


def test_a_call_without_a_result_is_told_as_one_whose_outcome_is_unknown():
    assert repair([says("", call("a"))])[-1].text.startswith("[error: unknown_outcome]\n")


@pytest.mark.parametrize("blank", ["", " \n", "null", " null "])
def test_blank_arguments_are_an_empty_object(blank):
    assert repair([says("", call("a", blank)), result("a")])[0].tool_calls[0].raw_arguments == "{}"


def test_arguments_that_say_something_stay_as_they_came():
    assert repair([says("", call("a", '{"a": 1'))])[0].tool_calls[0].raw_arguments == '{"a": 1'


def test_ids_taken_by_others_are_not_used_again():
    assert shown(repair([says("", call("a")), result("a")], taken={"a", "a-2"})) == [("", "a-3"), "a-3"]


def test_ten_thousand_calls_of_one_id_are_paired():
    history = [message for _ in range(10_000) for message in (says("", call("x")), result("x"))]
    assert unpaired(repair(history)) is None


@given(paired_turns())
def test_a_paired_history_is_left_alone(messages):
    assert repair(messages) == messages


@given(BROKEN, st.sets(st.sampled_from(["a", "b", "call_1", "call-2"])))
def test_any_history_is_paired_and_repairing_twice_changes_nothing(messages, taken):
    repaired = repair(messages, taken)
    assert_sendable((user(), *repaired))
    assert repair(repaired, taken) == repaired
    assert not taken & {one.call_id for message in repaired for one in message.tool_calls}


@given(BROKEN)
def test_nothing_but_results_is_left_out(messages):
    spoken = [(message.role, message.content) for message in messages if message.role != "tool"]
    assert [(message.role, message.content) for message in repair(messages) if message.role != "tool"] == spoken
