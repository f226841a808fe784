"""What a round asks for: which calls run and when, which are refused, and how the chain goes on after them."""

import msgspec
import pytest

from agentflow.events import State
from agentflow.messages import ToolCall
from agentflow.state import Ask, CallModel, Finish, Notice, RefuseTool, RunState, RunTool, Warn, reduce
from agentflow.state.rounds import calls_used, resume
from tests import builders as b

LIE = "All of it is done."


class Play:
    """A run by its rounds, each a word per call that says how the call ends: `ok`, or the status of its error."""

    def __init__(self, **limits):
        self.fold = b.Fold(**limits).all(b.begin())
        self.number = 0

    @property
    def chain(self):
        return self.fold.state.root

    def asks(self, *ids, names=None, text="", finish_reason="tool_calls"):
        """The model's reply with these calls; what is to be done about it."""
        self.number += 1
        calls = tuple(
            ToolCall(call_id=call_id, name=name, raw_arguments="{}")
            for call_id, name in zip(ids, names or ["look"] * len(ids), strict=True)
        )
        self.fold.add(b.model_start(self.number))
        if text:
            self.fold.add(b.delta(text, self.number))
        reply = b.model_complete(iteration=self.number, finish_reason=finish_reason)
        return self.fold.add(msgspec.structs.replace(reply, tool_calls=calls))

    def starts(self, call_id):
        return self.fold.add(b.tool_start(call_id, self.number))

    def ends(self, call_id, outcome="ok"):
        event = b.tool_complete if outcome == "ok" else b.tool_error
        fields = {} if outcome == "ok" else {"status": outcome}
        return self.fold.add(event(call_id, self.number, **fields))

    def round(self, outcomes):
        """A round of calls that end so; what is to be done after it."""
        words = outcomes.split()
        ids = [f"c{self.number + 1}.{position}" for position in range(len(words))]
        waiting = list(self.asks(*ids))
        ends = dict(zip(ids, words, strict=True))
        after = ()
        while waiting:
            command = waiting.pop(0)
            status = command.status if isinstance(command, RefuseTool) else ends[command.call_id]
            self.starts(command.call_id)
            after = self.ends(command.call_id, status)
            waiting += [more for more in after if isinstance(more, RunTool)]
        return after

    def answers(self, text, finish_reason="stop"):
        """The model's answer without calls; what is to be done about it."""
        return self.asks(text=text, finish_reason=finish_reason)


def ended(commands):
    """The reason of the end that these commands are, or None."""
    (command,) = commands
    return command.finish_reason if isinstance(command, Notice | Finish) else None


# -- which calls run -----------------------------------------------------------------------------------------


def test_calls_run_in_the_models_order_as_far_as_there_is_room():
    play = Play(max_parallel_tools=2)
    assert [command.call_id for command in play.asks("a", "b", "c", "d")] == ["a", "b"]
    play.starts("a")
    play.starts("b")
    assert [command.call_id for command in play.ends("b")] == ["c"]
    assert [command.call_id for command in play.ends("a")] == ["d"]


def test_a_sequential_call_has_the_round_to_itself_while_it_runs():
    play = Play(sequential=frozenset({"book"}))
    names = ["look", "look", "book", "look", "book", "book"]
    assert [command.call_id for command in play.asks(*"abcdef", names=names)] == ["a", "b"]
    begun = []
    for call_id in "abcdef":
        play.starts(call_id)
        begun.append("".join(command.call_id for command in play.ends(call_id) if isinstance(command, RunTool)))
    assert begun == ["", "c", "d", "e", "f", ""]


def test_a_call_between_two_attempts_keeps_its_room():
    play = Play(max_parallel_tools=1)
    play.asks("a", "b")
    play.starts("a")
    assert play.fold.add(b.tool_error("a", will_retry=True)) == ()
    play.fold.add(b.tool_start("a", attempt=2))
    (command,) = play.fold.add(b.tool_complete("a", attempt=2))
    assert command.call_id == "b"


def test_a_call_that_waits_for_a_human_gives_its_room_away():
    play = Play(max_parallel_tools=1)
    play.asks("a", "b")
    (command,) = play.fold.add(b.approval("a"))
    assert (command.call_id, play.chain.state) == ("b", State.EXECUTING_TOOLS)
    play.starts("b")
    assert play.ends("b") == ()
    assert play.chain.state is State.SUSPENDED


