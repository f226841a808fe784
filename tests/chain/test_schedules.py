"""Any schedule of outcomes, cancels and leaving consumers: one end, the laws, a paired history."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow import Agent, InMemoryStore, ModelChunk
from agentflow.errors import ModelConnectionError
from agentflow.events import TERMINAL_TYPES
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, assert_laws, run_virtual

SECONDS = st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0, 3.0])

calls = st.builds(
    lambda how, seconds: CallRequest(name="act", arguments=f'{{"how": "{how}", "seconds": {seconds}}}'),
    st.sampled_from(["return", "raise", "ignore", "stream", "nonsense"]),
    SECONDS,
)
steps = st.one_of(
    st.text("ab ü", min_size=1, max_size=5),
    calls,
    st.just(ModelChunk(reasoning="hm")),
    st.just(ModelChunk(finish_reason="length")),
    st.just(ModelConnectionError("gone")),
    st.just(ModelChunk(text="5")),
    st.just(ModelChunk(finish_reason="error")),
    st.just(ValueError("a bug")),
)
turns = st.lists(st.lists(steps, max_size=5), min_size=1, max_size=4)
options = st.sampled_from([{}, {"degraded": "Not now."}, {"output": int}, {"output": int, "degraded": "Not now."}])
disturbances = st.lists(st.tuples(SECONDS, st.sampled_from(["cancel", "leave", "close"])), max_size=2)


async def act(how: str, seconds: float):
    """Do what the schedule says, after so many seconds."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if how != "ignore":
            raise
        await asyncio.sleep(0.4)  # within its grace
    if how == "raise":
        raise ValueError("the tool failed")
    yield "one "
    if how == "stream":
        await asyncio.sleep(seconds)
        yield "two"


async def consume(chain):
    async for _ in chain:
        pass


async def play(script, delay, parallel, disturbed, **options):
    store = InMemoryStore()
    model = ScriptedModel(*script, "the end", delay=delay)
    agent = Agent(model=model, tools=[act], store=store, timeout=5.0, max_iterations=3, **options)
    chain = agent.stream("hello", session_id="s")
    events = []
    agent.bus.attach(events.append)
    consumers = [asyncio.get_running_loop().create_task(consume(chain)) for _ in range(parallel)]
    for seconds, what in disturbed:
        await asyncio.sleep(seconds)
        if what == "cancel":
            chain.cancel()
        elif what == "leave" and consumers:
            consumers.pop().cancel()
        elif what == "close":
            await agent.aclose()
    await asyncio.gather(*consumers, return_exceptions=True)
    await agent.aclose()
    assert len(asyncio.all_tasks()) == 1
    if events:  # a consumer that leaves before its first step has never begun
        assert_laws(events)
        assert events == list(await store.read(chain.run_id, 0, 1000))
        assert [event for event in events if event.type in TERMINAL_TYPES] == events[-1:]
        session = await store.open_session(SessionKey("s"), "next")
        assert [unpaired(turn.messages) for turn in session.turns] == [None] * len(session.turns)
    return events


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns, st.sampled_from([0.0, 0.03]), st.integers(1, 2), disturbances, options)
def test_any_schedule_keeps_the_laws(script, delay, parallel, disturbed, options):
    run_virtual(play(script, delay, parallel, disturbed, **options))


def test_the_schedules_reach_every_end():
    """The strategy above would prove little if it did not; these are points of it."""
    ends = {
        run_virtual(play(*schedule))[-1].type.value
        for schedule in (
            ([["hello"]], 0.0, 1, []),
            ([[ValueError("a bug")]], 0.0, 1, []),
            ([[CallRequest(name="act", arguments='{"how": "ignore", "seconds": 3.0}')]], 0.0, 1, [(0.2, "cancel")]),
        )
    }
    assert ends == {"final", "failed", "cancelled"}
