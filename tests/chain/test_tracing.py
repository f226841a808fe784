from contextlib import contextmanager
from contextvars import ContextVar, copy_context

import pytest

from agentflow import Agent
from agentflow.bus import EventBus
from agentflow.chain.tracing import Untraced, incoming, install, installed, new_trace
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user

PLACE = ContextVar("place", default="nowhere")


class NotedTrace:
    """Notes what a run asks of its trace."""

    def __init__(self, notes, earlier):
        self.trace_id = earlier or "a" * 32
        self._notes = notes

    def begin(self, **fields):
        self._notes.append(("begin", fields["agent"], fields["session_id"]))

    def know(self, chain_id, tools, models):
        self._notes.append([tool.name for tool in tools])

    def carried(self):
        return {"carried": "yes"}

    def in_run(self):
        return _at("run")

    def in_chat(self, chain_id, request):
        return _at("chat")

    def in_call(self, call_id):
        return _at(f"call {call_id}")

    @contextmanager
    def memory(self, operation):
        self._notes.append(operation)
        yield

    def close(self):
        self._notes.append("close")


class NotedTracer:
    def __init__(self):
        self.notes = []

    def trace(self, bus, metadata, earlier):
        return NotedTrace(self.notes, earlier)

    @contextmanager
    def incoming(self, headers):
        self.notes.append(dict(headers))
        yield


def _at(place):
    context = copy_context()
    context.run(PLACE.set, place)
    return context


@pytest.fixture
def tracer():
    noted = NotedTracer()
    install(noted)
    yield noted
    install(None)


def test_a_run_that_nobody_traces_has_a_trace_id_of_its_own_and_keeps_the_one_it_had():
    assert installed() is None
    assert len(new_trace(EventBus(), {}).trace_id) == 32
    assert new_trace(EventBus(), {}, "b" * 32).trace_id == "b" * 32
    nothing = Untraced()
    assert (nothing.in_run(), nothing.in_call("c"), nothing.carried()) == (None, None, {})
    with incoming({"traceparent": "x"}), nothing.memory("search_memory"):
        pass


async def test_a_traced_run_tells_of_its_life_and_its_log_carries_the_trace(tracer):
    async with Agent(model=ScriptedModel("hello")) as agent:
        chain = agent.start("hi", session_id="s", metadata={"own": 1})
        await chain
        log = [event async for event in agent.follow(chain.run_id)]

    assert tracer.notes == [[], ("begin", "agent", "s"), "search_memory", "close"]
    assert {event.trace_id for event in log} == {"a" * 32}
    assert log[0].metadata == {"own": 1, "carried": "yes"}


async def test_calls_of_models_and_tools_run_where_the_trace_says_threads_included(tracer):
    places = []

    def look() -> str:
        """Look."""
        places.append(PLACE.get())
        return "seen"

    async def stare() -> str:
        """Stare."""
        places.append(PLACE.get())
        return "seen"

    script = ScriptedModel([call("look", id="c1"), call("stare", id="c2")], "done")

    async def model(request):
        places.append(PLACE.get())
        async for chunk in script.stream(request):
            yield chunk

    async with Agent(model=model, tools=[look, stare]) as agent:
        await agent.chat("hi")

    assert sorted(places) == ["call c1", "call c2", "chat", "chat"]


async def test_a_stream_that_nobody_consumes_begins_no_trace(tracer):
    async with Agent(model=ScriptedModel("hello")) as agent:
        agent.stream("hi")

    assert tracer.notes == [[]]


async def test_a_run_taken_over_goes_on_under_its_trace_id(tracer):
    store = InMemoryStore()

    def agent(*script):
        return Agent(model=ScriptedModel(*script), tools=[ask_user], store=store)

    async with agent([call("ask_user", question="Which?")]) as first:
        chain = first.start("hi", session_id="s")
        await chain.reply()
    install(None)
    async with agent("done") as second:
        (again,) = await second.recover(chain.run_id)
        again.answer("this")
        await again
        log = [event async for event in second.follow(chain.run_id)]

    assert {event.trace_id for event in log} == {"a" * 32}
    await store.aclose()