def test_calls_over_the_bound_of_a_reply_are_refused_and_the_model_goes_on():
    play = Play(max_round_calls=2)
    commands = play.asks(*"abcd")
    assert [(type(command), command.call_id) for command in commands] == [
        (RunTool, "a"),
        (RunTool, "b"),
        (RefuseTool, "c"),
        (RefuseTool, "d"),
    ]
    assert {(command.status, command.kind) for command in commands[2:]} == {("limit", "limit")}
    assert "at most 2" in commands[2].message
    assert isinstance(Play(max_round_calls=2).round("ok ok ok ok")[0], CallModel)


def test_calls_over_the_bound_of_the_run_are_refused_and_the_run_ends():
    play = Play(max_tool_calls=3)
    assert isinstance(play.round("ok ok")[0], CallModel)
    after = play.round("ok ok ok")
    assert [call.outcome for call in play.chain.round.calls] == ["success", "limit", "limit"]
    assert (ended(after), calls_used(play.fold.state)) == ("budget", 3)
    assert "limit of 3 tool calls" in after[0].text


def test_a_run_that_used_all_its_calls_may_still_answer():
    play = Play(max_tool_calls=2)
    assert isinstance(play.round("ok ok")[0], CallModel)
    assert ended(play.answers("There are two.")) == "stop"


@pytest.mark.parametrize("asked", [3, 5])
def test_where_both_bounds_are_reached_at_once_the_run_ends(asked):
    assert ended(Play(max_round_calls=2, max_tool_calls=2).round("ok " * asked)) == "budget"


def test_the_calls_of_all_chains_count():
    play = Play(max_tool_calls=3)
    play.asks("a")
    call = msgspec.structs.replace(b.tool_start("a"), child_chain_id="child")
    state, _ = reduce(play.fold.state, call)
    limits = msgspec.structs.replace(state.chain("child").limits, max_tool_calls=100)
    child = msgspec.structs.replace(state.chain("child"), limits=limits)
    state = msgspec.structs.replace(state, chains={**state.chains, "child": child})

    def below(event):
        return msgspec.structs.replace(event, chain_id="child", parent_chain_id="r")

    for event in (b.begin(), b.model_start()):
        state, _ = reduce(state, below(event))
    state, commands = reduce(state, below(b.model_complete("x", "y", "z")))
    assert [type(command) for command in commands] == [RunTool, RunTool, RefuseTool]
    assert commands[2].kind == "budget"


@pytest.mark.parametrize("reason", ["length", "content_filter", "error", "whatever"])
def test_calls_of_a_reply_that_was_cut_are_refused(reason):
    (command,) = Play().asks("a", finish_reason=reason)
    assert (type(command), command.status, command.kind) == (RefuseTool, "invalid_arguments", "truncated")


def test_in_the_last_round_no_call_is_run_and_the_run_ends():
    play = Play(max_iterations=2)
    play.round("ok")
    assert ended(play.round("ok ok")) == "max_iterations"
    assert [call.outcome for call in play.chain.round.calls] == ["limit", "limit"]


# -- corrections ---------------------------------------------------------------------------------------------

