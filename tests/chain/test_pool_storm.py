"""A round of calls of which some hang: what becomes of the others, of other conversations, pools and name look-ups."""

import asyncio
import collections
import threading

import pytest

from agentflow import Agent, tool
from agentflow.events import EventType, State
from agentflow.models.base import ModelChunk
from agentflow.settings import Settings
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import log_of, of, turns

CALLS = 64
HANGING = (0, 1, 2, 3, 32, 33, 34, 35)  # as many at once as the pool has threads, twice


class Tools:
    """Tools of a pool of four threads: one that hangs until the test is over, and one that never does."""

    def __init__(self):
        self._over = threading.Event()
        self.hanging = []

    @tool(pool="small", timeout=5)
    def hang(self, number: int) -> str:
        """Hang."""
        self.hanging.append(number)
        self._over.wait()
        return "too late"

    @tool(pool="small", timeout=30)
    def look(self, number: int) -> str:
        """Look something up."""
        return f"value {number}"

    @tool(pool="other", timeout=30)
    def look_elsewhere(self, number: int) -> str:
        """Look something up in another pool."""
        return f"value {number}"

    @tool
    async def fetch(self, number: int) -> str:
        """Fetch something on the loop."""
        await asyncio.sleep(0)
        return f"value {number}"

    async def until_hanging(self, count):
        while len(self.hanging) < count:  # noqa: ASYNC110  a thread cannot set an asyncio.Event
            await asyncio.sleep(0)

    def end(self):
        self._over.set()


async def model(request):
    """Asks for the round, or for the one tool that the user named, and is content with whatever comes."""
    last = request.messages[-1]
    if last.role != "user":
        yield ModelChunk(text="done", finish_reason="stop")
    elif last.content == "storm":
        calls = (call("hang" if number in HANGING else "look", number=number) for number in range(CALLS))
        yield ModelChunk(calls=tuple(calls), finish_reason="tool_calls")
    else:
        yield ModelChunk(calls=(call(last.content, number=0),), finish_reason="tool_calls")


@pytest.fixture
def tools():
    made = Tools()
    yield made
    made.end()


def settings(parallel=16):
    pools = {"small": {"size": 4, "queue": 256}, "other": {"size": 4, "queue": 256}}
    return Settings(pools=pools, chain={"max_parallel_tools": parallel})


async def statuses(agent, end):
    """How often each end of a call is in the log of a run, which is lawful and closes each call once."""
    log = await log_of(agent, end.run_id)
    assert_laws(log)
    closed = of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)
    assert len({event.call_id for event in closed}) == len(closed)
    return collections.Counter(getattr(event, "status", "success") for event in closed)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("parallel", "waves"), [(16, (4, 8)), (64, (4,))], ids=["16 at a time", "all at once"])
async def test_calls_that_hang_time_out_and_all_others_of_the_round_are_done(tools, parallel, waves):
    loop = asyncio.get_running_loop()
    async with Agent(model=model, tools=[tools], settings=settings(parallel)) as agent:
        run = agent.start("storm")
        for hanging in waves:
            await tools.until_hanging(hanging)
            await loop.advance(5)
        end = await run

        assert await statuses(agent, end) == {"success": 56, "timeout": 8}
        assert [record.status for record in end.tools] == [
            "timeout" if number in HANGING else "success" for number in range(CALLS)
        ]
        assert waves[-1] <= agent.abandoned <= 8  # all at once, the later ones spend their time in the queue
        assert end.text == "done"
        tools.end()


@pytest.mark.virtual_time
async def test_while_every_thread_of_a_pool_hangs_other_conversations_pools_and_look_ups_go_on(tools):
    loop = asyncio.get_running_loop()
    calls = [call("look_elsewhere", number=number) for number in range(CALLS)]
    async with (
        Agent(model=model, tools=[tools], settings=settings()) as agent,
        Agent(model=ScriptedModel(calls, "done"), tools=[tools], settings=settings()) as second,
    ):
        storm = agent.start("storm")
        await tools.until_hanging(4)
        same_pool = agent.start("look")
        await turns()

        chats = [agent.chat(text) for text in ("look_elsewhere", "fetch") for _ in range(8)]
        *replies, other = await asyncio.gather(*chats, second.chat("hello"))
        assert [reply.tools[0].result for reply in replies] == ["[success]\nvalue 0"] * 16
        assert await statuses(second, other) == {"success": CALLS}
        assert await loop.getaddrinfo("localhost", 80)
        assert {storm.state, same_pool.state} == {State.EXECUTING_TOOLS}
        assert loop.time() == 0.0, "none of them has waited for the calls that hang"

        await loop.advance(5)
        await tools.until_hanging(8)
        await loop.advance(5)
        assert await statuses(agent, await same_pool) == {"success": 1}
        assert await statuses(agent, await storm) == {"success": 56, "timeout": 8}
        tools.end()
