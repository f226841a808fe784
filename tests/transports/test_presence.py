import asyncio

import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.events import EventType, State
from agentflow.streams import TaskOwner
from agentflow.testing import FailingLog, ScriptedModel, call
from agentflow.transports.presence import Presence
from tests.transports.served import Gate, HandClock, settled


class Kept:
    """A presence with the agent whose runs it keeps."""

    def __init__(self, agent):
        self.agent, self.store = agent, agent.store
        self.clock = HandClock()
        self.tasks = TaskOwner()
        self.presence = Presence(agent.store, self.clock, 30.0, self.tasks, self.is_alive)
        self.tap = agent.bus.attach(self.presence.see)

    def is_alive(self, run_id):
        return run_id in self.agent._runs

    def begin(self, *, detached=False):
        chain = self.agent.start("hello")
        self.presence.begun(chain, "u", detached=detached)
        return chain


@pytest.fixture
async def kept():
    async with Agent(model=Gate()) as agent:
        yield Kept(agent)


async def test_a_run_that_nobody_reads_for_the_grace_is_cancelled(kept):
    chain = kept.begin()
    kept.clock.advance(29.9)
    assert chain.state is not State.CANCELLED
    kept.clock.advance(0.2)
    assert (await chain).reason == "disconnect"
    assert len(kept.presence) == 0


async def test_readers_that_come_in_time_keep_it(kept):
    chain = kept.begin()
    kept.clock.advance(20)
    with kept.presence.reading(chain.run_id), kept.presence.reading(chain.run_id):
        kept.clock.advance(1000)
    kept.clock.advance(20)
    with kept.presence.reading(chain.run_id):
        kept.clock.advance(1000)
    kept.clock.advance(29)
    await settled()
    assert chain.state not in (State.CANCELLED, State.COMPLETED)
    kept.clock.advance(2)
    assert (await chain).reason == "disconnect"


async def test_readers_elsewhere_keep_it_until_the_grace_after_they_have_left(kept):
    kept.store._now = kept.clock.monotonic
    chain = kept.begin()
    await settled()
    await kept.store.mark_read(chain.run_id, 45.0)
    kept.clock.advance(30)
    await settled()
    kept.clock.advance(14)
    await settled()
    assert chain.state not in (State.CANCELLED, State.COMPLETED)
    await kept.store.mark_read(chain.run_id, 30.0)
    kept.clock.advance(2)
    await settled()
    assert chain.state not in (State.CANCELLED, State.COMPLETED)
    kept.clock.advance(28)
    assert (await chain).reason == "disconnect"


async def test_a_reader_that_comes_while_others_are_asked_for_keeps_it(kept):
    chain = kept.begin()
    kept.clock.advance(30)
    with kept.presence.reading(chain.run_id):
        await settled()
        kept.clock.advance(1000)
        await settled()
    assert chain.state not in (State.CANCELLED, State.COMPLETED)


async def test_a_run_is_not_ended_because_its_readers_are_not_known():
    async with Agent(model=Gate(), store=FailingLog(InMemoryStore(), fail_at=1, of="read_for")) as agent:
        kept = Kept(agent)
        chain = kept.begin()
        kept.clock.advance(30)
        await settled()
        kept.clock.advance(29)
        await settled()
        assert chain.state not in (State.CANCELLED, State.COMPLETED)
        kept.clock.advance(1)
        assert (await chain).reason == "disconnect"
    await agent.store.aclose()


async def test_a_run_that_was_not_begun_here_is_visited(kept):
    chain = kept.agent.start("hello")
    async for _ in chain:
        break
    with kept.presence.reading(chain.run_id):
        await settled()
        assert await kept.store.read_for(chain.run_id) > 30
    kept.presence.close()


async def test_a_detached_run_needs_no_readers(kept):
    chain = kept.begin(detached=True)
    kept.clock.advance(1000)
    kept.agent._models._model.open.set()
    assert (await chain).type is EventType.FINAL
    assert len(kept.presence) == 0


async def test_a_run_that_waits_for_people_is_left_alone():
    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    async with Agent(model=ScriptedModel([call("pay")], "done"), tools=[pay]) as agent:
        kept = Kept(agent)
        chain = kept.begin()
        (asked,) = (await chain.reply()).pending
        kept.clock.advance(1000)
        chain.approve(asked.call_id)
        assert (await chain).type is EventType.FINAL


@pytest.mark.parametrize("waited", [10, 1000])
async def test_a_run_that_goes_on_has_the_whole_grace_and_no_more_for_a_reader_to_come(waited):
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        await asyncio.Event().wait()
        return "paid"

    async with Agent(model=ScriptedModel([call("pay")]), tools=[pay]) as agent:
        kept = Kept(agent)
        chain = kept.begin()
        (asked,) = (await chain.reply()).pending
        kept.clock.advance(waited)
        chain.approve(asked.call_id)
        await settled()
        kept.clock.advance(29)
        await settled()
        assert chain.state is State.EXECUTING_TOOLS
        kept.clock.advance(2)
        assert (await chain).reason == "disconnect"


async def test_a_run_that_takes_another_message_keeps_the_readers_it_has(kept):
    chain = kept.begin()
    with kept.presence.reading(chain.run_id):
        kept.presence.begun(chain, "u", detached=False)
        with kept.presence.reading(chain.run_id):
            pass
        kept.clock.advance(1000)
        await settled()
        assert chain.state not in (State.CANCELLED, State.COMPLETED)
    kept.clock.advance(31)
    assert (await chain).reason == "disconnect"


async def test_an_ended_run_is_forgotten_and_reading_it_does_nothing(kept):
    chain = kept.begin()
    assert kept.presence.user_of(chain.run_id) == ("u",)
    with kept.presence.reading(chain.run_id):
        kept.agent._models._model.open.set()
        await chain
        assert kept.presence.user_of(chain.run_id) is None
    with kept.presence.reading(chain.run_id), kept.presence.reading("unknown"):
        pass
    assert len(kept.presence) == 0
    kept.clock.advance(1000)


async def test_a_run_that_could_not_begin_is_forgotten_after_the_grace():
    async with Agent(model=Gate(), settings=None) as agent:
        kept = Kept(agent)
        kept.presence._is_alive = lambda run_id: False
        kept.begin(detached=True)
        kept.clock.advance(31)
        assert len(kept.presence) == 0


async def test_at_the_end_runs_are_waited_for_and_then_cancelled(kept):
    chain = kept.begin()
    kept.presence.cancel("shutdown")
    await kept.presence.settled()
    assert (await chain).reason == "shutdown"
    kept.begin()
    kept.presence.close()
    kept.clock.advance(1000)
    assert len(kept.presence) == 0
