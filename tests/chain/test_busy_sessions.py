"""A message to a session that a run holds: it waits, is refused, or ends that run; and a session that is deleted."""

import asyncio

import msgspec
import pytest

from agentflow import Agent, ModelChunk, tool
from agentflow.chain.leases import LEASE_SECONDS
from agentflow.errors import SessionBusyError
from agentflow.events import EventType, State
from agentflow.settings import Settings
from agentflow.stores.base import MAX_WAITING, SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import log_of, turns

pytestmark = pytest.mark.virtual_time

SESSION = SessionKey("s", "u")
OURS = {"session_id": "s", "user_id": "u"}


class Slow:
    """Answers with what it was asked; "wait" takes an hour. Keeps what each request showed of the conversation."""

    provider = name = "slow"

    def __init__(self):
        self.seen = []

    async def stream(self, request):
        said = [message.text for message in request.messages]
        self.seen.append(said)
        yield ModelChunk(text=f"{said[-1]}, ")
        await asyncio.sleep(3600 if said[-1] == "wait" else 1)
        yield ModelChunk(text="done", finish_reason="stop")


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def a_store():
    """One whose leases lapse in virtual time."""
    return InMemoryStore(now=asyncio.get_running_loop().time)


def agent_of(store, busy="supersede", model=None, **options):
    settings = Settings(session={"busy": busy}, chain={"timeout": 7200})
    return Agent(model=model or Slow(), store=store, settings=settings, **options)


