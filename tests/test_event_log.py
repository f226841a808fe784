"""follow(): whole, in order, from any cursor, at the reader's own pace."""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore
from agentflow.errors import RequestError, RunNotFoundError, StoreError
from agentflow.event_log import PAGE, Reader, follow
from agentflow.events import TERMINAL_TYPES
from agentflow.testing import ScriptedModel, call
from tests.builders import TOOLS, Fold, begin, delta, failed, model_start, turns


def long_log(deltas):
    return Fold().all(begin(), model_start(), *(delta(str(n)) for n in range(deltas)), failed()).log


async def collect(source):
    return [event async for event in source]


async def test_a_log_of_many_pages_is_read_whole_from_any_cursor():
    store, log = InMemoryStore(), long_log(3 * PAGE)
    await store.append("r", log)
    for after in (-5, 0, 1, PAGE - 1, PAGE, PAGE + 1, len(log) - 1):
        assert await collect(follow(store, "r", after)) == log[max(after, 0) :]


async def test_a_cursor_at_or_beyond_the_end_of_an_ended_run_ends_at_once():
    store, log = InMemoryStore(), long_log(1)
    await store.append("r", log)
    assert await collect(follow(store, "r", len(log))) == []
    assert await collect(follow(store, "r", len(log) + 100)) == []


async def test_a_cursor_beyond_a_live_run_waits_for_it_to_get_there():
    store, log = InMemoryStore(), long_log(5)
    await store.append("r", log[:2])
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(collect(follow(store, "r", 5)))
        for event in log[2:]:
            await turns(3)
            await store.append("r", [event])
    assert reader.result() == log[5:]


async def test_an_unknown_run_is_refused_by_name():
    with pytest.raises(RunNotFoundError, match="'nobody'"):
        await collect(follow(InMemoryStore(), "nobody"))


async def test_a_store_that_fails_ends_the_reader_with_its_error():
    class Broken(InMemoryStore):
        async def read(self, run_id, after, limit):
            raise StoreError("unreadable")

    store = Broken()
    await store.append("r", long_log(1))
    with pytest.raises(StoreError, match="unreadable"):
        await collect(follow(store, "r"))


async def test_a_reader_with_its_own_waiting_waits_for_a_run_that_has_not_begun():
    store, log, ready = InMemoryStore(), long_log(1), asyncio.Event()

    async def wait(after):
        await ready.wait()

    async with asyncio.TaskGroup() as group:
        page = group.create_task(Reader(store, "r", wait=wait).page())
        await turns()
        assert not page.done()
        await store.append("r", log)
        ready.set()
    assert list(page.result()) == log


async def test_closing_a_reader_leaves_the_run_alone_and_nothing_behind():
    store, log = InMemoryStore(), long_log(5)
    await store.append("r", log[:1])
    reader = follow(store, "r")
    assert await anext(reader) == log[0]
    waiting = asyncio.get_running_loop().create_task(anext(reader))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await reader.aclose()
    await store.append("r", log[1:])
    assert await collect(follow(store, "r")) == log


async def test_three_followers_started_at_any_cursor_of_a_live_run_each_see_its_tail():
    script = (["Let me look. ", call("look", key="a"), call("count", upto=3)], "All is there.")

    async with Agent(model=ScriptedModel(*script), tools=TOOLS) as agent:
        length = len([event async for event in agent.stream("hello")])

    for after in range(length + 1):
        async with Agent(model=ScriptedModel(*script), tools=TOOLS) as agent, asyncio.TaskGroup() as group:
            followers = []

            def begin(event, agent=agent, group=group, followers=followers, after=after):
                if event.seq == max(after, 1):
                    readers = (agent.follow(event.run_id, after=after) for _ in range(3))
                    followers.extend(group.create_task(collect(reader)) for reader in readers)

            agent.bus.attach(begin)
            end = await agent.start("hello")
            log = await collect(agent.follow(end.run_id))
            tails = await asyncio.gather(*followers)
        assert tails == [log[after:]] * 3
        assert log[-1].type in TERMINAL_TYPES


async def test_a_slow_reader_loses_nothing_and_holds_up_nobody():
    async with Agent(model=ScriptedModel("one two three " * 50)) as agent:
        chain, slow = agent.start("hello"), []
        await anext(aiter(chain))

        async def read_slowly():
            async for event in agent.follow(chain.run_id):
                slow.append(event)
                await turns(5)

        async with asyncio.TaskGroup() as group:
            group.create_task(read_slowly())
            end = await chain
            assert slow[-1:] != [end]
        assert slow == await collect(agent.follow(chain.run_id))


async def test_a_run_that_goes_on_between_two_questions_of_a_reader_is_read_to_its_end():
    """It reads just before the last append, and asks whether the run has ended just after it."""
    begun, ended = long_log(1)[:-1], long_log(1)[-1:]

    class Late(InMemoryStore):
        async def last(self, run_id):
            if late:
                await self.append("r", late.pop())
            return await super().last(run_id)

    store, late = Late(), [ended]
    await store.append("r", begun)
    assert await collect(follow(store, "r", len(begun))) == ended


def test_a_cursor_is_the_number_of_an_event():
    for after in (None, "1", 1.0, True):
        with pytest.raises(RequestError, match="number of an event"):
            Reader(InMemoryStore(), "r", after)
