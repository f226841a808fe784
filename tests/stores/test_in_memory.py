"""The default store: the contracts of `stores.base`, and its bounds."""

import asyncio
from collections import OrderedDict

import pytest

from agentflow import InMemoryStore
from agentflow.errors import RunNotFoundError, SessionBusyError, StoreError
from agentflow.messages import Message
from agentflow.stores.base import SessionKey, Turn
from agentflow.stores.in_memory import MAX_WAITING
from agentflow.testing import store_suite
from tests.builders import Fold, begin, delta, failed, model_start, turns

KEY = SessionKey("s", "u")


def log(count=3):
    return Fold().all(begin(), model_start(), *(delta(str(n)) for n in range(count))).log


def ended_log():
    return Fold().all(begin(), failed(0)).log


def turn(run_id):
    return Turn(run_id=run_id, outcome="final", messages=(Message(role="user", content=run_id),))


@pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
async def test_it_keeps_the_contract(check):
    store = InMemoryStore()
    await check(lambda: store)


# -- the log ---------------------------------------------------------------------------------------------


async def test_an_append_is_read_back_from_any_cursor_with_any_limit():
    store, events = InMemoryStore(), log()
    await store.append("r", events[:2])
    await store.append("r", events[2:])
    assert list(await store.read("r", 0, 100)) == events
    assert list(await store.read("r", 2, 2)) == events[2:4]
    assert list(await store.read("r", -3, 2)) == events[:2]
    assert list(await store.read("r", 100, 2)) == []
    assert (await store.last("r"), await store.last("other")) == (len(events), None)
    assert list(await store.read("other", 0, 10)) == []


@pytest.mark.parametrize("bad", [lambda e: e[1:], lambda e: [e[0], e[2]], lambda e: [e[0], e[0]], lambda e: e[::-1]])
async def test_an_append_that_does_not_continue_the_log_adds_nothing(bad):
    store, events = InMemoryStore(), log()
    with pytest.raises(StoreError, match="cannot follow"):
        await store.append("r", bad(events))
    assert await store.last("r") is None
    await store.append("r", events)
    with pytest.raises(StoreError, match="cannot follow"):
        await store.append("r", events[:1])
    assert await store.last("r") == len(events)


async def test_waiting_ends_with_the_next_append_and_at_once_if_it_is_there():
    store, events = InMemoryStore(), log()
    await store.append("r", events[:1])
    await store.wait("r", 0)
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(store.wait("r", 1)) for _ in range(3)]
        await turns()
        assert not any(wait.done() for wait in waits)
        waits[0].cancel()
        await turns()
        await store.append("r", events[1:])
    assert [wait.cancelled() for wait in waits] == [True, False, False]


async def test_waiting_for_a_run_that_is_gone_is_an_error():
    with pytest.raises(RunNotFoundError, match="'gone'"):
        await InMemoryStore().wait("gone", 0)


# -- sessions --------------------------------------------------------------------------------------------


async def test_a_session_grows_by_its_turns_and_storing_one_again_changes_nothing():
    store = InMemoryStore()
    for number, run_id in enumerate(("a", "b")):
        session = await store.open_session(KEY, run_id)
        assert (session.key, session.version, len(session.turns)) == (KEY, number, number)
        for _ in range(2):
            await store.close_session(KEY, run_id, turn(run_id))
    await store.open_session(KEY, "b")  # as a recovery does that cannot know
    await store.close_session(KEY, "b", turn("b"))
    session = await store.open_session(KEY, "c")
    assert [kept.run_id for kept in session.turns] == ["a", "b"]
    await store.close_session(KEY, "c", None)
    assert (await store.open_session(KEY, "d")).version == 2


async def test_only_the_run_that_holds_a_session_can_close_it():
    store = InMemoryStore()
    await store.open_session(KEY, "a")
    await store.close_session(KEY, "b", turn("b"))
    assert (await store.open_session(KEY, "a")).version == 0
    await store.close_session(SessionKey("unknown"), "a", None)


async def test_another_users_session_of_the_same_id_is_another():
    store = InMemoryStore()
    await store.open_session(KEY, "a")
    assert (await store.open_session(SessionKey("s", "other"), "b")).turns == ()


async def take(store, run_id, order):
    session = await store.open_session(KEY, run_id)
    order.append((run_id, session.version))
    await turns(3)
    await store.close_session(KEY, run_id, turn(run_id))


async def test_a_busy_session_is_waited_for_first_come_first_served():
    store, order = InMemoryStore(), []
    async with asyncio.TaskGroup() as group:
        for number in range(MAX_WAITING + 1):
            group.create_task(take(store, f"r{number}", order))
            await turns(1)
    assert order == [(f"r{number}", number) for number in range(MAX_WAITING + 1)]


