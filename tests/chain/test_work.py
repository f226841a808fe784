"""The tasks of a run and their way to the writer: order, windows, back-pressure, and whatever ends a task."""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk
from agentflow.chain.writer import MAX_WAITING
from agentflow.events import EventType
from agentflow.models.base import CallRequest
from agentflow.testing import ScriptedModel, call
from tests.builders import TOOLS, of, run, turns


async def test_the_first_of_a_flushs_deltas_carries_the_count():
    log = await run([ModelChunk(text="x" * 600_000, count=7)])
    assert of(log, EventType.DELTA)[0].count == 7
    assert sum(event.count for event in of(log, EventType.DELTA)) == 7


async def test_a_tool_that_is_out_of_memory_fails_the_run():
    def hungry() -> str:
        raise MemoryError

    log = await run([call("hungry")], tools=[hungry])
    assert "out of memory" in log[-1].error.message
    assert of(log, EventType.TOOL_ERROR)[0].status == "cancelled"


@pytest.mark.virtual_time
async def test_deltas_are_joined_by_windows_and_come_before_what_followed_them():
    loop = asyncio.get_running_loop()

    async def slow(request):
        if len(request.messages) > 1:
            yield ModelChunk(text="done")
            return
        for number in range(10):
            yield ModelChunk(text=f"{number} ")
            await asyncio.sleep(0.07)
        yield ModelChunk(calls=(CallRequest(name="look", arguments='{"key": "a"}'),))

    async with Agent(model=slow, tools=TOOLS) as agent:
        times = []
        agent.bus.attach(
            lambda event: times.append((round(loop.time(), 2), event.type.value, getattr(event, "text", "")))
        )
        await agent.start("hello")
    deltas = [(at, text) for at, kind, text in times if kind == "delta"]
    assert deltas == [(0.0, "0 "), (0.2, "1 2 "), (0.4, "3 4 5 "), (0.6, "6 7 8 "), (0.7, "9 "), (0.7, "done")]


class Stuck(InMemoryStore):
    """Takes the first events and then no more until it is let go."""

    def __init__(self, free):
        super().__init__()
        self.gate, self._free = asyncio.Event(), free

    async def append(self, run_id, events):
        if events[-1].seq > self._free:
            await self.gate.wait()
        await super().append(run_id, events)


async def test_a_model_far_ahead_of_the_log_is_held_back():
    given, store = [], Stuck(free=5)

    async def fast(request):
        for number in range(20 * MAX_WAITING):
            given.append(number)
            # Each piece changes the channel, so that none is joined with the next.
            yield ModelChunk(text="a") if number % 2 else ModelChunk(reasoning="b")

    async with Agent(model=fast, store=store) as agent:
        chain = agent.start("hello")
        await turns(50)
        assert MAX_WAITING <= len(given) < 2 * MAX_WAITING
        store.gate.set()
        chain.cancel()
        await chain


async def test_a_tool_far_ahead_of_the_log_is_held_back():
    given, store = [], Stuck(free=10)

    async def fast():
        for number in range(20 * MAX_WAITING):
            given.append(number)
            yield "a"

    async with Agent(model=ScriptedModel([call("fast")]), tools=[fast], store=store) as agent:
        chain = agent.start("hello")
        await turns(2 * MAX_WAITING)
        assert MAX_WAITING <= len(given) < 2 * MAX_WAITING
        store.gate.set()
        chain.cancel()
        await chain
