"""Outcomes and facts on the server: what is damaged is named, and all of a user's facts go in or none."""

import pytest

from agentflow.errors import OutcomePendingError, StoreFormatError
from agentflow.stores.base import Fact, Outcome, OutcomeKey

KEY = OutcomeKey("pay", "k", "u")
OUTCOME = Outcome(run_id="r", call_id="c", tool="pay", result="[success]")


async def test_an_outcome_without_a_claim_is_kept(redis_store, redis_server, prefix):
    await redis_store.keep_outcome(KEY, "c", OUTCOME)
    assert await redis_server.call("PTTL", f'{prefix}:outcome:{{["u","pay","k"]}}') > 0
    with pytest.raises(OutcomePendingError):
        await redis_store.keep_outcome(KEY, "d", OUTCOME)
    assert await redis_store.claim_outcome(KEY, "d") == OUTCOME


async def test_the_time_of_a_key_begins_with_its_claim(redis_store, redis_server, prefix):
    key = f'{prefix}:outcome:{{["u","pay","k"]}}'
    await redis_store.claim_outcome(KEY, "c")
    await redis_server.call("PEXPIRE", key, 50_000)
    await redis_store.keep_outcome(KEY, "c", OUTCOME)
    assert 0 < await redis_server.call("PTTL", key) <= 50_000


async def test_what_is_damaged_is_named(redis_store, redis_server, prefix):
    await redis_store.claim_outcome(KEY, "c")
    await redis_server.call("HSET", f'{prefix}:outcome:{{["u","pay","k"]}}', "outcome", "no")
    with pytest.raises(StoreFormatError, match=r"the outcome of OutcomeKey\(tool='pay'"):
        await redis_store.claim_outcome(KEY, "c")
    await redis_store.put_facts([Fact(id="1", user_id="u", text="x")])
    await redis_server.call("HSET", f"{prefix}:facts:{{u}}", "1", "no")
    with pytest.raises(StoreFormatError, match="a fact of user 'u'"):
        await redis_store.list_facts("u")


async def test_a_fact_that_is_put_again_keeps_its_place_and_may_hold_again(redis_store):
    old = Fact(id="1", user_id="u", text="old", superseded_by="2")
    await redis_store.put_facts([old, Fact(id="2", user_id="u", text="new")])
    await redis_store.put_facts([Fact(id="1", user_id="u", text="corrected")])
    assert [fact.text for fact in await redis_store.list_facts("u")] == ["corrected", "new"]


async def test_facts_that_went_leave_nothing(redis_store, redis_server, prefix, monkeypatch):
    monkeypatch.setattr("agentflow.stores.redis_index.MAX_FACTS", 2)
    facts = [Fact(id=name, user_id="u", text=name, superseded_by="x" if name in "ab" else None) for name in "abc"]
    await redis_store.put_facts([facts[0]])
    await redis_store.put_facts([Fact(id="a", user_id="u", text="holds again")])
    assert await redis_server.call("EXISTS", f"{prefix}:facts:{{u}}:superseded") == 0
    await redis_store.put_facts(facts)
    assert [fact.id for fact in await redis_store.list_facts("u", superseded=True)] == ["b", "c"]
    assert await redis_server.call("HLEN", f"{prefix}:facts:{{u}}") == 2
    for name in "bc":
        await redis_store.delete_fact("u", name)
    assert await redis_server.call("KEYS", f"{prefix}:facts:*") == []
