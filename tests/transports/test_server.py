import asyncio

import pytest

from agentflow import Agent, InMemoryStore, Settings
from agentflow.errors import ConfigError, StoreError
from agentflow.events import EventType
from agentflow.stores.base import OutcomeKey
from agentflow.testing import ScriptedModel, call, run_virtual
from agentflow.transports.auth import Caller
from agentflow.transports.bodies import AskBody
from agentflow.transports.refusals import Refused
from agentflow.transports.server import Server
from agentflow.transports.toolless import without_tools
from tests.chain.crashes import acting, kill_at, saying
from tests.transports.served import Gate, HandClock, pair, read, served


def agents(**models):
    return pair(**models or {"one": ScriptedModel("one", "one"), "two": ScriptedModel("two")})


def test_the_agents_of_a_server_share_a_store_and_have_names():
    with pytest.raises(ConfigError, match="at least one agent"):
        Server([], Settings())
    with pytest.raises(ConfigError, match="different names"):
        Server(pair(one=None) * 2, Settings())
    with pytest.raises(ConfigError, match="share a store"):
        Server([Agent(name="one"), Agent(name="two")], Settings())


async def test_a_request_names_its_agent_or_gets_the_first():
    async with served(*agents()) as here:
        assert (await here.ask())["content"] == "one"
        assert (await here.ask(agent="two"))["content"] == "two"
        status, body = await here.posted("/api/agent/chat", {"input": "x", "agent": "three"})
        assert status == 400
        assert "'three'; there are: one, two" in body["error"]["message"]


async def test_the_same_request_is_one_run_however_often_it_is_sent():
    model = ScriptedModel(*["Hello there."] * 5)
    async with served(Agent(model=model)) as here:
        ask = {"input": "x", "request_id": "r1"}
        at_once = await asyncio.gather(*(here.posted("/api/agent/chat", ask) for _ in range(10)))
        later = await here.posted("/api/agent/chat", ask)
        by_header = await here.posted("/api/agent/chat", {"input": "x"}, headers={"Idempotency-Key": "r1"})
        assert {status for status, _ in (*at_once, later, by_header)} == {200}
        assert len({body["run_id"] for _, body in (*at_once, later, by_header)}) == 1
        assert len(model.requests) == 1


async def test_the_same_request_may_be_sent_in_an_address_and_in_a_body():
    async with served() as here:
        first = await here.ask("x", request_id="r1")
        async with here.get("/api/agent/stream?message=x&request_id=r1&format=events") as response:
            assert read(await response.text())[0][1]["run_id"] == first["run_id"]


@pytest.mark.parametrize("other", [{"input": "y"}, {"session_id": "s"}, {"metadata": {"a": 1}}, {"detached": True}])
async def test_the_id_of_a_request_stands_for_no_other(other):
    async with served() as here:
        ask = {"input": "x", "request_id": "r1"}
        assert (await here.posted("/api/agent/chat", ask))[0] == 200
        status, body = await here.posted("/api/agent/chat", ask | other)
        assert (status, body["error"]["kind"]) == (409, "conflict")


async def test_users_do_not_get_into_each_others_way_with_their_ids():
    async with served() as here:
        first = await here.ask(request_id="r1", user_id="a")
        second = await here.ask(request_id="r1", user_id="b")
        assert first["run_id"] != second["run_id"]


async def test_a_request_that_could_not_begin_leaves_its_id_free():
    async with served(Agent(model=ScriptedModel("Hello."))) as here:
        ask = {"input": "x", "request_id": "r1"}
        assert (await here.posted("/api/agent/chat", ask | {"model": "nobody/knows"}))[0] == 400
        assert (await here.posted("/api/agent/chat", ask))[0] == 200


async def test_a_restart_knows_the_requests_of_before():
    store = InMemoryStore()
    async with served(Agent(model=ScriptedModel("Hello."), store=store)) as here:
        first = await here.ask(request_id="r1")
    async with served(Agent(model=ScriptedModel(), store=store)) as here:
        assert await here.ask(request_id="r1") == first
    await store.aclose()


async def test_a_client_that_leaves_while_its_run_is_begun_finds_it_again():
    class Slow(InMemoryStore):
        claiming = asyncio.Event()
        on = asyncio.Event()

        async def claim_outcome(self, key, call_id):
            self.claiming.set()
            await self.on.wait()
            return await super().claim_outcome(key, call_id)

    store = Slow()
    async with served(Agent(model=ScriptedModel("Hello."), store=store)) as here:
        leaving = asyncio.ensure_future(here.posted("/api/agent/chat", {"input": "x", "request_id": "r1"}))  # noqa: TID251  a client
        await store.claiming.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        store.on.set()
        assert (await here.ask("x", request_id="r1"))["content"] == "Hello."
        assert len(await store.list_runs()) == 1
    await store.aclose()


async def test_a_claim_of_a_process_that_died_is_a_conflict_and_never_a_second_run():
    async with served() as here:
        await here.server.store.claim_outcome(OutcomeKey("agentflow request", "r1"), "dead")
        status, body = await here.posted("/api/agent/chat", {"input": "x", "request_id": "r1"})
        assert (status, body["error"]["kind"]) == (409, "outcome_pending")


