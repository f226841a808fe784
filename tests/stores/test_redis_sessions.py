"""Sessions on the server: late requests of calls that gave up, places in the line that lapse, pages of turns."""

import asyncio

import pytest

from agentflow.errors import StoreError, StoreFormatError
from agentflow.stores import redis_sessions
from agentflow.stores.base import Summary
from agentflow.stores.redis_sessions import IN_LINE, Taken, Ticket
from agentflow.testing.store_probe import KEY, LONG, PATIENCE, end, fill, in_line, log, turn

SESSION = 'session:{["u","s"]}'


async def test_a_request_that_comes_after_its_call_has_given_up_does_nothing(redis_store, redis_server):
    ticket = Ticket(KEY, "gone", "queue")
    await redis_sessions.leave(redis_server, ticket)
    with pytest.raises(StoreError, match="has given up"):
        await redis_sessions.take(redis_server, ticket)
    assert await redis_store.find_run("gone") is None
    assert (await redis_store.open_session(KEY, "r", busy="reject")).version == 0


async def test_leaving_frees_what_the_same_call_took_and_nothing_else(redis_store, redis_server):
    first, again = Ticket(KEY, "r", "queue"), Ticket(KEY, "r", "queue")
    for ticket in (first, again):
        assert isinstance(await redis_sessions.take(redis_server, ticket), Taken)
    await redis_sessions.leave(redis_server, again)
    assert (await redis_store.find_session(KEY)).active_run == "r"
    await redis_sessions.leave(redis_server, first)
    assert (await redis_store.find_session(KEY)).active_run is None


async def test_who_leaves_the_line_is_gone_at_once_and_wakes_those_behind(redis_store, redis_server):
    await redis_store.open_session(KEY, "holder")
    first, second = Ticket(KEY, "first", "queue"), Ticket(KEY, "second", "queue")
    for ticket in (first, second):
        assert await redis_sessions.take(redis_server, ticket) == "0-0"
    await redis_store.close_session(KEY, "holder", None)
    freed = await redis_sessions.take(redis_server, second)
    await redis_sessions.leave(redis_server, first)
    assert await redis_store.find_run("first") is None
    assert await redis_server.call("XREAD", "STREAMS", redis_sessions.freed_key(redis_server, KEY), freed) is not None
    assert isinstance(await redis_sessions.take(redis_server, second), Taken)


async def test_a_run_that_is_closed_again_without_an_end_has_none(redis_store):
    for closing in ([end("r", 2)], []):
        await redis_store.open_session(KEY, "r")
        await redis_store.append("r", log("r") if closing else [])
        await redis_store.close_session(KEY, "r", turn("r"), closing)
        assert (await redis_store.find_run("r")).closing == tuple(closing)


async def test_a_place_in_the_line_lapses_with_the_process_that_had_it(redis_store, redis_server, prefix):
    await redis_store.open_session(KEY, "holder")
    for run_id, change in (("dead", -IN_LINE - 1), ("before the clock was set back", 3600.0)):
        assert isinstance(await redis_sessions.take(redis_server, Ticket(KEY, run_id, "queue")), str)
        await redis_server.call("ZINCRBY", f"{prefix}:{SESSION}:alive", change, run_id)
    await redis_store.acquire_lease("leased", "me", LONG)
    assert isinstance(await redis_sessions.take(redis_server, Ticket(KEY, "leased", "queue")), str)
    await redis_server.call("ZINCRBY", f"{prefix}:{SESSION}:alive", -IN_LINE - 1, "leased")
    async with asyncio.TaskGroup() as group:
        opens = group.create_task(redis_store.open_session(KEY, "alive"))
        await in_line(redis_store, "alive")
        assert await redis_server.call("ZRANGE", f"{prefix}:{SESSION}:line", 0, -1) == [b"alive"]
        assert await redis_server.call("PTTL", f"{prefix}:{SESSION}:line") > 0
        assert [await redis_store.find_run(run_id) is None for run_id in ("dead", "leased")] == [True, False]
        await redis_store.close_session(KEY, "holder", None)
        async with asyncio.timeout(PATIENCE):
            assert (await opens).version == 0
    left = [await redis_server.call("PTTL", f"{prefix}:{SESSION}:{name}") for name in ("line", "alive", "freed")]
    assert left[:2] == [-2, -2]  # nobody waits, and nothing of it is kept
    assert left[2] > 0


