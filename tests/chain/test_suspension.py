"""A run that waits for humans: it costs nothing, its time does not count, and whatever ends it reaches its depths."""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.errors import SessionBusyError, StoreError
from agentflow.events import EventType, State
from agentflow.streams import LoopClock
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools import ask_user
from tests.builders import of, turns
from tests.chain.families import checked, line, so_far

pytestmark = pytest.mark.virtual_time


def job(cleaned, seconds=0.0, **options):
    @tool(**{"timeout": 1000.0} | options)
    async def work(number: int = 0) -> str:
        """Work for a while."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cleaned.append("work")
            raise
        return "worked"

    return work


WAITS = {
    "an approval": ([call("work")], [job([], approval=True)], lambda chain, asked: chain.approve(asked.call_id)),
    "a question": ([call("ask_user", question="Why?")], [ask_user], lambda chain, _: chain.answer("so")),
    "a question in the text": (['{"question": "Why?", "options": []}'], [], lambda chain, _: chain.answer("so")),
}


@pytest.mark.parametrize("name", WAITS)
async def test_a_suspended_run_holds_no_task_at_any_depth(name):
    turn, tools, decide = WAITS[name]
    async with line(turn, "done", tools=tools, depth=3) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        assert asyncio.all_tasks() == {asyncio.current_task()}
        log = await checked(agent, chain, ended=False)
        suspended = [event for event in of(log, EventType.STATE) if event.current is State.SUSPENDED]
        assert [len(event.path) for event in suspended] == [4, 3, 2, 1]  # up to the root, by one cause
        decide(chain, asked)
        assert (await chain).text == "a0 is done"
        log = await checked(agent, chain)
        assert {event.current for event in of(log, EventType.STATE) if event.previous is State.SUSPENDED} == {
            State.THINKING if name == "a question in the text" else State.EXECUTING_TOOLS,
            State.EXECUTING_TOOLS,
        }


@pytest.mark.parametrize("depth", [0, 3])
async def test_the_time_of_waiting_counts_for_no_timeout(depth):
    tools = [job([], seconds=3.0, approval=True)]
    script = ScriptedModel([call("work", number=1)], [call("work", number=2)], "done")
    async with line(script, tools=tools, depth=depth, timeout=10.0) as agent:
        chain = agent.start("hello")
        for _ in range(2):
            (asked,) = (await chain.reply()).pending
            await asyncio.sleep(5000.0)
            chain.approve(asked.call_id)
            await turns(50)
        assert (await chain).type is EventType.FINAL
        await checked(agent, chain)


async def test_what_is_left_of_the_timeout_runs_on_after_the_resumption():
    cleaned, loop = [], asyncio.get_running_loop()
    slow = ScriptedModel([call("work")], "done", delay=2.0)
    tools = [job(cleaned, seconds=100.0, approval=True)]
    async with line(slow, tools=tools, depth=3, timeout=10.0) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        assert loop.time() == 2.0
        await asyncio.sleep(500.0)
        chain.approve(asked.call_id)
        end = await chain
        assert (end.type, end.reason, loop.time()) == (EventType.CANCELLED, "timeout", 510.0)
        await turns(50)
        await checked(agent, chain)
        assert cleaned == ["work"]


async def test_a_run_that_is_suspended_again_and_again_has_one_timeout():
    loop = asyncio.get_running_loop()
    tools = [job([], seconds=3.0, approval=True)]
    script = [[call("work", number=number)] for number in range(4)]
    async with line(*script, tools=tools, depth=0, timeout=10.0) as agent:
        chain = agent.start("hello")
        for number in range(3):
            (asked,) = (await chain.reply()).pending
            assert loop.time() == number * 103.0
            await asyncio.sleep(100.0)
            chain.approve(asked.call_id)
            await turns(50)
        (asked,) = (await chain.reply()).pending
        chain.approve(asked.call_id)
        end = await chain
        assert (end.type, end.reason, loop.time()) == (EventType.CANCELLED, "timeout", 310.0)
        await checked(agent, chain)


ENDINGS = {
    "cancel": ("user", lambda agent, chain: chain.cancel()),
    "shutdown": ("shutdown", lambda agent, chain: agent.aclose()),
    "timeout": ("timeout", lambda agent, chain: asyncio.sleep(60.0)),
}


@pytest.mark.parametrize("waits", [True, False], ids=["suspended", "running"])
@pytest.mark.parametrize("name", ENDINGS)
async def test_every_end_reaches_the_leaf(name, waits):
    reason, end = ENDINGS[name]
    cleaned, seen = [], []
    tools = [job(cleaned, seconds=500.0), job_that_asks()]
    calls = [call("act")] if waits else [call("work"), call("act")]
    async with line(calls, "done", tools=tools, depth=3, timeout=30.0) as agent:
        agent.bus.attach(seen.append)
        chain = agent.start("hello")
        await turns(100)
        assert chain.state is (State.SUSPENDED if waits else State.EXECUTING_TOOLS)
        if waits and name == "timeout":
            await asyncio.sleep(3600.0)
            assert chain.state is State.SUSPENDED  # nothing runs, so nothing runs out
            return
        ending = end(agent, chain)
        if ending is not None:
            await ending
        await turns(100)
        assert (seen[-1].type, seen[-1].reason) == (EventType.CANCELLED, reason)
        assert seen == await checked(agent, chain)
        assert cleaned == ([] if waits else ["work"])
        assert {event.status for event in of(seen, EventType.TOOL_ERROR)} == {"cancelled"}


def job_that_asks():
    @tool(approval=True)
    async def act() -> str:
        """Act."""
        return "acted"

    return act


async def test_the_last_consumer_may_leave_a_suspended_run_and_no_other():
    async with line([call("act")], "done", tools=[job_that_asks()], depth=3) as agent:
        chain = agent.stream("hello")
        async for event in chain:
            if event.type is EventType.STATE and event.chain_id == chain.run_id and event.current is State.SUSPENDED:
                break
        await turns(50)
        assert chain.state is State.SUSPENDED
        (asked,) = of(await so_far(agent, chain), EventType.APPROVAL)
        chain.approve(asked.call_id)
        await turns(50)  # nobody looks on while it goes on, since nobody has left meanwhile
        assert chain.state is State.COMPLETED
        await checked(agent, chain)


async def test_who_leaves_a_resumed_run_last_ends_it():
    cleaned = []
    async with line([call("work")], "done", tools=[job(cleaned, 100.0, approval=True)], depth=2) as agent:
        chain = agent.stream("hello")
        (asked,) = (await chain.reply()).pending
        watching = aiter(chain)
        await anext(watching)
        chain.approve(asked.call_id)
        await turns(50)
        await watching.aclose()
        await turns(50)
        log = await checked(agent, chain)
        assert (log[-1].reason, cleaned) == ("disconnect", ["work"])


async def test_an_expiry_resumes_the_run_without_anybody():
    async with line(
        [call("act")], "sorry, it failed", tools=[job_that_asks()], depth=0, approval_timeout=60.0
    ) as agent:
        chain = agent.stream("hello")
        await chain.reply()
        await asyncio.sleep(61.0)
        assert chain.state is State.COMPLETED
        log = await checked(agent, chain)
        (resolved,) = of(log, EventType.RESOLVED)
        assert resolved.decision == "expired"


class Counting(LoopClock):
    """Keeps the timers that were set to so many seconds."""

    def __init__(self, seconds):
        self._seconds = seconds
        self.timers = []

    def call_later(self, delay, callback):
        timer = super().call_later(delay, callback)
        self.timers += [timer] if delay == self._seconds else []
        return timer


@pytest.mark.parametrize("decision", ["approve", "reject", "cancel", "amend its agent"])
async def test_no_timer_outlives_what_it_was_set_for(decision):
    clock, leaf = Counting(5000.0), {"approval_timeout": 5000.0}
    script = ([call("act")], "sorry, it failed")
    async with line(*script, tools=[job_that_asks()], depth=1, leaf=leaf, clock=clock) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        (timer,) = clock.timers
        assert not timer.cancelled()
        if decision == "approve":
            chain.approve(asked.call_id)
        elif decision == "reject":
            chain.reject(asked.call_id, "no")
        elif decision == "cancel":
            chain.cancel()
        else:
            (start,) = of(await so_far(agent, chain), EventType.TOOL_START)
            chain.amend(start.call_id, {"input": "leave it"})
        await turns(20)
        assert timer.cancelled()
        await chain
        await checked(agent, chain)


# -- one at a time -------------------------------------------------------------------------------------------


class Overlap:
    """Tools that note what runs beside what."""

    def __init__(self):
        self.order, self.running, self.beside = [], [], []

    def tool(self, name, **options):
        @tool(**{"timeout": 1000.0, "name": name} | options)
        async def body(number: int) -> str:
            """Run."""
            self.order.append(number)
            self.beside += [{name, other} for other in self.running]
            self.running.append(name)
            await asyncio.sleep(1.0)
            self.running.remove(name)
            return str(number)

        return body


async def test_a_sequential_call_has_no_other_beside_it_and_the_order_is_kept():
    overlap = Overlap()
    tools = [overlap.tool("alone", sequential=True), overlap.tool("free")]
    names = ["free", "free", "alone", "alone", "free", "alone", "free", "free"]
    calls = [call(name, number=number) for number, name in enumerate(names)]
    async with Agent(model=ScriptedModel(calls, "done"), tools=tools) as agent:
        chain = agent.start("hello")
        await chain
        await checked(agent, chain)
        assert overlap.order == list(range(8))
        assert all(pair == {"free"} for pair in overlap.beside)
        assert len(overlap.beside) == 2


@pytest.mark.parametrize("approving", ["alone", "free"])
async def test_the_barrier_holds_while_humans_are_asked(approving):
    overlap = Overlap()
    options = {name: {"approval": name == approving} for name in ("alone", "free")}
    tools = [overlap.tool("alone", sequential=True, **options["alone"]), overlap.tool("free", **options["free"])]
    names = ["alone", "free", "alone", "free", "alone"]
    calls = [call(name, number=number) for number, name in enumerate(names)]
    async with line(calls, "done", tools=tools, depth=1) as agent:
        chain = agent.start("hello")
        while (reply := await chain.reply()).pending:
            (asked,) = reply.pending  # never two: the other would have to stand on its other side
            chain.approve(asked.call_id)
            await turns(50)
        await checked(agent, chain)
        assert overlap.order == list(range(5))
        assert overlap.beside == []


async def test_an_agent_may_be_sequential_too():
    overlap = Overlap()
    tools = [
        Agent(
            name=f"b{number}", model=ScriptedModel([call("free", number=number)], "ok"), tools=[overlap.tool("free")]
        ).as_tool(sequential=True)
        for number in range(3)
    ]
    calls = [call(f"b{number}", input="go") for number in range(3)]
    async with Agent(model=ScriptedModel(calls, "done"), tools=tools) as agent:
        chain = agent.start("hello")
        await chain
        await checked(agent, chain)
        assert (overlap.order, overlap.beside) == ([0, 1, 2], [])


# -- the next message of its session, and the next process ---------------------------------------------------


@pytest.mark.parametrize("name", ["a question", "a question in the text"])
@pytest.mark.parametrize("begin", ["stream", "start", "chat"])
async def test_the_next_message_of_the_session_is_the_answer_to_its_question(name, begin):
    turn, tools, _ = WAITS[name]
    async with Agent(model=ScriptedModel(turn, "Thank you."), tools=tools) as agent:
        first = await agent.chat("hello", session_id="s")
        assert len(first.pending) == 1
        answered = getattr(agent, begin)("because", session_id="s")
        reply = await (answered if begin == "chat" else answered.reply())
        assert (reply.run_id, reply.text, reply.pending) == (first.run_id, "Thank you.", ())
        log = [event async for event in agent.follow(first.run_id)]
        assert_laws(log)
        assert [event.text for event in of(log, EventType.RESOLVED)] == ["because"]


async def test_an_answer_by_message_is_given_by_the_first_consumer_and_not_before():
    async with Agent(model=ScriptedModel(*WAITS["a question"][:1], "Thank you."), tools=[ask_user]) as agent:
        first = await agent.chat("hello", session_id="s")
        chain = agent.stream("because", session_id="s")
        await turns(20)
        assert agent.attach(first.run_id).state is State.SUSPENDED
        await chain


async def test_a_session_that_waits_for_an_approval_refuses_the_next_message_and_loses_nothing():
    turn, tools, decide = WAITS["an approval"]
    async with Agent(model=ScriptedModel(turn, "done", "again"), tools=tools) as agent:
        chain = agent.stream("hello", session_id="s")
        (asked,) = (await chain.reply()).pending
        for begin in (agent.stream, agent.start):
            with pytest.raises(SessionBusyError, match="waits for an approval"):
                begin("and?", session_id="s")
        decide(chain, asked)
        assert (await chain.reply()).text == "done"
        assert (await agent.chat("and?", session_id="s")).text == "again"


async def test_a_run_that_waits_outlives_its_agent_in_a_store_that_was_passed_in():
    turn, tools, _ = WAITS["an approval"]
    store = InMemoryStore()
    async with Agent(model=ScriptedModel(turn), tools=tools, store=store) as agent:
        chain = agent.start("hello", session_id="s")
        (asked,) = (await chain.reply()).pending
    with pytest.raises(StoreError, match="waits on in its store"):
        await chain
    async with Agent(model=ScriptedModel("done"), tools=tools, store=store) as agent:
        (again,) = await agent.recover(chain.run_id)
        await turns(20)
        again.approve(asked.call_id, asked.arguments_hash)
        assert (await again.reply()).text == "done"
        assert_laws([event async for event in agent.follow(chain.run_id)])


async def test_a_run_that_waits_in_its_agents_own_store_ends_with_it():
    turn, tools, _ = WAITS["an approval"]
    async with Agent(model=ScriptedModel(turn), tools=tools) as agent:
        chain = agent.start("hello")
        await chain.reply()
    assert chain.state is State.CANCELLED