async def test_a_request_that_a_busy_session_refused_may_be_sent_again():
    model = Gate()
    settings = Settings(session={"busy": "reject"})
    async with served(Agent(model=model, settings=settings), settings=settings) as here:
        holder = await here.server.begin(Caller(), AskBody(input="x", session_id="s"), None)
        await model.waiting.wait()
        ask = {"input": "y", "session_id": "s", "request_id": "r1"}
        for _ in range(2):
            status, body = await here.posted("/api/agent/chat", ask)
            assert (status, body["error"]["kind"]) == (409, "busy")
        model.open.set()
        await here.server.chain(holder)
        first, second = await here.posted("/api/agent/chat", ask), await here.posted("/api/agent/chat", ask)
        assert first[0] == 200
        assert first == second


async def test_a_request_whose_run_waits_for_its_session_is_told_so_elsewhere(monkeypatch):
    monkeypatch.setattr("agentflow.transports.server._PATIENCE", 0.0)
    model, store = Gate(), InMemoryStore()
    async with served(Agent(model=model, store=store)) as here, served(Agent(model=model, store=store)) as there:
        await here.server.begin(Caller(), AskBody(input="x", session_id="s"), None)
        await model.waiting.wait()
        ask = AskBody(input="y", session_id="s")
        waits = await here.server.begin(Caller(), ask, "r1")
        assert await here.server.begin(Caller(), ask, "r1") == waits
        with pytest.raises(Refused, match="another process has begun with request_id 'r1'"):
            await there.server.begin(Caller(), ask, "r1")
        model.open.set()
        await here.server.chain(waits)
        assert await there.server.begin(Caller(), ask, "r1") == waits
    await store.aclose()


async def test_a_model_that_cannot_be_is_the_requests_fault_only_if_it_names_it():
    settings = Settings(model={"default": "openai/x", "allowed": ["openai/*"]})
    async with served(Agent(settings=settings), settings=settings) as here:
        status, body = await here.posted("/api/agent/chat", {"input": "x", "model": "groq/y"})
        assert (status, body["error"]["kind"]) == (400, "config")
        assert "is not allowed" in body["error"]["message"]
        status, body = await here.posted("/api/agent/chat", {"input": "x"})
        assert (status, body["error"]["kind"]) == (503, "config")


async def test_a_run_is_its_users_from_the_first_moment():
    agent = Agent(model=Gate())
    async with served(agent) as here:
        run_id = await here.server.begin(Caller("a"), AskBody(input="x"), None)
        await here.server.check_run(Caller("a"), run_id)  # before its first event
        for other in (Caller("b"), Caller()):
            with pytest.raises(Refused):
                await here.server.check_run(other, run_id)
        await here.server.check_run(Caller("o", "k", frozenset({"operator"})), run_id)


async def test_a_run_that_ended_before_its_input_is_nobodys():
    async with served() as here:
        chain = here.server.agent(None).stream("x", user_id="a")
        chain.cancel()
        await chain
        for caller in (Caller("a"), Caller("b"), Caller()):
            with pytest.raises(Refused):
                await here.server.check_run(caller, chain.run_id)


async def test_a_store_that_fails_is_no_fault_of_the_server():
    class Failing(InMemoryStore):
        async def claim_outcome(self, key, call_id):
            raise StoreError("the disk is full")

    store = Failing()
    async with served(Agent(model=ScriptedModel("Hello."), store=store)) as here:
        status, body = await here.posted("/api/agent/chat", {"input": "x", "request_id": "r1"})
        assert (status, body["error"]) == (503, {"kind": "store", "message": "the disk is full"})
    await store.aclose()


@pytest.fixture
def left_behind():
    """What is in the store when a process died while a tool ran."""
    return kill_at(story, lambda event: event.type is EventType.TOOL_START)


def story(store, done):
    return Agent(model=saying((call("act", what="a"),)), tools=[acting(done, "act")], store=store)


async def test_runs_whose_process_died_are_taken_over_and_need_no_readers(left_behind):
    store, done = left_behind
    (record,) = await store.list_runs()
    clock = HandClock()
    async with served(story(store, done), clock=clock) as here:
        await here.server.recover()
        clock.advance(1000)
        async with here.get(f"/api/runs/{record.run_id}/events") as response:
            assert read(await response.text())[-1][1]["type"] == "final"


def test_what_a_process_held_that_died_just_now_is_taken_over_when_its_leases_lapse():
    store, done = kill_at(story, lambda event: event.type is EventType.TOOL_START, later=0.0)

    async def second_life():
        store._now = asyncio.get_running_loop().time
        async with story(store, done) as agent:
            server = Server([agent], Settings())
            await server.recover()
            assert len(server.presence) == 0
            task = server.owner.spawn(server.keep_recovering(), name="test")
            (record,) = await store.list_runs()
            assert [event.type async for event in agent.follow(record.run_id)][-1] is EventType.FINAL
            server.draining = True
            await task
            server.presence.close()

    run_virtual(second_life())


def title(store, done):
    return without_tools(Agent(name="shop", model=saying(()), store=store), Settings())


@pytest.fixture
def left_behind_without_tools():
    """What is in the store when a process died while it asked for a title."""
    return kill_at(title, lambda event: event.type is EventType.MODEL_START)[0]


async def test_a_run_without_tools_whose_process_died_is_ended_and_frees_its_session(left_behind_without_tools):
    store = left_behind_without_tools
    (record,) = await store.list_runs()
    async with served(Agent(name="shop", model=ScriptedModel("Hello."), store=store)) as here:
        await here.server.recover()
        assert [event.type async for event in here.server.agent(None).follow(record.run_id)][-1] is EventType.CANCELLED
        assert (await here.ask(session_id=record.session.session_id))["content"] == "Hello."
