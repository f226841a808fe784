"""The bounds of what the in-memory store keeps beside runs and sessions; its contracts are in the store suite."""

import pytest

from agentflow.errors import OutcomePendingError
from agentflow.stores.base import MAX_FACTS, Fact, Outcome, OutcomeKey
from agentflow.stores.in_memory_index import Facts, Outcomes


class Time:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def key(name):
    return OutcomeKey("pay", name)


def outcome(call_id):
    return Outcome(run_id="r", call_id=call_id, tool="pay", result="[success]\npaid")


def test_outcomes_go_with_their_age_claimed_or_kept():
    time = Time()
    outcomes = Outcomes(10, 100.0, time)
    outcomes.claim(key("claimed"), "a")
    outcomes.claim(key("kept"), "a")
    outcomes.keep(key("kept"), "a", outcome("a"))
    time.now += 99
    assert outcomes.claim(key("kept"), "b") == outcome("a")
    with pytest.raises(OutcomePendingError):
        outcomes.claim(key("claimed"), "b")
    time.now += 1
    assert outcomes.claim(key("kept"), "b") is None
    assert outcomes.claim(key("claimed"), "b") is None


def test_an_outcome_whose_claim_has_gone_is_kept_all_the_same():
    time = Time()
    outcomes = Outcomes(10, 100.0, time)
    outcomes.claim(key("k"), "a")
    time.now += 100
    outcomes.keep(key("k"), "a", outcome("a"))
    assert outcomes.claim(key("k"), "b") == outcome("a")


def test_over_the_limit_the_oldest_outcome_goes():
    outcomes = Outcomes(2, 100.0, Time())
    for name in ("x", "y", "z"):
        outcomes.claim(key(name), "a")
    assert outcomes.claim(key("x"), "b") is None  # which makes y the one that goes
    assert outcomes.claim(key("y"), "b") is None
    assert outcomes.claim(key("x"), "b") is None


def fact(number, user_id="u", superseded_by=None):
    return Fact(id=str(number), user_id=user_id, text=f"fact {number}", superseded_by=superseded_by)


def test_over_the_limit_of_a_user_superseded_facts_go_first_and_then_the_oldest():
    facts = Facts(10)
    facts.put([fact(n, superseded_by="9" if n == 3 else None) for n in range(MAX_FACTS)])
    facts.put([fact("new")])
    assert {f.id for f in facts.of("u", superseded=True)} == {str(n) for n in range(MAX_FACTS) if n != 3} | {"new"}
    facts.put([fact("newer")])
    assert "0" not in {f.id for f in facts.of("u", superseded=True)}


def test_over_the_limit_of_users_the_one_goes_whose_facts_were_put_longest_ago():
    facts = Facts(2)
    for user_id in ("a", "b", "a", "c"):
        facts.put([fact(1, user_id)])
    assert [bool(facts.of(user_id, superseded=False)) for user_id in ("a", "b", "c")] == [True, False, True]