@pytest.fixture(params=["in_memory", "sqlite"])
async def stores(request, tmp_path):
    """Two clients of one store, as two processes have them."""
    if request.param == "in_memory":
        both = [a_store()] * 2
    else:
        both = [SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db")]
    yield both
    for store in both:
        await store.aclose()


async def said_in(store):
    return [[message.text for message in turn.messages] for turn in await store.read_turns(SESSION, 0, 100)]


def now():
    return asyncio.get_running_loop().time()


async def begun(chain):
    """Wait until the run's model has begun to answer."""
    async for event in chain:
        if event.type is EventType.DELTA:
            return


async def test_messages_to_a_busy_session_are_answered_one_after_another_in_their_order():
    model, store = Slow(), a_store()
    async with agent_of(store, "queue", model) as agent:
        chains = [agent.start(f"message {number}", **OURS) for number in range(4)]
        logs = [[event async for event in chain] for chain in chains]
        assert [log[-1].type for log in logs] == [EventType.FINAL] * 4
        assert [log[0].history_version for log in logs] == [0, 1, 2, 3]
        assert model.seen[3][-3:] == ["message 2", "message 2, done", "message 3"]
        assert [texts[0] for texts in await said_in(store)] == [f"message {number}" for number in range(4)]


async def test_more_messages_than_may_wait_are_refused_and_the_others_are_answered():
    async with agent_of(a_store(), "queue") as agent:
        chains = [agent.start("hello", **OURS) for _ in range(1 + MAX_WAITING + 2)]
        ends = await asyncio.gather(*chains, return_exceptions=True)
        assert [type(end) for end in ends[-2:]] == [SessionBusyError] * 2
        assert [end.type for end in ends[:-2]] == [EventType.FINAL] * (1 + MAX_WAITING)


async def test_by_setting_a_message_to_a_busy_session_is_refused_and_the_run_goes_on(stores):
    async with agent_of(stores[0], "reject") as agent, agent_of(stores[1], "reject") as elsewhere:
        first = agent.start("wait", **OURS)
        await begun(first)
        for other in (agent, elsewhere):
            with pytest.raises(SessionBusyError, match="'s'"):
                await other.chat("hello", **OURS)
        assert (await first).type is EventType.FINAL
        assert (await elsewhere.chat("hello", **OURS)).text == "hello, done"


async def test_by_setting_a_message_ends_the_run_that_holds_the_session_at_once_and_sees_what_it_had_said():
    model, store = Slow(), a_store()
    async with agent_of(store, model=model) as agent:
        first = agent.start("wait", **OURS)
        await begun(first)
        began = now()
        second = agent.start("hello", **OURS)
        log = await log_of(agent, first.run_id)
        assert now() == began
        assert_laws(log)
        assert (log[-1].type, log[-1].reason) == (EventType.CANCELLED, "superseded")
        assert (await second).text == "hello, done"
        assert [text.strip() for text in model.seen[1]] == ["wait", "wait,", "hello"]
        assert len(await said_in(store)) == 2


async def test_who_supersedes_passes_over_those_that_wait_and_only_those_of_this_session():
    store = a_store()
    async with agent_of(store) as agent:
        chains = [agent.start("wait", **OURS), agent.start("wait", **OURS), agent.start("hello", **OURS)]
        others = [agent.start("hello", session_id="s", user_id="v"), agent.start("hello", session_id="t", user_id="u")]
        ends = [await chain for chain in chains]
        assert [end.reason for end in ends[:2]] == ["superseded"] * 2
        assert [end.text for end in (ends[2], *[await chain for chain in others])] == ["hello, done"] * 3
        assert [texts[0] for texts in await said_in(store)] == ["hello"]  # the others had not begun


async def test_a_run_of_another_process_hears_that_it_is_superseded_when_it_renews_its_lease(stores):
    async with agent_of(stores[0]) as agent, agent_of(stores[1]) as elsewhere:
        first, waits = agent.start("wait", **OURS), agent.start("other", session_id="t")
        await begun(first)
        began = now()
        second = elsewhere.start("hello", **OURS)
        log = await log_of(agent, first.run_id)
        assert now() - began <= LEASE_SECONDS / 3
        assert (log[-1].type, log[-1].reason) == (EventType.CANCELLED, "superseded")
        assert (await second).text == "hello, done"
        assert (await waits).type is EventType.FINAL


async def test_a_run_that_waits_for_a_human_is_superseded_too(stores):
    model = ScriptedModel([call("pay", amount=5)])
    async with agent_of(stores[0], model=model, tools=[pay]) as agent, agent_of(stores[1]) as elsewhere:
        first = agent.start("pay", **OURS)
        while first.state is not State.SUSPENDED:
            await turns(1)
        assert (await elsewhere.chat("hello", **OURS)).text == "hello, done"
        assert (await first).reason == "superseded"


async def test_the_run_of_a_session_that_is_deleted_ends_and_nothing_of_it_is_kept(stores):
    async with agent_of(stores[0], "queue") as agent, agent_of(stores[1], "queue") as elsewhere:
        await agent.chat("before", **OURS)
        first, second = agent.start("wait", **OURS), agent.start("wait", **OURS)
        await begun(first)
        began = now()
        await stores[1].delete_session(SESSION)
        assert await stores[1].find_session(SESSION) is None
        ends = [await first, await second]
        assert now() - began <= LEASE_SECONDS / 3
        assert [(end.type, end.reason) for end in ends] == [(EventType.CANCELLED, "user")] * 2
        assert (await elsewhere.chat("hello", **OURS)).text == "hello, done"
        assert await said_in(stores[0]) == [["hello", "hello, done"]]


async def test_a_run_that_was_asked_to_end_while_its_process_was_dead_ends_once_it_is_recovered(stores):
    async with agent_of(stores[0], "queue") as agent:
        chain = agent.start("wait", **OURS)
        await begun(chain)
        events = await stores[0].read(chain.run_id, 0, 100)
    dead = {"run_id": "dead", "chain_id": "dead"}
    await stores[0].append("dead", [msgspec.structs.replace(event, **dead) for event in events])
    await stores[0].open_session(SESSION, "dead")
    await stores[1].delete_session(SESSION)
    async with agent_of(stores[1], "queue") as after:
        (recovered,) = await after.recover()
        assert (recovered.run_id, (await recovered).reason) == ("dead", "user")
        assert await stores[1].find_session(SESSION) is None
