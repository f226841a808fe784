"""Every check is red for a store that is wrong in just that; the stores' own tests have them green."""

import asyncio

import pytest

from agentflow import InMemoryStore
from agentflow.errors import LeaseLostError, StoreError
from agentflow.testing import store_log_checks as checks
from tests.builders import delta


class Unbounded(InMemoryStore):
    async def read(self, run_id, after, limit):
        return await super().read(run_id, after, limit + 1)


class Anything(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        run = self._runs.get(run_id) or self._new_run(run_id)
        run.events.extend(events)
        self._appends.wake(run_id)


class Half(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        for event in events:
            await super().append(run_id, [event], token=token)


class Cut(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        await super().append(run_id.split("\x00")[0], events, token=token)


class Liar(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        try:
            await super().append(run_id, events, token=token)
        except StoreError:
            return


class Mixed(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        event = delta("of another run")
        await super().append(run_id, [*events[:-1], type(event)(**{**fields(event), "seq": events[-1].seq})])


def fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


class Torn(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        for event in events:
            await super().append(run_id, [event], token=token)
            await asyncio.sleep(0)


class Deaf(InMemoryStore):
    async def wait(self, run_id, after):
        while (await self.last(run_id) or 0) <= after:
            await asyncio.Event().wait()


class Patient(InMemoryStore):
    async def wait(self, run_id, after):
        return None


class Backwards(InMemoryStore):
    async def list_runs(self, *, before=None, limit=100, open_only=False):
        return (await super().list_runs(before=before, limit=limit, open_only=open_only))[::-1]


class Hoarder(InMemoryStore):
    def _drop_if_empty(self, run_id):
        return None


class Forgetful(InMemoryStore):
    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        await super().close_session(key, run_id, turn, token=token)


class Trusting(InMemoryStore):
    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        await super().close_session(key, run_id, turn, closing)


class Generous(InMemoryStore):
    async def acquire_lease(self, run_id, owner, ttl):
        return await super().acquire_lease(run_id, "one for all", ttl)


class Careless(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        await super().append(run_id, events)


class Silent(InMemoryStore):
    async def renew_lease(self, run_id, token, ttl):
        try:
            await super().renew_lease(run_id, token, ttl)
        except LeaseLostError:
            return


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (checks.an_append_is_read_back_from_any_cursor_with_any_limit, Unbounded),
        (checks.an_append_that_does_not_continue_the_log_adds_nothing, Anything),
        (checks.an_append_that_does_not_continue_the_log_adds_nothing, Half),
        (checks.what_is_written_comes_back_unchanged, Cut),
        (checks.of_two_appends_with_the_same_number_one_is_refused, Anything),
        (checks.of_two_appends_with_the_same_number_one_is_refused, Liar),
        (checks.many_runs_are_written_at_once, Mixed),
        (checks.a_cancelled_append_is_done_or_not, Torn),
        (checks.a_follower_at_another_client_is_woken, Deaf),
        (checks.waiting_for_a_run_without_events_is_an_error, Patient),
        (checks.runs_are_listed_the_newest_first_in_pages, Backwards),
        (checks.a_run_that_left_nothing_is_forgotten, Hoarder),
        (checks.the_events_that_end_a_run_are_kept_until_they_are_appended, Forgetful),
        (checks.who_has_lost_a_run_does_not_end_it, Trusting),
        (checks.one_owner_has_the_lease, Generous),
        (checks.one_owner_has_the_lease, Careless),
        (checks.a_lapsed_lease_is_taken_over_and_its_late_writes_are_refused, Careless),
        (checks.a_lapsed_lease_is_taken_over_and_its_late_writes_are_refused, Silent),
    ],
    ids=lambda value: value.__name__,
)
async def test_a_wrong_store_is_refused(check, wrong, monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 0.2)
    store = wrong()
    with pytest.raises((AssertionError, ExceptionGroup, StoreError, TimeoutError)):
        await check(lambda: store)


def test_every_check_is_tried_on_a_wrong_store():
    (mark,) = test_a_wrong_store_is_refused.pytestmark
    assert {check for check, _ in mark.args[1]} == set(checks.LOG_CHECKS)
