"""Many wait, one connection is blocked; who comes is heard at once, and nobody is left when the server goes."""

import asyncio

import pytest

from agentflow.errors import StoreError
from agentflow.stores import redis_watch
from agentflow.stores.base import Letter
from agentflow.stores.redis import RedisStore
from agentflow.stores.redis_watch import Letterbox, Watch
from agentflow.testing.store_probe import PATIENCE, log, until
from tests.builders import turns
from tests.stores.conftest import raw


@pytest.fixture
async def watch(redis_server):
    watch = Watch(redis_server)
    yield watch
    await watch.aclose()


async def blocked(server):
    """How many connections are blocked in XREAD."""
    listed = (await server.call("CLIENT", "LIST")).decode().splitlines()
    return sum(" cmd=xread " in line and " flags=b" in line for line in listed)


async def test_who_waits_is_woken_by_a_new_entry_and_others_are_not(watch, redis_server, prefix):
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        waits = {name: group.create_task(watch.entry(f"{prefix}:{name}", "3-0")) for name in "abc"}
        await redis_server.call("XADD", f"{prefix}:a", "3-0", "x", "")
        await redis_server.call("XADD", f"{prefix}:b", "3-1", "x", "")
        await waits["b"]
        assert not waits["a"].done()
        await redis_server.call("XADD", f"{prefix}:a", "4-0", "x", "")
        await waits["a"]
        assert not waits["c"].done()
        waits["c"].cancel()


async def test_what_is_there_already_is_not_waited_for(watch, redis_server, prefix):
    await redis_server.call("XADD", prefix, "7-0", "x", "")
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(watch.entry(prefix, after) for after in ("0-0", "6-9", "6-10")))


async def test_of_waits_for_one_stream_the_earliest_counts(watch, redis_server, prefix):
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        late = group.create_task(watch.entry(prefix, "100-0"))
        early = group.create_task(watch.entry(prefix, "1-0"))
        await redis_server.call("XADD", prefix, "2-0", "x", "")
        await early
        late.cancel()


async def test_two_hundred_wait_on_one_connection_and_each_is_heard_at_once(watch, redis_server, prefix, monkeypatch):
    monkeypatch.setattr(redis_watch, "BLOCK", PATIENCE)  # so that only an interrupt lets anybody in
    before = await blocked(redis_server)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        waits = []
        for number in range(200):
            waits.append(group.create_task(watch.entry(f"{prefix}:{number}", "0-0")))
            await turns(number % 7)
        assert await blocked(redis_server) - before <= 1
        for number in range(200):
            await redis_server.call("XADD", f"{prefix}:{number}", "1-0", "x", "")
            await waits[number]
            if number % 50 == 0:
                again = group.create_task(watch.entry(f"{prefix}:{number}", "1-0"))
                await redis_server.call("XADD", f"{prefix}:{number}", "2-0", "x", "")
                await again


async def test_a_connection_that_was_closed_is_replaced(watch, redis_server, prefix):
    before = await blocked(redis_server)

    async def one_is_blocked():
        return await blocked(redis_server) > before

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(watch.entry(prefix, "0-0"))
        for number in range(3):
            await until(one_is_blocked, "the wait is blocked")
            await redis_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await redis_server.call("XADD", f"{prefix}:{number}", "1-0", "x", "")
            await watch.entry(f"{prefix}:{number}", "0-0")
        await redis_server.call("XADD", prefix, "1-0", "x", "")
        await wait


async def test_who_waits_is_told_that_the_server_has_gone_and_may_wait_again(own_redis, monkeypatch):
    monkeypatch.setattr(redis_watch, "BLOCK", 0.05)
    server = raw(own_redis.url, call_timeout=1.0)
    watch = Watch(server)
    for end in (own_redis.freeze, own_redis.kill):
        waits = [asyncio.get_running_loop().create_task(watch.entry(name, "0-0")) for name in "aab"]
        await server.call("PING")
        end()
        async with asyncio.timeout(PATIENCE):
            errors = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(error) for error in errors] == [StoreError] * 3
        own_redis.thaw()
    own_redis.start()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(watch.entry("a", "0-0"))
        await server.call("XADD", "a", "1-0", "x", "")
        await wait
    await watch.aclose()
    await server.aclose()


