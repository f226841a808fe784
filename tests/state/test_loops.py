"""The loop guard, on rounds written out as text: a call is a letter, its result a digit."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import InvalidTransition
from agentflow.messages import ToolCall
from agentflow.state import Call, ChainState, Round
from agentflow.state.loops import MAX_PERIOD, guard, is_stuck

REFUSED = "[error: loop]\nthis call was made before"


def made(name, call_id="", arguments=None, **fields):
    arguments = {"q": name} if arguments is None else arguments
    call = ToolCall(call_id=call_id or name, name=name, raw_arguments=fields.pop("raw", json.dumps(arguments)))
    return Call(call, arguments=arguments, **fields)


def done(name, result="1", **fields):
    return made(name, **{"status": "closed", "outcome": "success", "result": result} | fields)


def ran(text):
    """A round that is over: "A1 B2" is a call of A with the result 1 beside one of B with the result 2."""
    words = text.split()
    outcomes = {"!": "loop", "-": "rejected", "x": "error"}
    return Round(calls=tuple(done(word[0], word[1], outcome=outcomes.get(word[1], "success")) for word in words))


def chain(*rounds):
    return ChainState(rounds=tuple(ran(turn) if isinstance(turn, str) else turn for turn in rounds))


def judge(*earlier, asks, idempotent=True, at=-1):
    """The verdict on a call of the round `asks`, a word such as "AB"; the last one if not said otherwise."""
    calls = tuple(made(name, f"c{n}") for n, name in enumerate(asks))
    judged = calls[at]
    state = chain(*earlier, Round(calls=calls))
    return guard(state, judged.call.call_id, judged.arguments, idempotent=idempotent)


@pytest.mark.parametrize(
    ("earlier", "asks"),
    [
        (["A1", "A1"], "A"),
        (["B1", "A1", "A1"], "A"),
        (["A1", "B1", "A1", "B1"], "A"),
        (["A1", "B1", "C1", "A1", "B1", "C1"], "A"),
        (["A1 B1", "A1 B1"], "A"),
        (["A1 B1", "A1 B1"], "AB"),
        (["A1 A1"], "A"),
        (["A1 A2", "A1 A2"], "AA"),
        (["A1 B1", "C1", "A1 B1", "C1"], "AB"),
        (["A1", "B1", "A1", "B1"], "ABA"),
        (["Ax", "Ax"], "A"),
        (["A1", "B-", "A1"], "A"),
        (["A1", "A1", "A!"], "A"),
        (["A1", "B1", "A1", "B1", "A!"], "B"),
        (["A1", "C1", "A2", "B1", "A1", "C1", "A2", "B1", "A!"], "C"),
        (["A1 B1", "A1 B1", "A! B!"], "AB"),
    ],
)
def test_what_went_round_twice_is_not_run_again(earlier, asks):
    assert judge(*earlier, asks=asks) == "loop"


@pytest.mark.parametrize(
    ("earlier", "asks"),
    [
        ([], "A"),
        ([], "AAA"),
        (["A1"], "AAA"),
        (["A1"], "A"),
        (["A1", "A2"], "A"),
        (["A1", "A2", "A3"], "A"),
        (["A1", "A1"], "B"),
        (["A1", "A1"], "BA"),
        (["A1", "A1", "B1"], "A"),
        (["A1", "B1", "A1", "B2"], "A"),
        (["A1", "B1", "A1", "B1"], "B"),
        (["A1", "B1", "A1"], "B"),
        (["A1 B1", "A1 B1"], "CB"),
        (["A1 B1", "A1 B1"], "BB"),
        (["A1", "B-", "A2"], "A"),
        (["A-", "A-", "A-"], "A"),
    ],
)
def test_what_did_not_is_run(earlier, asks):
    assert judge(*earlier, asks=asks) == "run"


@pytest.mark.parametrize("outcome", ["invalid_arguments", "unknown_tool", "rejected", "limit", "cancelled", "amended"])
def test_calls_that_never_ran_are_no_steps(outcome):
    refused = Round(calls=(done("B", outcome=outcome), done("A", outcome=outcome)))
    assert judge("A1", refused, "A1", refused, asks="A") == "loop"
    assert judge("A1", refused, refused, asks="A") == "run"
    asked = Round(calls=(done("B", call_id="b", outcome=outcome), made("A", "a")))
    assert guard(chain("A1", "A1", asked), "a", {"q": "A"}, idempotent=True) == "loop"


@pytest.mark.parametrize("outcome", ["error", "timeout", "rate_limited", "degraded", "unknown_outcome"])
def test_calls_that_failed_alike_are_steps(outcome):
    failed = Round(calls=(done("A", outcome=outcome),))
    assert judge(failed, failed, asks="A") == "loop"


def test_the_longest_cycle_is_found_and_a_longer_one_is_not():
    names = "ABCDEFGHIJKLMNOPQ"
    for length, verdict in [(16, "loop"), (17, "run")]:
        period = [f"{name}1" for name in names[:length]]
        assert judge(*period, *period, asks="A") == verdict


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, "loop"),
        ({"a": 1}, {"a": "1"}, "run"),
        ({"a": 1}, {"a": True}, "run"),
        ({"a": 1}, {"a": 1.0}, "run"),
        ({}, {"a": None}, "run"),
        ({"a": "\ud800é"}, {"a": "\ud800é"}, "loop"),
    ],
)
def test_arguments_are_compared_as_json(one, other, verdict):
    turns = [Round(calls=(done("A", arguments=one),))] * 2
    assert guard(chain(*turns, Round(calls=(made("A", "c"),))), "c", other, idempotent=True) == verdict


def test_calls_are_compared_by_what_they_ran_with_not_by_the_models_words():
    turns = [Round(calls=(done("A", raw=raw),)) for raw in ('{"q":"A"}', "{q: 'A'}")]
    assert guard(chain(*turns, Round(calls=(made("A", "c"),))), "c", {"q": "A"}, idempotent=True) == "loop"


def test_another_tool_with_the_same_arguments_is_another_call():
    turns = [Round(calls=(done("A", arguments={}),))] * 2
    assert guard(chain(*turns, Round(calls=(made("B", "c"),))), "c", {}, idempotent=True) == "run"


def test_calls_that_wait_for_their_arguments_are_compared_in_the_models_words():
    first, second = made("A", "a", raw='{ "q" : "A" }'), made("B", "b")
    waiting = Round(calls=(Call(first.call), Call(second.call)))
    assert guard(chain("A1 B1", "A1 B1", waiting), "b", {"q": "B"}, idempotent=True) == "loop"


@pytest.mark.parametrize("raw", ["{'q': 'A'", "[" * 100_000, "1" * 10_000])
def test_words_that_are_no_json_are_compared_as_text(raw):
    turns = [Round(calls=(done("A", raw=raw),))] * 2
    same, other = made("A", "a", raw=raw), made("A", "a", raw=raw + " ")
    for asked, verdict in [(same, "loop"), (other, "run")]:
        state = chain(*turns, Round(calls=(asked, made("A", "b", raw=raw))))
        assert guard(state, "b", {"q": "A"}, idempotent=True) == verdict


@pytest.mark.parametrize(
    ("earlier", "asks", "first"),
    [
        (["A1"], "A", "A"),
        (["B1", "A1"], "A", "A"),
        (["A1 B2"], "AB", "B"),
        (["A1 B2"], "BA", "A"),
        (["A1 B2"], "ABC", None),
        (["A1 B2"], "CBA", "A"),
        (["A1 B2"], "A", None),
        (["A1 B-"], "A", "A"),
        (["A1 Bx"], "BA", "A"),
        (["A1 Bx"], "AB", None),
        (["A1 A1 B1"], "BA", None),
        (["A1", "B1"], "A", None),
        (["A-"], "A", None),
        ([], "AA", None),
    ],
)
def test_a_round_asked_again_is_answered_from_the_first(earlier, asks, first):
    verdict = judge(*earlier, asks=asks, idempotent=False)
    assert (verdict if verdict == "run" else verdict.call.name) == (first or "run")
    assert judge(*earlier, asks=asks, idempotent=True) == "run"


def test_a_round_that_the_user_has_spoken_after_is_not_the_one_before():
    assert judge("A1", Round(text="Which?", reply="again"), asks="A", idempotent=False) == "run"


def test_a_repeated_answer_is_a_step_too():
    again = Round(calls=(done("A", call_id="again"),))
    assert judge("A1", again, asks="A", idempotent=False) == "loop"


def test_only_a_call_of_the_current_round_can_be_judged():
    with pytest.raises(InvalidTransition, match="'A' cannot be judged: expected the id"):
        guard(chain("A1", "B1"), "A", {}, idempotent=True)
    with pytest.raises(InvalidTransition, match="'A'"):
        guard(chain(), "A", {}, idempotent=True)


@pytest.mark.parametrize(
    ("rounds", "stuck"),
    [
        ([], False),
        (["A!"], False),
        (["A!", "A!"], True),
        (["A! B1", "B1 A!"], True),
        (["A!", "B1"], False),
        (["A!", "B1", "A!"], False),
        (["A!", "A!", "B1"], False),
    ],
)
def test_a_chain_is_stuck_once_two_rounds_in_a_row_had_a_loop(rounds, stuck):
    assert is_stuck(chain(*rounds)) == stuck


def converse(rounds, result_of, idempotent):
    """Play these rounds against the guard; yields the chain after each, and the verdicts of its calls."""
    state = ChainState()
    for number, names in enumerate(rounds):
        calls = [made(name, f"{number}.{n}") for n, name in enumerate(names)]
        verdicts = []
        for n, call in enumerate(calls):
            asked = ChainState(rounds=(*state.rounds, Round(calls=tuple(calls))))
            verdict = guard(asked, call.call.call_id, call.arguments, idempotent=idempotent(call.call.name))
            fields = {"call_id": call.call.call_id}
            if verdict == "loop":
                fields |= {"outcome": "loop", "result": REFUSED}
            else:
                fields["result"] = result_of(call.call) if verdict == "run" else verdict.result
            calls[n] = done(call.call.name, **fields)
            verdicts.append(verdict)
        state = ChainState(rounds=(*state.rounds, Round(calls=tuple(calls))))
        yield state, verdicts


rounds_of_calls = st.lists(st.text("ABCD", min_size=1, max_size=4), min_size=1, max_size=8)


@settings(deadline=None)
@given(rounds_of_calls.filter(lambda rounds: len("".join(rounds)) <= MAX_PERIOD), st.sets(st.sampled_from("ABCD")))
def test_an_endless_conversation_is_refused_within_three_periods_and_ended_after_one_more_round(period, idempotent):
    played = converse(period * 3 + period[:1], lambda call: call.name, idempotent.__contains__)
    refused, stuck = [], []
    for state, verdicts in played:
        refused.append("loop" in verdicts)
        stuck.append(is_stuck(state))
    assert any(refused[: 2 * len(period) + 1])
    assert any(stuck[: 2 * len(period) + 2])


@settings(deadline=None)
@given(rounds_of_calls)
def test_while_results_differ_nothing_is_a_loop(rounds):
    for state, verdicts in converse(rounds, lambda call: call.call_id, lambda name: True):
        assert set(verdicts) == {"run"}
        assert not is_stuck(state)


@settings(deadline=None)
@given(st.lists(st.text("AB", min_size=1, max_size=3), max_size=6), st.text("AB", min_size=1, max_size=3))
def test_what_is_refused_has_run_twice_in_earlier_rounds(rounds, asks):
    earlier = [" ".join(f"{name}1" for name in names) for names in rounds]
    if judge(*earlier, asks=asks) == "loop":
        assert "".join(rounds).count(asks[-1]) >= 2
