"""The tasks of a run and their way to the writer: order, windows, back-pressure, and whatever ends a task."""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk
from agentflow.chain.writer import MAX_WAITING
from agentflow.errors import AgentflowError, ModelError, StoreError
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

    async def append(self, run_id, events, *, token=None):
        if events[-1].seq > self._free:
            await self.gate.wait()
        await super().append(run_id, events, token=token)


async def test_a_model_far_ahead_of_the_log_is_held_back():
    given, store = [], Stuck(free=5)

    async def fast(request):
        for number in range(100_000):
            given.append(number)
            # Each piece changes the channel, so that none is joined with the next.
            yield ModelChunk(text="a") if number % 2 else ModelChunk(reasoning="b")

    async with Agent(model=fast, store=store) as agent:
        chain = agent.start("hello")
        await turns(50)
        assert len(given) < 5
        store.gate.set()
        chain.cancel()
        await chain


class Slow(InMemoryStore):
    """Takes its time for every append, longer than a window."""

    async def append(self, run_id, events, *, token=None):
        await asyncio.sleep(0.75)
        await super().append(run_id, events, token=token)


@pytest.mark.virtual_time
@pytest.mark.parametrize("channel", ["answer", "reasoning"])
async def test_a_crash_at_any_moment_would_cost_a_reply_at_most_one_window_of_its_text(channel):
    given, behind = [], []

    async def model(request):
        for number in range(300):
            given.append(f"{number}")
            behind.append(len(given) - len(logged))
            yield ModelChunk(text=f"{number} ") if channel == "answer" else ModelChunk(reasoning=f"{number} ")
            await asyncio.sleep(0.02)
        yield ModelChunk(text="done")

    logged = []
    async with Agent(model=model, store=Slow()) as agent:
        agent.bus.attach(lambda event: logged.extend(event.text.split() if event.type is EventType.DELTA else ()))
        await agent.start("hello")
    assert logged == [*given, "done"]
    # What a window of 200 ms joins of a word every 20 ms, and perhaps one that was being read when it closed.
    assert 10 <= max(behind) <= 11


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


# -- whatever ends a task --------------------------------------------------------------------------------


def cancel_all_others():
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("where", ["in its model", "in its tool", "in its opening", "in its writer"])
async def test_a_run_whose_task_is_cancelled_from_outside_stops_and_tells_its_consumers(where):
    hold = asyncio.Event()

    class Holding(InMemoryStore):
        async def open_session(self, key, run_id, **options):
            if where == "in its opening":
                await hold.wait()
            return await super().open_session(key, run_id, **options)

        async def append(self, run_id, events, *, token=None):
            if where == "in its writer":
                await hold.wait()
            await super().append(run_id, events, token=token)

    async def wait() -> str:
        await hold.wait()
        return "done"

    async def model(request):
        if where == "in its model":
            await hold.wait()
        if where == "in its tool" and request.messages[-1].role == "user":
            yield ModelChunk(calls=(CallRequest(name="wait", arguments="{}"),))
        yield ModelChunk(text="hi")

    async with Agent(model=model, tools=[wait], store=Holding()) as agent:
        chain = agent.start("hello", session_id="s")
        await turns()
        cancel_all_others()
        with pytest.raises(StoreError, match=r"was cancelled from outside|could not be written"):
            await chain
        with pytest.raises(StoreError):
            await chain.reply()
        hold.set()
        await turns()
        assert agent._runs == {}
        assert (await agent.chat("again", session_id="s")).text == "hi"


async def test_a_task_that_cancels_itself_fails_the_run():
    async def model(request):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
        yield ModelChunk(text="never")

    async with Agent(model=model) as agent:
        with pytest.raises(AgentflowError, match="cancelled"):
            await agent.chat("hello")


async def test_what_raised_in_a_model_is_logged_with_its_traceback_and_told_in_one_line(caplog):
    def fault():
        raise ValueError("the cause")

    async def model(request):
        fault()
        yield ModelChunk()

    log = await run(model)
    assert log[-1].error.message == "the model call raised ValueError: the cause"
    (record,) = caplog.records
    assert record.exc_info[2].tb_next is not None
    assert "in fault" in caplog.text


async def test_the_text_of_an_error_is_bounded_and_clean():
    class Untold(Exception):
        def __str__(self):
            raise RuntimeError("not even this")

    for error, message in (
        (ValueError("x" * 1_000_000), "the model call raised ValueError: " + "x" * 1966),
        (ValueError("a\ud800"), "the model call raised ValueError: a\ufffd"),
        (Untold(), "the model call raised Untold: "),
        (ModelError("x" * 1_000_000), "x" * 2000),
    ):
        log = await run([error])
        assert log[-1].error.message == message


async def test_text_that_was_said_before_something_else_is_told_before_it():
    async def model(request):
        if request.messages[-1].role == "user":
            yield ModelChunk(text="one ")
            yield ModelChunk(text="two ")
            yield ModelChunk(text="three ", calls=(CallRequest(name="look", arguments='{"key": "a"}'),))
        else:
            yield ModelChunk(text="done")

    log = await run(model)
    told = [getattr(event, "text", event.type.value) for event in of(log, EventType.DELTA, EventType.MODEL_COMPLETE)]
    assert told == ["one ", "two three ", "model_complete", "done", "model_complete"]