async def test_more_than_eight_waiting_are_refused():
    store, order = InMemoryStore(), []
    await store.open_session(KEY, "holder")
    async with asyncio.TaskGroup() as group:
        for number in range(MAX_WAITING):
            group.create_task(take(store, f"r{number}", order))
        await turns(2)
        with pytest.raises(SessionBusyError, match=r"'s' is busy with run 'holder' and 8 more wait"):
            await store.open_session(KEY, "one too many")
        await store.close_session(KEY, "holder", None)
    assert len(order) == MAX_WAITING


@pytest.mark.parametrize("moment", ["before", "same turn, close first", "same turn, cancel first"])
async def test_leaving_the_line_at_any_moment_hurts_nobody(moment):
    store, order = InMemoryStore(), []
    await store.open_session(KEY, "holder")
    async with asyncio.TaskGroup() as group:
        leaver = group.create_task(take(store, "leaver", order))
        await turns(1)
        group.create_task(take(store, "next", order))
        group.create_task(take(store, "last", order))
        await turns(2)
        if moment != "same turn, close first":
            leaver.cancel()
        if moment == "before":
            await turns(3)
        await store.close_session(KEY, "holder", None)
        if moment == "same turn, close first":
            leaver.cancel()
    assert leaver.cancelled()
    assert order == [("next", 0), ("last", 1)]


async def test_a_leaver_whose_run_is_closed_first_does_not_free_anothers_session():
    store, order = InMemoryStore(), []
    await store.open_session(KEY, "holder")
    async with asyncio.TaskGroup() as group:
        leaver = group.create_task(take(store, "leaver", order))
        await turns(1)
        group.create_task(take(store, "next", order))
        group.create_task(take(store, "last", order))
        await turns(2)
        await store.close_session(KEY, "holder", None)  # the session is the leaver's now
        leaver.cancel()
        await store.close_session(KEY, "leaver", None)  # as its writer does at its end
    assert order == [("next", 0), ("last", 1)]


# -- bounds ----------------------------------------------------------------------------------------------


class Time:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


async def test_finished_runs_go_oldest_first_and_open_ones_never():
    store = InMemoryStore(max_runs=3)
    await store.append("open", log())
    for run_id in ("a", "b", "c", "d"):
        await store.append(run_id, ended_log())
    assert [await store.last(run_id) for run_id in ("open", "a", "b", "c", "d")] == [7, None, None, 4, 4]


async def test_runs_and_sessions_go_with_their_age():
    time = Time()
    store = InMemoryStore(ttl=100.0, now=time)
    await store.append("old", ended_log())
    await store.open_session(KEY, "r")
    await store.close_session(KEY, "r", turn("r"))
    time.now += 101
    await store.append("new", ended_log())
    assert (await store.last("old"), await store.last("new")) == (None, 4)
    assert (await store.open_session(KEY, "r2")).turns == ()


async def test_sessions_go_least_recently_used_first_and_held_ones_never():
    store = InMemoryStore(max_sessions=3)
    await store.open_session(SessionKey("held"), "r")
    for name in ("a", "b", "a", "c", "d"):
        await store.open_session(SessionKey(name), name)
        await store.close_session(SessionKey(name), name, turn(f"{name}{store._now()}"))
    assert [key.session_id for key in store._sessions] == ["held", "c", "d"]


class Counted(OrderedDict):
    """Counts the items that are looked at."""

    looks = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looks += 1
            yield key

    def items(self):
        for key in self:
            yield key, self[key]


async def one_more(kept):
    """How many of `kept` runs and sessions are looked at for one more, and after."""
    store = InMemoryStore(max_runs=10_000, max_sessions=10_000)
    store._ended, store._sessions = Counted(), Counted()
    for number in range(kept + 1):
        store._ended.looks = store._sessions.looks = 0
        key = SessionKey(f"s{number}")
        await store.open_session(key, f"r{number}")
        await store.append(f"r{number}", ended_log())
        await store.close_session(key, f"r{number}", turn(f"r{number}"))
    assert len(store._ended) == len(store._sessions) == kept + 1
    return store._ended.looks + store._sessions.looks


async def test_a_new_run_costs_the_same_however_many_are_kept():
    assert await one_more(2000) == await one_more(20) <= 4


async def test_a_full_store_looks_no_further_than_what_it_drops():
    store = InMemoryStore(max_runs=50, max_sessions=50)
    store._ended, store._sessions = Counted(), Counted()
    for number in range(500):
        store._ended.looks = store._sessions.looks = 0
        key = SessionKey(f"s{number}")
        await store.open_session(key, f"r{number}")
        await store.append(f"r{number}", ended_log())
        await store.close_session(key, f"r{number}", turn(f"r{number}"))
        assert store._ended.looks + store._sessions.looks <= 8
    assert max(len(store._runs), len(store._sessions)) <= 50


async def test_closing_keeps_what_is_there():
    store = InMemoryStore()
    await store.append("r", ended_log())
    await store.aclose()
    await store.aclose()
    assert await store.last("r") == 4
