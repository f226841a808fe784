"""However a run is left or stopped, it has one end, a lawful log, a usable session, and nothing of it goes on."""

import asyncio
import contextlib
import threading

import pytest

from agentflow import Agent, InMemoryStore, RunCancelled
from agentflow.errors import RequestError
from agentflow.events import EventType, State
from agentflow.streams import LoopClock
from agentflow.testing import LeakCheck, ScriptedModel, assert_laws, call, text
from tests.builders import ANSWER, log_of, mixed_run, served, turns


async def whole_run():
    async with served(*mixed_run()) as (_, agent):
        chain = agent.stream("hello", session_id="s")
        return [event async for event in chain]


async def check_end(provider, agent, run_id, reason):
    """The run has one lawful end, and the session takes the next turn of a strict provider."""
    log = await log_of(agent, run_id)
    assert_laws(log)
    end = log[-1]
    if end.type is EventType.FINAL:
        assert end.text == ANSWER
        assert [record.status for record in end.tools] == ["success"] * 5
    else:
        assert (end.type, end.reason) == (EventType.CANCELLED, reason)
    provider.scripts.clear()
    provider.scripts.append(text("Go on."))
    assert (await agent.chat("again", session_id="s")).text == "Go on."
    assert provider.refusals == []
    return end.type


def check_ends(ends):
    """Stopped before the last reply was whole, the run is cancelled; after it, the end is decided: `final`."""
    decided = ends.index(EventType.FINAL)
    assert set(ends[:decided]) == {EventType.CANCELLED}
    assert set(ends[decided:]) == {EventType.FINAL}
    assert len(ends) - decided <= 6  # delta, model_complete, two states and final may stand in one append


