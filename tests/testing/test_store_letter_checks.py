"""Every check is red for a store that is wrong in just that; the stores' own tests have them green."""

import msgspec
import pytest

from agentflow import InMemoryStore
from agentflow.errors import LimitError, StoreError
from agentflow.stores import letters
from agentflow.testing import store_letter_checks as checks


class Stacked(InMemoryStore):
    async def list_letters(self, run_id):
        return tuple(reversed(await super().list_letters(run_id)))


class Forgetful(InMemoryStore):
    async def delete_letters(self, run_id, ids):
        if run_id in self._runs:
            self._runs[run_id].inbox.clear()


class Sticky(InMemoryStore):
    async def delete_letters(self, run_id, ids):
        pass


class Secretive(InMemoryStore):
    async def renew_lease(self, run_id, token, ttl):
        await super().renew_lease(run_id, token, ttl)
        return False


class Last(InMemoryStore):
    async def send_letter(self, run_id, letter):
        if (run := self._runs.get(run_id)) is not None:
            run.inbox[letter.id] = letter
            self._inboxes.wake(run_id)


class Deaf(InMemoryStore):
    def listen(self, run_id, heard):
        return lambda: None


class Once(InMemoryStore):
    def listen(self, run_id, heard):
        def hear():
            leave()
            heard()

        leave = super().listen(run_id, hear)
        return leave


class Gossip(InMemoryStore):
    def listen(self, run_id, heard):
        super().listen(run_id, heard)
        return lambda: None


class Boundless(InMemoryStore):
    async def send_letter(self, run_id, letter):
        try:
            await super().send_letter(run_id, letter)
        except LimitError:
            return


class Strict(InMemoryStore):
    async def send_letter(self, run_id, letter):
        sizes = [len(letters.encode(kept)) for kept in await self.list_letters(run_id)]
        if not letters.has_room(msgspec.structs.replace(letter, verb="answer"), sizes):
            raise letters.no_room(run_id)
        await super().send_letter(run_id, letter)


class Eager(InMemoryStore):
    async def send_letter(self, run_id, letter):
        self._runs.get(run_id) or self._new_run(run_id)
        await super().send_letter(run_id, letter)


class Keeping(InMemoryStore):
    async def append(self, run_id, events, *, token=None):
        kept = dict(self._runs[run_id].inbox) if run_id in self._runs else {}
        await super().append(run_id, events, token=token)
        self._runs[run_id].inbox.update(kept)


class Unread(InMemoryStore):
    async def read_for(self, run_id):
        return 0.0


class Overwriting(InMemoryStore):
    async def mark_read(self, run_id, ttl):
        if run_id in self._runs:
            self._runs[run_id].read_until = 0.0
        return await super().mark_read(run_id, ttl)


class Credulous(InMemoryStore):
    async def mark_read(self, run_id, ttl):
        await super().mark_read(run_id, ttl)
        return True


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (checks.letters_lie_in_the_order_they_were_sent_until_they_are_deleted, Stacked),
        (checks.letters_lie_in_the_order_they_were_sent_until_they_are_deleted, Forgetful),
        (checks.letters_lie_in_the_order_they_were_sent_until_they_are_deleted, Sticky),
        (checks.letters_lie_in_the_order_they_were_sent_until_they_are_deleted, Secretive),
        (checks.letters_lie_in_the_order_they_were_sent_until_they_are_deleted, Last),
        (checks.a_run_is_asked_to_end_for_the_first_reason, Last),
        (checks.who_listens_hears_of_letters_from_any_client, Deaf),
        (checks.who_listens_hears_of_letters_from_any_client, Once),
        (checks.who_listens_hears_of_letters_from_any_client, Gossip),
        (checks.an_inbox_has_bounds_and_room_for_a_cancel, Boundless),
        (checks.an_inbox_has_bounds_and_room_for_a_cancel, Strict),
        (checks.letters_to_what_is_unknown_or_has_ended_are_not_kept, Eager),
        (checks.letters_to_what_is_unknown_or_has_ended_are_not_kept, Keeping),
        (checks.who_reads_a_run_counts_for_the_time_he_says, Unread),
        (checks.who_reads_a_run_counts_for_the_time_he_says, Overwriting),
        (checks.who_reads_a_run_counts_for_the_time_he_says, Credulous),
    ],
    ids=lambda value: value.__name__,
)
async def test_a_wrong_store_is_refused(check, wrong, monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 0.2)
    store = wrong()
    with pytest.raises((AssertionError, ExceptionGroup, StoreError, TimeoutError, LimitError)):
        await check(lambda: store)


def test_every_check_is_tried_on_a_wrong_store():
    (mark,) = test_a_wrong_store_is_refused.pytestmark
    assert {check for check, _ in mark.args[1]} == set(checks.LETTER_CHECKS)