async def test_who_waits_again_in_the_moment_of_a_failure_is_heard(own_redis, monkeypatch):
    monkeypatch.setattr(redis_watch, "BLOCK", 0.05)
    server = raw(own_redis.url)
    watch = Watch(server)
    await server.call("PING")
    server.call_timeout = 0.2
    own_redis.freeze()
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            with pytest.raises(StoreError):
                await watch.entry("a", "0-0")
    await watch.aclose()
    await server.aclose()


async def test_closing_ends_the_waits(redis_server, prefix):
    watch = Watch(redis_server)
    await watch.aclose()
    wait = asyncio.get_running_loop().create_task(watch.entry(prefix, "0-0"))
    await turns()
    await watch.aclose()
    with pytest.raises(StoreError, match="was closed"):
        await wait


async def test_who_may_not_interrupt_is_told(redis_process, redis_server, prefix, monkeypatch):
    monkeypatch.setattr(redis_watch, "BLOCK", PATIENCE)
    await redis_server.call("ACL", "SETUSER", prefix, "on", ">secret", "~*", "+@all", "-client|unblock")
    server = raw(redis_process.url.replace("unix://", f"unix://{prefix}:secret@"), prefix)
    watch = Watch(server)
    before = await blocked(redis_server)

    async def one_is_blocked():
        return await blocked(redis_server) > before

    first = asyncio.get_running_loop().create_task(watch.entry(prefix, "0-0"))
    await until(one_is_blocked, "the first is blocked")
    with pytest.raises(StoreError, match="must be allowed"):
        await watch.entry("other", "0-0")
    with pytest.raises(StoreError, match="must be allowed"):
        await first
    await watch.aclose()
    await server.aclose()
    await redis_server.call("ACL", "DELUSER", prefix)


# -- letters -------------------------------------------------------------------------------------------------


async def test_two_hundred_listen_with_one_task_and_none_when_they_have_left(
    redis_store, watch, redis_server, monkeypatch
):
    monkeypatch.setattr(redis_watch, "BLOCK", PATIENCE)
    letterbox = Letterbox(redis_server, watch)
    run_ids = [f"r{number}" for number in range(200)]
    await asyncio.gather(*(redis_store.append(run_id, log(run_id)) for run_id in run_ids))
    tasks = len(asyncio.all_tasks())
    heard = {run_id: asyncio.Event() for run_id in run_ids}
    leave = [letterbox.listen(run_id, event.set) for run_id, event in heard.items()]
    assert len(asyncio.all_tasks()) == tasks + 1
    async with asyncio.timeout(PATIENCE):
        for event in heard.values():  # who begins to listen is told once: letters may have come just before
            await event.wait()
            event.clear()
        for run_id in run_ids[::20]:
            await redis_store.send_letter(run_id, Letter(id="1", verb="answer"))
            await heard[run_id].wait()
    assert sum(event.is_set() for event in heard.values()) == 10
    for one in leave:
        one()
    await turns()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "letters of Redis"]


async def test_letters_that_came_while_the_server_was_gone_are_heard_when_it_is_back(own_redis, monkeypatch, caplog):
    monkeypatch.setattr(redis_watch, "BLOCK", 0.05)
    store = RedisStore(own_redis.url, call_timeout=1.0)
    await store.append("r", log("r"))
    heard = asyncio.Event()
    leave = store.listen("r", heard.set)

    async def is_told():
        return "not heard at once" in caplog.text

    async with asyncio.timeout(PATIENCE):
        await heard.wait()
        heard.clear()
        own_redis.kill()
        await until(is_told, "who reads the log is told")
        own_redis.start()
        await heard.wait()
        heard.clear()
        await store.send_letter("r", Letter(id="1", verb="answer"))
        await heard.wait()
    leave()
    await store.aclose()
