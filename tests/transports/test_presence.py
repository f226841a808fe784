import pytest

from agentflow import Agent, tool
from agentflow.events import EventType, State
from agentflow.testing import ScriptedModel, call
from agentflow.transports.presence import Presence
from tests.transports.served import Gate, HandClock, settled


class Kept:
    """A presence with the agent whose runs it keeps."""

    def __init__(self, agent):
        self.agent = agent
        self.clock = HandClock()
        self.presence = Presence(self.clock, 30.0, self.is_alive)
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