@pytest.fixture
def no_errors(caplog):
    """Nothing was dropped or went wrong on the way."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("agentflow")] == []


async def test_a_run_cancelled_from_a_tap_at_any_seq_ends_once_and_its_session_goes_on(no_errors):
    ends = []
    for seq in range(1, len(await whole_run()) + 1):
        async with LeakCheck(), served(*mixed_run()) as (provider, agent):
            chain = agent.stream("hello", session_id="s")
            agent.bus.attach(lambda event, seq=seq, chain=chain: chain.cancel() if event.seq == seq else None)
            await chain
            ends.append(await check_end(provider, agent, chain.run_id, "user"))
            assert agent.abandoned <= 1  # the plain function may be at work, and cannot be stopped
    check_ends(ends)


async def leave_by_break(chain, index):
    async for event in chain:
        if event.seq == index:
            break


async def leave_by_dispose(chain, index):
    done = asyncio.Event()

    def on_next(event):
        if event.seq == index:
            subscription.dispose()
            done.set()

    subscription = chain.subscribe(on_next)
    await done.wait()


async def leave_by_take(chain, index):
    done = asyncio.Event()
    seen = []
    chain.take(index).subscribe(seen.append, on_completed=done.set)
    await done.wait()
    assert [event.seq for event in seen] == list(range(1, index + 1))


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_dispose, leave_by_take])
async def test_a_run_left_by_its_consumer_at_any_index_is_cancelled_once_and_its_session_goes_on(leave, no_errors):
    ends = []
    for index in range(1, len(await whole_run()) + 1):
        async with LeakCheck(), served(*mixed_run()) as (provider, agent):
            chain = agent.stream("hello", session_id="s")
            await leave(chain, index)
            ends.append(await check_end(provider, agent, chain.run_id, "disconnect"))
    check_ends(ends)


async def test_the_providers_connection_is_gone_when_the_run_is_cancelled():
    async with served(*mixed_run()) as (provider, agent):
        chain = agent.start("hello")
        await provider.received()
        chain.cancel()
        await chain
        await provider.idle()
        assert provider.requests[0].ended == "client_left"


async def test_nothing_happens_before_the_first_consumer():
    model = ScriptedModel("hi")
    async with Agent(model=model) as agent:
        chain = agent.stream("hello")
        await turns()
        assert (model.requests, chain.state) == ([], State.IDLE)
        await chain
        assert len(model.requests) == 1


async def test_a_run_cancelled_before_its_start_shows_only_its_end_and_stores_no_turn():
    model = ScriptedModel("hi")
    async with Agent(model=model) as agent:
        chain = agent.stream("hello", session_id="s")
        chain.cancel("superseded")
        log = [event async for event in chain]
        assert [event.type for event in log] == [EventType.STATE, EventType.CANCELLED]
        assert log[-1].reason == "superseded"
        assert_laws(log)
        await agent.chat("again", session_id="s")
        assert [message.content for message in model.requests[0].messages] == ["again"]


@pytest.mark.parametrize("reason", ["user", "disconnect", "timeout", "shutdown", "superseded"])
async def test_a_cancel_tells_its_reason(reason):
    async with Agent(model=ScriptedModel("hi")) as agent:
        chain = agent.start("hello")
        chain.cancel(reason)
        with pytest.raises(RunCancelled) as caught:
            await chain.reply()
        assert (caught.value.reason, caught.value.run_id) == (reason, chain.run_id)


async def test_an_unknown_reason_is_refused():
    async with Agent(model=ScriptedModel("hi")) as agent:
        chain = agent.stream("hello")
        with pytest.raises(RequestError, match="'boredom'"):
            chain.cancel("boredom")


async def test_a_cancel_from_another_thread_ends_the_run_at_once():
    async def wait_for_ever() -> str:
        await asyncio.Event().wait()

    async with Agent(model=ScriptedModel([call("wait_for_ever")]), tools=[wait_for_ever]) as agent:
        chain = agent.stream("hello")
        seen = []
        async for event in chain:
            seen.append(event)
            if event.type is EventType.TOOL_START:
                thread = threading.Thread(target=chain.cancel)
                thread.start()
        thread.join()
        assert seen[-1].type is EventType.CANCELLED
        assert_laws(seen)


async def test_a_cancel_after_the_end_and_a_second_one_change_nothing():
    async with Agent(model=ScriptedModel("hi", "there")) as agent:
        chain = agent.start("hello")
        await chain
        chain.cancel()
        other = agent.start("hello")
        other.cancel("user")
        other.cancel("shutdown")
        assert (await other).reason == "user"
        assert (await chain).type is EventType.FINAL
        await turns()
        assert len(await log_of(agent, chain.run_id)) == (await chain).seq


@pytest.mark.virtual_time
async def test_a_run_over_its_time_is_cancelled_for_it():
    async def wait_for_ever() -> str:
        await asyncio.Event().wait()

    model = ScriptedModel([call("wait_for_ever")])
    async with Agent(model=model, tools=[wait_for_ever], timeout=20.0) as agent:
        end = await agent.stream("hello")
        assert (end.type, end.reason, end.duration_ms) == (EventType.CANCELLED, "timeout", 20000.0)
        assert_laws(await log_of(agent, end.run_id))


@pytest.mark.virtual_time
async def test_time_in_the_line_of_a_busy_session_counts():
    async def wait_for_ever() -> str:
        await asyncio.Event().wait()

    async with Agent(model=ScriptedModel([call("wait_for_ever")]), tools=[wait_for_ever], timeout=20.0) as agent:
        first = agent.start("hello", session_id="s")
        await asyncio.sleep(5)
        second = agent.start("hello", session_id="s")
        await asyncio.sleep(14.9)
        second.cancel("superseded")
        assert [(await chain).reason for chain in (second, first)] == ["superseded", "timeout"]
        await agent.start("again", session_id="s")  # the session is free


async def test_a_session_that_comes_although_the_run_was_cancelled_is_given_back():
    """As with a client library that swallows a cancel during a request."""

    class Deaf(InMemoryStore):
        gate = asyncio.Event()

        async def open_session(self, key, run_id, **options):
            while not self.gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.gate.wait()
            return await super().open_session(key, run_id, **options)

    store = Deaf()
    async with Agent(model=ScriptedModel("hi"), store=store) as agent:
        chain = agent.start("hello", session_id="s")
        await turns()
        chain.cancel()
        await chain
        store.gate.set()
        await turns()
        assert (await agent.chat("again", session_id="s")).text == "hi"
        assert_laws(await log_of(agent, chain.run_id))


@pytest.mark.virtual_time
async def test_a_tool_that_ignores_its_cancel_is_left_and_counted():
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    loop = asyncio.get_running_loop()
    agent = Agent(model=ScriptedModel([call("stubborn")]), tools=[stubborn])
    chain = agent.start("hello")
    await turns()
    chain.cancel()
    await chain
    assert loop.time() == 0.0  # the end does not wait for the tool
    await agent.aclose()
    assert (agent.abandoned, 1.0 <= loop.time() <= 2.0) == (1, True)
    release.set()
    await turns()
    assert_laws(await log_of(agent, chain.run_id))


@pytest.mark.virtual_time
async def test_a_tool_may_use_its_grace_to_clean_up():
    cleaned = []

    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.9)
            cleaned.append("tidy")

    async with Agent(model=ScriptedModel([call("tidy")]), tools=[tidy]) as agent:
        chain = agent.start("hello")
        await turns()
        chain.cancel()
        await chain
    assert (cleaned, agent.abandoned) == (["tidy"], 0)


@pytest.mark.virtual_time
async def test_a_model_that_ignores_its_cancel_stops_with_its_next_chunk_or_is_counted():
    release = asyncio.Event()

    async def deaf(request):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        yield None

    agent = Agent(model=deaf)
    chain = agent.start("hello")
    await turns()
    chain.cancel()
    await chain
    await agent.aclose()
    assert agent.abandoned == 1
    release.set()
    await turns()


async def test_a_sync_tool_that_hangs_is_abandoned_and_counted():
    release, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang() -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait()
        return "late"

    agent = Agent(model=ScriptedModel([call("hang")]), tools=[hang])
    chain = agent.start("hello")
    await begun.wait()
    await agent.aclose()
    assert (await chain).reason == "shutdown"
    assert agent.abandoned == 1
    release.set()
    assert_laws(await log_of(agent, chain.run_id))


@pytest.mark.virtual_time
async def test_an_ended_run_leaves_no_timer():
    timers = []

    class Counting(LoopClock):
        def call_later(self, delay, callback):
            timers.append(super().call_later(delay, callback))
            return timers[-1]

    loop = asyncio.get_running_loop()
    async with Agent(model=ScriptedModel("one two", "three four", delay=0.01), clock=Counting()) as agent:
        await agent.chat("hello")
        chain = agent.stream("hello")
        async for event in chain:
            if event.type is EventType.DELTA:
                chain.cancel()
        assert len(timers) >= 4  # of the runs and of their batches
        assert [timer for timer in timers if not timer.cancelled() and timer.when() > loop.time()] == []
