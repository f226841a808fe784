"""Every check is red for a store that is wrong in just that; the stores' own tests have them green."""

import asyncio

import msgspec
import pytest

from agentflow import InMemoryStore
from agentflow.errors import AgentflowError, OutcomePendingError, StoreError
from agentflow.stores.base import OutcomeKey, SessionKey
from agentflow.testing import store_session_checks as checks


class Doubling(InMemoryStore):
    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        session = self._sessions[key]
        if turn is not None:
            session.turns[f"{run_id} {len(session.turns)}"] = turn
        await super().close_session(key, run_id, None, closing)


class Anybodys(InMemoryStore):
    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        holder = self._sessions[key].active_run if key in self._sessions else run_id
        await super().close_session(key, holder, turn, closing)


class Stack(InMemoryStore):
    def _pass_on(self, key, session):
        session.waiting.reverse()
        super()._pass_on(key, session)
        session.waiting.reverse()


class Open(InMemoryStore):
    async def open_session(self, key, run_id, *, busy="queue", last_turns=None):
        if key in self._sessions:
            self._sessions[key].active_run = run_id
        session = await super().open_session(key, run_id, busy=busy, last_turns=last_turns)
        await asyncio.sleep(0)
        return session


class Stuck(InMemoryStore):
    async def _wait_for_turn(self, key, session, run_id, busy):
        ours = asyncio.get_running_loop().create_future()
        session.waiting.append((run_id, ours))
        try:
            await ours
        except asyncio.CancelledError:
            session.waiting.append((run_id, asyncio.get_running_loop().create_future()))
            raise


class Polite(InMemoryStore):
    async def _ask_to_end(self, session, reason):
        return None


class Generous(InMemoryStore):
    async def open_session(self, key, run_id, *, busy="queue", last_turns=None):
        return await super().open_session(key, run_id, busy=busy)


class OneUser(InMemoryStore):
    async def open_session(self, key, run_id, *, busy="queue", last_turns=None):
        return await super().open_session(SessionKey(key.session_id, str(key.user_id)), run_id, busy=busy)

    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        await super().close_session(SessionKey(key.session_id, str(key.user_id)), run_id, turn, closing)

    async def read_turns(self, key, after, limit):
        return await super().read_turns(SessionKey(key.session_id, str(key.user_id)), after, limit)


class Keeper(InMemoryStore):
    async def delete_session(self, key):
        if key in self._sessions:
            self._sessions[key].turns.clear()


class Undying(InMemoryStore):
    async def delete_session(self, key):
        await super().delete_session(key)
        if key in self._sessions:
            self._sessions[key].deleted = False


class Late(InMemoryStore):
    async def keep_summary(self, seen, summary):
        found = await self.find_session(seen.key)
        return found is not None and await super().keep_summary(found, summary)


class Reborn(InMemoryStore):
    async def keep_summary(self, seen, summary):
        found = await self.find_session(seen.key)
        return await super().keep_summary(msgspec.structs.replace(seen, number=found.number), summary)


class Twice(InMemoryStore):
    async def claim_outcome(self, key, call_id):
        try:
            return await super().claim_outcome(key, call_id)
        except OutcomePendingError:
            return None


class Never(InMemoryStore):
    async def release_outcome(self, key, call_id):
        return None


class Shared(InMemoryStore):
    async def claim_outcome(self, key, call_id):
        return await super().claim_outcome(OutcomeKey(key.tool, key.key), call_id)


class Losing(InMemoryStore):
    async def keep_outcome(self, key, call_id, outcome):
        self._outcomes._claims[key].outcome = outcome


class Appending(InMemoryStore):
    async def put_facts(self, facts):
        for fact in facts:
            await self.delete_fact(fact.user_id, fact.id)
        await super().put_facts(facts)


class Oldest(InMemoryStore):
    async def put_facts(self, facts):
        await super().put_facts([msgspec.structs.replace(fact, superseded_by=None) for fact in facts])


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (checks.a_session_grows_by_its_turns, Doubling),
        (checks.only_the_run_that_holds_a_session_closes_it, Anybodys),
        (checks.a_busy_session_is_waited_for_first_come_first_served, Stack),
        (checks.many_runs_share_a_session_and_no_turn_is_lost, Open),
        (checks.who_leaves_the_line_hurts_nobody, Stuck),
        (checks.who_supersedes_asks_all_before_it_to_end, Polite),
        (checks.turns_are_read_in_pages_and_a_run_may_ask_for_the_last_only, Generous),
        (checks.each_user_has_own_sessions, OneUser),
        (checks.a_deleted_session_is_gone_with_its_finished_runs, Keeper),
        (checks.a_session_may_be_deleted_while_a_run_holds_it, Polite),
        (checks.a_session_may_be_deleted_while_a_run_holds_it, Undying),
        (checks.a_summary_is_kept_with_the_session_it_was_made_from, Late),
        (checks.a_summary_is_kept_with_the_session_it_was_made_from, Reborn),
        (checks.an_effect_is_claimed_by_one_call_and_its_outcome_given_to_all, Twice),
        (checks.an_effect_is_claimed_by_one_call_and_its_outcome_given_to_all, Losing),
        (checks.an_effect_that_was_not_done_is_free_again, Never),
        (checks.an_effect_that_was_not_done_is_free_again, Shared),
        (checks.of_many_claims_at_once_one_is_given, Twice),
        (checks.facts_are_kept_by_user_until_deleted, Appending),
        (checks.facts_of_a_user_are_bounded, Oldest),
    ],
    ids=lambda value: value.__name__,
)
async def test_a_wrong_store_is_refused(check, wrong, monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 0.2)
    store = wrong()
    with pytest.raises((AssertionError, ExceptionGroup, AgentflowError, TimeoutError, StoreError)):
        await check(lambda: store)


def test_every_check_is_tried_on_a_wrong_store():
    (mark,) = test_a_wrong_store_is_refused.pytestmark
    assert {check for check, _ in mark.args[1]} == set(checks.SESSION_CHECKS)
