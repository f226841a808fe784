"""The Redis store keeps the contract on real servers, for several processes, and when the server fails."""

import asyncio
import random

import pytest

from agentflow import Agent, EventType
from agentflow.errors import ConfigError, StoreError
from agentflow.event_log import follow
from agentflow.stores import redis_watch
from agentflow.stores.base import Letter, SessionKey
from agentflow.stores.redis import RedisStore
from agentflow.testing import ScriptedModel, assert_laws, store_suite
from agentflow.testing.store_probe import KEY, LONG, PATIENCE, end, fill, in_line, log, turn
from tests.builders import turns
from tests.redis_servers import PROGRAMS, RedisProcess
from tests.stores.conftest import give
from tests.stores.redis_children import started


@pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
async def test_it_keeps_the_contract(check, redis_process, prefix):
    await check(lambda: RedisStore(redis_process.url, prefix=prefix))


def test_at_least_two_servers_are_tested():
    assert len(PROGRAMS) >= 2


async def test_stores_of_other_prefixes_know_nothing_of_each_other(redis_process, redis_store, prefix):
    await redis_store.append("r", log("r"))
    await fill(redis_store, KEY, "r")
    other = RedisStore(redis_process.url, prefix=f"{prefix}x")
    assert (await other.list_runs(), await other.last("r"), await other.find_session(KEY)) == ([], None, None)
    await other.aclose()


def test_one_store_serves_one_loop_after_another(redis_process, prefix):
    store = RedisStore(redis_process.url, prefix=prefix)

    async def use(seq):
        await store.append("r", log("r", seq))
        waits = asyncio.get_running_loop().create_task(store.wait("r", seq))
        await store.last("r")
        waits.cancel()
        heard = asyncio.Event()
        leave = store.listen("r", heard.set)
        await store.send_letter("r", Letter(id=str(seq), verb="answer"))
        await heard.wait()
        leave()
        return [letter.id for letter in await store.list_letters("r")]

    assert [asyncio.run(use(seq)) for seq in (1, 2)] == [["1"], ["1", "2"]]


# -- agents ----------------------------------------------------------------------------------------------


async def test_runs_of_an_agent_are_followed_by_another_that_goes_on_with_the_session(
    redis_process, redis_store, prefix
):
    other = RedisStore(redis_process.url, prefix=prefix)
    asked = asyncio.Event()

    async def wait_long(request):
        asked.set()
        await asyncio.Event().wait()
        yield

    async with (
        Agent(model=wait_long, store=redis_store) as agent,
        Agent(model=ScriptedModel("now"), store=other) as elsewhere,
        asyncio.timeout(PATIENCE),
    ):
        chain = agent.start("slow?", session_id="s", user_id="u")
        await asked.wait()
        following = asyncio.get_running_loop().create_task(_events(elsewhere.follow(chain.run_id)))
        await other.wait(chain.run_id, 1)
        chain.cancel()
        events = await following
        assert events[-1].type == EventType.CANCELLED
        assert_laws(events)
        reply = await elsewhere.chat("and now?", session_id="s", user_id="u")
        assert reply.text == "now"
    assert [kept.run_id for kept in await redis_store.read_turns(KEY, 0, 9)] == [chain.run_id, reply.run_id]
    assert await redis_store.list_runs(open_only=True) == []
    await other.aclose()


async def _events(events):
    return [event async for event in events]


def test_chat_sync_goes_on_from_loop_to_loop(redis_process, prefix):
    store = RedisStore(redis_process.url, prefix=prefix)
    agent = Agent(model=ScriptedModel("one", "two"), store=store)
    assert [agent.chat_sync(text, session_id="s").text for text in ("a", "b")] == ["one", "two"]
    asyncio.run(agent.aclose())
    assert len(asyncio.run(store.read_turns(SessionKey("s"), 0, 9))) == 2


# -- other processes -------------------------------------------------------------------------------------


async def test_four_processes_share_a_session_and_no_message_is_lost(own_redis):
    with started(own_redis.url, "agentflow", "converse", *"abcd") as children:
        assert [child.stdout.readline() for child in children] == ["done\n"] * 4
    store = RedisStore(own_redis.url)
    kept = await store.read_turns(KEY, 0, 1000)
    await store.aclose()
    assert [turn.messages[0].text for turn in kept] == [str(number) for number in range(100)]
    for name in "abcd":
        own = [turn.run_id for turn in kept if turn.run_id.startswith(name)]
        assert own == [f"{name}-{number}" for number in range(25)]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_was_acknowledged_is_there_after_the_server_was_killed(program, tmp_path):
    process = RedisProcess(tmp_path, PROGRAMS[program], "--appendfsync", "always")  # on a slow disk less is less
    store = RedisStore(process.url)
    try:
        for round_ in range(2):
            acknowledged = {}
            with started(process.url, "agentflow", "append", f"round{round_}") as (child,):
                for _ in range(300 * round_ + 7):
                    run_id, seq = child.stdout.readline().split()
                    acknowledged[run_id] = int(seq)
                process.kill()
                child.stdout.close()
            process.start()
            await turns()  # in which the loop hears that the old connection was closed
            for run_id, seq in acknowledged.items():
                events = await store.read(run_id, 0, 10_000)
                assert [event.seq for event in events] == [*range(1, len(events) + 1)]
                assert len(events) >= seq
    finally:
        await store.aclose()
        process.kill()