async def test_who_waits_asks_again_in_time_to_keep_its_place(redis_store, redis_server, prefix, monkeypatch):
    monkeypatch.setattr("agentflow.stores.redis.IN_LINE", 0.03)
    await redis_store.open_session(KEY, "holder")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        opens = group.create_task(redis_store.open_session(KEY, "waits"))
        await in_line(redis_store, "waits")
        place = f"{prefix}:{SESSION}:alive", "waits"
        first = await redis_server.call("ZSCORE", *place)
        while await redis_server.call("ZSCORE", *place) == first:
            pass
        await redis_store.close_session(KEY, "holder", None)
        await opens


async def test_long_sessions_are_read_in_pages(redis_store, monkeypatch):
    monkeypatch.setattr(redis_sessions, "_TURNS", 3)
    run_ids = [f"r{number}" for number in range(7)]
    await fill(redis_store, KEY, *run_ids)
    session = await redis_store.open_session(KEY, "x")
    assert [kept.run_id for kept in session.turns] == run_ids
    assert [kept.run_id for kept in (await redis_store.read_turns(KEY, 1, 6))] == run_ids[1:]
    assert len(await redis_store.read_turns(KEY, 1, 4)) == 4


async def test_a_held_session_keeps_all_it_has_and_a_free_one_all_for_the_same_time(redis_store, redis_server, prefix):
    suffixes = ("", ":turns", ":runs", ":summaries")

    async def left():
        return {await redis_server.call("TTL", f"{prefix}:{SESSION}{suffix}") // 1000 for suffix in suffixes}

    await fill(redis_store, KEY, "a")
    info = await redis_store.find_session(KEY)
    assert await redis_store.keep_summary(info, Summary(first=1, last=1, text="x", confidence=1.0))
    assert await left() == {86}
    assert await redis_server.call("ZCARD", f"{prefix}:idle") == 1
    await redis_store.open_session(KEY, "b")
    assert await left() == {-1}
    assert await redis_server.call("ZCARD", f"{prefix}:idle") == 0
    await redis_store.close_session(KEY, "b", None)
    assert await left() == {86}


async def test_a_session_is_used_when_it_is_taken_and_when_it_is_freed(redis_store):
    times = []
    for run_id in "ab":
        await redis_store.open_session(KEY, run_id)
        times.append((await redis_store.find_session(KEY)).used_at)
        await redis_store.close_session(KEY, run_id, None)
        times.append((await redis_store.find_session(KEY)).used_at)
    assert times == sorted(set(times))


async def test_what_is_damaged_is_named(redis_store, redis_server, prefix):
    await fill(redis_store, KEY, "a", "b")
    await redis_server.call("HSET", f"{prefix}:{SESSION}:turns", 2, "no")
    with pytest.raises(StoreFormatError, match="a turn of session 's' cannot be read"):
        await redis_store.open_session(KEY, "c")
    assert (await redis_store.find_session(KEY)).active_run is None
    await redis_server.call("HSET", f"{prefix}:{SESSION}:summaries", "1-1", "no")
    with pytest.raises(StoreFormatError, match="a summary of session 's' cannot be read"):
        await redis_store.open_session(KEY, "c")


async def test_the_runs_of_a_deleted_session_that_have_not_ended_stay(redis_store):
    await redis_store.open_session(KEY, "open")
    await redis_store.append("open", log("open"))
    await redis_store.close_session(KEY, "open", turn("open"), [end("open", 2)])
    await redis_store.delete_session(KEY)
    record = await redis_store.find_run("open")
    assert (record.session, record.closing) == (KEY, (end("open", 2),))
