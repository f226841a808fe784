"""Runs on the server: pages by bytes, leases on a clock that may be set, and keys of others, which are left alone."""

import asyncio

import pytest

from agentflow.errors import RunNotFoundError, StoreError, StoreFormatError
from agentflow.stores import redis_runs
from agentflow.stores.base import SessionKey
from agentflow.testing.store_probe import KEY, LONG, end, log


async def test_a_page_ends_with_its_bytes(redis_store, monkeypatch):
    monkeypatch.setattr(redis_runs, "PAGE_BYTES", 6000)
    monkeypatch.setattr(redis_runs, "_ENTRIES", 4)
    await redis_store.append("r", log("r", count=30, text="x" * 1000))
    assert [len(await redis_store.read("r", after, 100)) for after in (0, 4, 27, 30)] == [8, 8, 3, 0]
    assert [event.seq for event in await redis_store.read("r", 3, 6)] == [4, 5, 6, 7, 8, 9]


async def test_a_long_log_is_read_whole(redis_store):
    await redis_store.append("r", log("r", count=950))
    assert [event.seq for event in await redis_store.read("r", 10, 1000)] == [*range(11, 951)]
    assert len(await redis_store.read("r", 10, 205)) == 205


async def test_a_session_is_named_by_its_user_and_id():
    for key in (KEY, SessionKey("s", ""), SessionKey('"],["', None)):
        assert redis_runs.key_of(redis_runs.tag_of(key).encode()) == key


async def test_events_that_do_not_follow_each_other_are_refused_before_they_are_sent(redis_store):
    with pytest.raises(StoreError, match="event 3 cannot follow 1"):
        await redis_store.append("r", [*log("r", 1), *log("r", 3)])


async def test_an_append_of_nothing_asks_for_the_lease_only(redis_store):
    await redis_store.append("r", [])
    assert await redis_store.find_run("r") is None
    token = await redis_store.acquire_lease("r", "me", LONG)
    await redis_store.append("r", [], token=token)
    with pytest.raises(StoreError, match="not held any more"):
        await redis_store.append("r", [], token=token + 1)


async def test_a_lease_of_a_time_before_the_clock_was_set_back_has_lapsed(redis_store, redis_server, prefix):
    token = await redis_store.acquire_lease("r", "a", 30.0)
    assert await redis_store.acquire_lease("r", "b", 30.0) is None
    until = float(await redis_server.call("HGET", f"{prefix}:run:{{r}}", "until"))
    await redis_server.call("HSET", f"{prefix}:run:{{r}}", "until", until + 3600)
    assert await redis_store.acquire_lease("r", "b", 30.0) > token


async def test_a_lease_that_has_lapsed_and_was_renewed_is_nobody_elses(redis_store, redis_server, prefix):
    token = await redis_store.acquire_lease("r", "a", 30.0)
    await redis_server.call("HSET", f"{prefix}:run:{{r}}", "until", 1)
    await redis_store.renew_lease("r", token, 30.0)
    assert await redis_store.acquire_lease("r", "b", 30.0) is None


async def test_a_damaged_event_is_told_by_its_number(redis_store, redis_server, prefix):
    await redis_store.append("r", log("r", count=2))
    await redis_server.call("XADD", f"{prefix}:run:{{r}}:events", "3-0", "e", '{"type": "unheard"}')
    with pytest.raises(StoreFormatError, match="event 3 of run 'r' cannot be read"):
        await redis_store.read("r", 0, 10)
    assert len(await redis_store.read("r", 0, 2)) == 2


@pytest.mark.parametrize("suffix", ["", ":events", ":inbox"])
async def test_where_a_key_of_another_stands_nothing_is_written(redis_store, redis_server, prefix, suffix):
    await redis_store.append("other", log("other"))
    await redis_server.call("SET", f"{prefix}:run:{{r}}{suffix}", "mine")
    if suffix == ":inbox":
        with pytest.raises(StoreFormatError, match="another kind"):
            await redis_store.list_letters("r")
    else:
        with pytest.raises(StoreFormatError, match="another kind"):
            await redis_store.append("r", log("r"))
    assert await redis_server.call("GET", f"{prefix}:run:{{r}}{suffix}") == b"mine"
    assert [record.run_id for record in await redis_store.list_runs()] == ["other"]
    await redis_store.append("other", [end("other", 2)])


async def test_a_run_that_has_expired_is_unknown(redis_store):
    with pytest.raises(RunNotFoundError, match="'r'"):
        await redis_store.wait("r", 0)


async def test_a_full_server_takes_no_part_of_an_append_and_is_read_on(redis_store, redis_server):
    await redis_store.append("r", log("r"))
    await redis_server.call("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="its memory is full"):
            await redis_store.append("r", log("r", 2, 50))
        with pytest.raises(StoreError, match="its memory is full"):
            await redis_store.append("new", log("new"))
        assert [event.seq for event in await redis_store.read("r", 0, 100)] == [1]
        assert await redis_store.find_run("new") is None
        async with asyncio.timeout(10):
            await redis_store.wait("r", 0)
    finally:
        await redis_server.call("CONFIG", "SET", "maxmemory", 0)
    await redis_store.append("r", log("r", 2, 50))