# -- a server that fails ---------------------------------------------------------------------------------


async def test_a_follower_hears_that_the_server_has_gone_and_goes_on_when_it_is_there_again(own_redis, monkeypatch):
    monkeypatch.setattr(redis_watch, "BLOCK", 0.05)
    store = RedisStore(own_redis.url, call_timeout=1.0)
    await store.append("r", log("r", count=3))
    for stop, go_on in ((own_redis.freeze, own_redis.thaw), (own_redis.kill, own_redis.start)):
        seen = []

        async def read(seen=seen):
            async for event in follow(store, "r", after=seen[-1] if seen else 0):
                seen.append(event.seq)

        async with asyncio.timeout(PATIENCE):
            reader = asyncio.get_running_loop().create_task(read())
            while len(seen) < 3:
                await turns()
            stop()
            with pytest.raises(StoreError):
                await reader
            with pytest.raises(StoreError):
                await store.append("r", log("r", 4))
            go_on()
        assert seen[:3] == [1, 2, 3]  # perhaps the 4th, which the frozen server has appended when it was thawed
    last = await store.last("r")
    assert last in (3, 4)
    await store.append("r", [end("r", last + 1)])
    assert [event.seq async for event in follow(store, "r")] == [*range(1, last + 2)]
    await store.aclose()


async def test_the_same_append_after_an_unknown_reply_is_refused_and_told_by_last(own_redis):
    store = RedisStore(own_redis.url)
    await store.append("r", log("r"))
    own_redis.freeze()
    give(store, 0.1)
    with pytest.raises(StoreError, match="whether it has done it is not known"):
        await store.append("r", log("r", 2, 3))
    own_redis.thaw()
    give(store, PATIENCE)
    while await store.last("r") != 4:  # the server had it already
        pass
    with pytest.raises(StoreError, match="event 2 cannot follow 4"):
        await store.append("r", log("r", 2, 3))
    await store.append("r", log("r", 5))
    await store.aclose()


async def test_an_opening_that_is_cancelled_anywhere_leaves_the_session_free(redis_store):
    moments = random.Random(5)
    for number in range(60):
        opens = asyncio.get_running_loop().create_task(redis_store.open_session(KEY, f"r{number}"))
        await turns(number % 30 if number < 30 else moments.randrange(30))
        opens.cancel()
        await asyncio.wait([opens])
        if not opens.cancelled():
            await redis_store.close_session(KEY, f"r{number}", None)
        assert (await redis_store.open_session(KEY, "next", busy="reject")).version == 0
        await redis_store.close_session(KEY, "next", None)
        assert await redis_store.list_runs() == []


async def test_an_opening_that_a_frozen_server_does_later_is_left_to_the_recovery(own_redis, caplog):
    store = RedisStore(own_redis.url)
    await fill(store, KEY, "before")
    own_redis.freeze()
    give(store, 0.1)
    with pytest.raises(StoreError):
        await store.open_session(KEY, "late")
    assert "could not leave session 's'" in caplog.messages[-1]
    own_redis.thaw()
    give(store, PATIENCE)
    while not (records := await store.list_runs(open_only=True)):
        pass
    assert [(record.run_id, record.session) for record in records] == [("late", KEY)]
    await store.close_session(KEY, "late", None)
    assert await store.list_runs() == []
    await store.aclose()


async def test_closing_ends_what_still_waits(redis_process, prefix):
    store = RedisStore(redis_process.url, prefix=prefix)
    await store.append("r", log("r"))
    await store.open_session(KEY, "r")
    store.listen("r", lambda: None)
    waits = [store.wait("r", 1), store.open_session(KEY, "s")]
    tasks = [asyncio.get_running_loop().create_task(wait) for wait in waits]
    await in_line(store, "s")
    for _ in range(3):
        await store.last("r")
    await store.aclose()
    assert [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == [StoreError] * 2
    await store.aclose()


async def test_a_server_that_forgets_is_told_of(tmp_path):
    process = RedisProcess(tmp_path, PROGRAMS["redis8"], aof=False)
    try:
        store, strict = RedisStore(process.url), RedisStore(process.url, require_aof=True)
        assert store.warnings == ()
        await store.last("r")
        assert [text for text in store.warnings if "has no append-only file" in text]
        with pytest.raises(ConfigError, match="set appendonly yes"):
            await strict.last("r")
        await store.aclose()
        await strict.aclose()
    finally:
        process.kill()


async def test_a_long_session_is_loaded_and_grows_as_a_short_one_does(redis_store):
    key = SessionKey("long", "u")
    for number in range(250):
        await redis_store.open_session(key, f"r{number}", last_turns=2)
        await redis_store.close_session(key, f"r{number}", turn(f"r{number}"))
    session = await redis_store.open_session(key, "x")
    assert [kept.run_id for kept in session.turns] == [f"r{number}" for number in range(250)]
    assert await redis_store.acquire_lease("x", "me", LONG)
