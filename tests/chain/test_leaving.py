"""What is leaving a chain and what is not: heartbeats, cancelled tasks, other threads."""

import asyncio

import pytest

from agentflow import Agent, AgentChain, ModelChunk
from agentflow.events import TERMINAL_TYPES, EventType, State
from agentflow.testing import ScriptedModel
from tests.builders import log_of, turns


def held_up():
    """An agent whose model never answers."""

    async def slow(request):
        await asyncio.Event().wait()
        yield ModelChunk()

    return Agent(model=slow)


@pytest.mark.virtual_time
async def test_a_heartbeat_beside_the_iterator_does_not_cancel_the_run():
    beats = []

    async with Agent(model=ScriptedModel("one two", delay=5.0)) as agent:
        chain = agent.stream("hello")
        events = aiter(chain)
        seen = []
        while not seen or seen[-1].type not in TERMINAL_TYPES:
            try:
                seen.append(await asyncio.wait_for(anext(events), 1.0))
            except TimeoutError:
                beats.append(None)
        assert (seen[-1].type, seen) == (EventType.FINAL, await log_of(agent, chain.run_id))
        assert len(beats) >= 12


@pytest.mark.parametrize("within", ["a wait", "a loop", "a loop within a loop"])
async def test_a_consumer_task_that_is_cancelled_has_left_even_if_the_task_is_kept(within):
    async def iterate(chain):
        async for _ in chain:
            pass

    async def nested(chain):
        await iterate(chain)

    async def wait(chain):
        await chain

    async with held_up() as agent:
        chain = agent.stream("hello")
        job = {"a wait": wait, "a loop": iterate, "a loop within a loop": nested}[within]
        task = asyncio.get_running_loop().create_task(job(chain))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task
        await turns()
        assert (chain.state, task.cancelled(), kept.value is not None) == (State.CANCELLED, True, True)
        assert (await chain).reason == "disconnect"


async def test_a_subscription_may_be_disposed_from_another_thread_also_in_asyncios_debug_mode():
    asyncio.get_running_loop().set_debug(True)
    async with held_up() as agent:
        for view in (lambda chain: chain, lambda chain: chain.filter(lambda event: True), AgentChain.answers):
            chain = agent.stream("hello")
            subscription = view(chain).subscribe(lambda event: None)
            await turns()
            await asyncio.to_thread(subscription.dispose)
            await turns()
            assert (chain.state, (await chain).reason) == (State.CANCELLED, "disconnect")


async def test_an_iterator_may_be_dropped_by_another_thread():
    async with held_up() as agent:
        chain = agent.stream("hello")
        events = [aiter(chain)]
        await anext(events[0])
        await asyncio.to_thread(events.clear)
        await turns()
        assert (chain.state, (await chain).reason) == (State.CANCELLED, "disconnect")