WRONG = ["invalid_arguments", "unknown_tool"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_model_is_corrected_three_times_in_a_row(wrong):
    play = Play()
    assert [ended(play.round(wrong)) for _ in range(4)] == [None, None, None, "budget"]


def test_invented_names_and_wrong_arguments_count_alike():
    play = Play()
    assert [ended(play.round(WRONG[number % 2])) for number in range(4)] == [None, None, None, "budget"]


@pytest.mark.parametrize("between", ["ok", "ok invalid_arguments"])
def test_a_success_ends_a_row(between):
    play = Play()
    for outcome in ["unknown_tool"] * 3 + [between] + ["unknown_tool"] * 3:
        assert ended(play.round(outcome)) is None
    assert ended(play.round("unknown_tool")) == "budget"


@pytest.mark.parametrize("between", ["error", "rejected", "timeout", "loop"])
def test_a_round_without_a_wrong_call_ends_a_row_too(between):
    play = Play()
    for outcome in ["unknown_tool"] * 3 + [between] + ["unknown_tool"] * 3:
        assert ended(play.round(outcome)) is None


def test_eight_corrections_are_all_that_a_run_has():
    play = Play()
    assert [ended(play.round("ok invalid_arguments invalid_arguments")) for _ in range(9)] == [None] * 8 + ["budget"]


def test_after_the_last_correction_a_good_round_goes_on():
    play = Play()
    for _ in range(8):
        play.round("ok unknown_tool")
    assert ended(play.round("ok")) is None
    assert ended(play.round("ok unknown_tool")) == "budget"


def test_without_corrections_the_first_wrong_call_ends_the_run():
    assert ended(Play(max_corrections=0).round("unknown_tool")) == "budget"


def test_the_words_of_the_end_are_the_users():
    play = Play(max_corrections=0)
    (notice,) = play.round("invalid_arguments")
    assert "not carried out" in notice.text


# -- loops ---------------------------------------------------------------------------------------------------


def test_a_model_that_goes_on_after_it_was_told_of_its_loop_is_stopped():
    play = Play()
    assert [ended(play.round(word)) for word in ("ok", "loop", "ok", "loop", "loop ok")] == [None] * 4 + ["loop"]


# -- answers -------------------------------------------------------------------------------------------------


def test_an_answer_ends_the_chain():
    assert ended(Play().answers("Hello.")) == "stop"
    assert ended(Play().answers("Hello", finish_reason="length")) == "length"


@pytest.mark.parametrize("outcome", ["error", "timeout", "rejected", "degraded", "rate_limited", "unknown_outcome"])
def test_an_answer_that_hides_failures_is_corrected_once(outcome):
    play = Play()
    play.round(f"{outcome} {outcome}")
    (command,) = play.answers(LIE)
    assert (type(command), command.code) == (Warn, "unsupported_success")
    warning = msgspec.structs.replace(b.warning(play.number), code=command.code, message=command.message)
    (again,) = play.fold.add(warning)
    assert again == CallModel("r", iteration=play.number + 1)
    assert play.chain.round.reply == command.message
    assert ended(play.answers(LIE)) == "stop"


@pytest.mark.parametrize(
    ("rounds", "supported"),
    [
        ([], True),
        (["ok"], True),
        (["error", "ok"], True),
        (["ok error"], True),
        (["ok", "error"], False),
        (["ok", "error error"], False),
        (["ok", "loop"], True),
        (["error", "loop"], False),
        (["ok error loop"], True),
        (["loop error"], False),
    ],
)
def test_the_last_results_say_whether_success_may_be_claimed(rounds, supported):
    play = Play()
    for outcomes in rounds:
        play.round(outcomes)
    assert isinstance(play.answers(LIE)[0], Warn) is not supported


@pytest.mark.parametrize("text", ["I am sorry, that failed.", "", "Which order do you mean?"])
def test_an_admission_is_left_alone(text):
    play = Play()
    play.round("error")
    assert ended(play.answers(text)) == "stop"


def test_a_refusal_is_left_alone():
    play = Play()
    play.round("error")
    assert ended(play.answers(LIE, finish_reason="refusal")) == "stop"


def test_at_the_last_round_the_answer_is_marked_and_not_asked_for_again():
    play = Play(max_iterations=2)
    play.round("error")
    (command,) = play.answers(LIE)
    warning = msgspec.structs.replace(b.warning(2), code=command.code, message=command.message)
    assert play.fold.add(warning) == (Finish("r", "stop"),)


# -- questions -----------------------------------------------------------------------------------------------

QUESTION = '{"question": "Which?", "options": ["a", "b"]}'


def test_a_reply_that_is_a_question_asks_the_user():
    assert Play().answers(QUESTION) == (Ask("r", "Which?", ("a", "b")),)
    assert ended(Play(questions=False).answers(QUESTION)) == "stop"


def test_calls_beside_a_question_run_first():
    play = Play()
    play.asks("a", text=QUESTION)
    play.starts("a")
    assert play.ends("a") == (Ask("r", "Which?", ("a", "b")),)


def test_in_the_last_round_a_question_is_an_answer():
    assert ended(Play(max_iterations=1).answers(QUESTION)) == "stop"


def test_of_a_run_without_calls_none_are_used():
    assert calls_used(RunState(run_id="r")) == 0


# -- after the death of the process --------------------------------------------------------------------------


def test_a_chain_that_was_about_to_do_something_is_told_it_again():
    play = Play()
    assert resume(play.fold.state, "r") == (CallModel("r", iteration=1),)
    after = play.round("ok error")
    assert resume(play.fold.state, "r") == after == (CallModel("r", iteration=2),)
    after = play.answers("It failed, sorry.")
    assert resume(play.fold.state, "r") == after == (Finish("r", "stop"),)


def test_a_chain_that_had_come_to_a_limit_ends_there_after_all():
    play = Play(max_corrections=0)
    after = play.round("unknown_tool")
    assert resume(play.fold.state, "r") == after
    assert ended(after) == "budget"


def test_a_user_who_had_answered_is_not_asked_again():
    play = Play()
    play.answers(QUESTION)
    play.fold.all(b.question("q"), b.resolved("q", "answered", text="a"))
    assert resume(play.fold.state, "r") == (CallModel("r", iteration=2),)
