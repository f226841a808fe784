"""Runs that another server works on: read, kept, cancelled and decided from here, as if they were here.

Two servers know of each other only by what they share: a store in virtual time, a file, a Redis server.
"""

import asyncio
import json
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.errors import NotPendingError
from agentflow.events import EventType, State, encode
from agentflow.settings import Settings
from agentflow.stores.redis import RedisStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools import ask_user
from agentflow.transports.adapter import Adapter
from agentflow.transports.auth import Caller
from agentflow.transports.bodies import Amend, Answer, Approve, AskBody, Reject
from agentflow.transports.server import Server
from tests.redis_servers import PROGRAMS, RedisProcess
from tests.transports.served import Frames, Gate, served
from tests.transports.serving_children import GRACE, PAUSE, serving, store_at, talking

ANN = Caller("ann")


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def look(what: str) -> str:
    """Look for something, for as long as it takes."""
    if what == "everything":
        await asyncio.get_running_loop().create_future()
    return what


# -- in virtual time: who keeps a run ------------------------------------------------------------------------


@asynccontextmanager
async def two_servers(model, **options):
    """One that begins runs and one that knows of them by the store, both with a grace of 30 s."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(aclosing(InMemoryStore(now=asyncio.get_running_loop().time)))
        servers = []
        for used in (model, ScriptedModel()):
            agent = await stack.enter_async_context(Agent(model=used, store=store, **options))
            servers.append(Server([agent], Settings(server={"grace": 30.0})))
            stack.push_async_callback(servers[-1].owner.aclose)
            stack.callback(servers[-1].presence.close)
            stack.enter_context(agent.bus.attach(servers[-1].presence.see))
        yield servers


async def begun(server):
    """A run that has said a word, and whose reader there has left."""
    run_id, events = await Adapter(server, ANN).run(AskBody(input="hello"))
    async for page in events:
        if any(event.type is EventType.DELTA for event in page):
            break
    await events.aclose()
    return run_id, server.chain(run_id)


async def read_for(server, run_id, seconds):
    """Follow the run at this server for a while."""
    events = await Adapter(server, ANN).follow(run_id)
    try:
        async with asyncio.timeout(seconds):
            async for _ in events:
                pass
    except TimeoutError:
        pass
    finally:
        await events.aclose()


@pytest.mark.virtual_time
async def test_a_reader_at_another_server_keeps_a_run_and_the_grace_begins_when_it_has_left():
    async with two_servers(Gate()) as (a, b):
        run_id, chain = await begun(a)
        await read_for(b, run_id, 300)
        assert chain.state is State.AWAITING_MODEL
        await asyncio.sleep(29)
        assert chain.state is State.AWAITING_MODEL
        assert (await chain).reason == "disconnect"
        assert 330 <= asyncio.get_running_loop().time() <= 340


@pytest.mark.virtual_time
async def test_readers_that_take_turns_at_both_servers_keep_a_run():
    async with two_servers(Gate()) as (a, b):
        run_id, chain = await begun(a)
        for server in (b, a, b, b, a):
            await asyncio.sleep(29)
            await read_for(server, run_id, 1)
        await asyncio.sleep(29)
        assert chain.state is State.AWAITING_MODEL
        assert (await chain).reason == "disconnect"


@pytest.mark.virtual_time
async def test_without_readers_anywhere_a_run_ends_after_the_grace():
    async with two_servers(Gate()) as (a, _):
        _, chain = await begun(a)
        assert (await chain).reason == "disconnect"
        assert asyncio.get_running_loop().time() == 30


# -- over a file and over Redis ------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", *(name for name in PROGRAMS if name != "system")])
def make_store(request, tmp_path):
    """Makes stores on the same data."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path / "store.db")
        return
    process = RedisProcess(tmp_path, PROGRAMS[request.param])
    yield lambda: RedisStore(process.url)
    process.kill()


@asynccontextmanager
async def two_apps(make_store, model):
    """Two apps with stores of their own on the same data, and agents of one name."""
    async with (
        aclosing(make_store()) as one,
        aclosing(make_store()) as two,
        served(Agent(model=model, tools=[pay, look, ask_user], store=one)) as a,
        served(Agent(model=ScriptedModel(), tools=[pay, look, ask_user], store=two)) as b,
    ):
        yield a, b


async def asked(a):
    """A run of `a` that waits: its path, and what for."""
    status, body = await a.posted("/api/agent/chat", {"input": "x"})
    assert status == 202
    return f"/api/runs/{body['run_id']}", body["pending"][0]


async def whole(b, path):
    """All events of a run to its end, as they are read there."""
    async with b.get(f"{path}/events") as response:
        events = await Frames(response).rest()
    assert_laws(await b.server.store.read(path.rpartition("/")[2], 0, 1000))
    return events


def of(events, kind):
    return [event for event in events if event["type"] == kind]


async def test_a_run_is_read_at_another_server_from_any_event_on(make_store):
    model = Gate()
    async with two_apps(make_store, model) as (a, b), a.post("/api/agent/stream", {"input": "x"}) as response:
        first = await Frames(response).next()
        await model.waiting.wait()
        path = f"/api/runs/{first['run_id']}"
        async with b.get(f"{path}/events", headers={"Last-Event-ID": f"{first['run_id']}:1"}) as there:
            frames = Frames(there)
            second = await frames.next()
            model.open.set()
            events = [first, second, *await frames.rest()]
        stored = await b.server.store.read(first["run_id"], 0, 100)
        assert events == [json.loads(encode(event)) for event in stored]
        assert events[-1]["type"] == "final"


async def test_a_run_is_cancelled_at_another_server(make_store):
    model = Gate()
    async with two_apps(make_store, model) as (a, b), a.post("/api/agent/stream", {"input": "x"}) as response:
        first = await Frames(response).next()
        await model.waiting.wait()
        path = f"/api/runs/{first['run_id']}"
        for _ in range(3):
            assert (await b.posted(f"{path}/cancel"))[0] == 202
        events = await whole(b, path)
        assert (events[-1]["type"], events[-1]["reason"]) == ("cancelled", "user")
        assert (await b.posted(f"{path}/cancel"))[0] == 202


DECISIONS = {
    "approve": (lambda wanted: {"arguments_hash": wanted["arguments_hash"]}, "[success]\npaid 5"),
    "reject": (lambda wanted: {"why": "too much"}, "[rejected]\na human rejected this call: too much"),
    "amend": (lambda wanted: {"arguments": {"amount": 3}}, "[success]\npaid 3"),
}


@pytest.mark.parametrize("verb", DECISIONS)
async def test_a_call_is_decided_at_another_server(make_store, verb):
    fields, result = DECISIONS[verb]
    model = ScriptedModel([call("pay", amount=5)], "So it is.", "So it is, then.")
    async with two_apps(make_store, model) as (a, b):
        path, wanted = await asked(a)
        decision = {"call_id": wanted["call_id"], **fields(wanted)}
        assert await b.posted(f"{path}/{verb}", decision) == (202, {"run_id": path.rpartition("/")[2]})
        events = await whole(b, path)
        assert events[-1]["tools"][0]["result"] == result
        status, body = await b.posted(f"{path}/{verb}", decision)
        assert (status, body["error"]["kind"]) == (409, "not_pending")


async def test_a_question_is_answered_at_another_server(make_store):
    async with two_apps(make_store, ScriptedModel([call("ask_user", question="Which?")], "Blue.")) as (a, b):
        path, _ = await asked(a)
        assert (await b.posted(f"{path}/answer", {"text": "the blue one"}))[0] == 202
        assert (await whole(b, path))[-1]["tools"][0]["result"] == "[success]\nthe blue one"


async def test_a_call_that_runs_is_amended_at_another_server(make_store):
    model = ScriptedModel([call("look", what="everything")], "Found.")
    async with two_apps(make_store, model) as (a, b), a.post("/api/agent/stream", {"input": "x"}) as response:
        frames = Frames(response)
        while (event := await frames.next())["type"] != "tool_start":
            pass
        path = f"/api/runs/{event['run_id']}"
        decision = {"call_id": event["call_id"], "arguments": {"what": "a key"}}
        assert (await b.posted(f"{path}/amend", decision))[0] == 202
        assert (await frames.rest())[-1]["tools"][0]["result"] == "[success]\na key"


async def test_what_the_log_says_is_refused_there_and_the_rest_by_a_warning_of_the_run(make_store):
    async with two_apps(make_store, ScriptedModel([call("pay", amount=5)], "So it is.")) as (a, b):
        path, wanted = await asked(a)
        known = {"call_id": wanted["call_id"]}
        for verb, fields in (
            ("answer", {"text": "x"}),
            ("answer", {"text": "x", "question_id": wanted["call_id"]}),
            ("approve", {"call_id": "unknown"}),
            ("approve", known | {"arguments_hash": "of others"}),
            ("reject", {"call_id": "unknown"}),
            ("amend", {"call_id": "unknown", "arguments": {"amount": 1}}),
        ):
            status, body = await b.posted(f"{path}/{verb}", fields)
            assert (status, body["error"]["kind"]) == (409, "not_pending"), verb
        assert (await b.posted(f"{path}/amend", known | {"arguments": {"amount": "much"}}))[0] == 202
        for _ in range(2):
            assert (await b.posted(f"{path}/approve", known))[0] in (202, 409)
        events = await whole(b, path)
        assert events[-1]["tools"][0]["result"] == "[success]\npaid 5"
        assert "decision_refused" in [event["code"] for event in of(events, "warning")]


async def test_a_decision_on_a_run_that_nobody_works_on_waits_for_who_takes_it_over(make_store):
    async with (
        aclosing(make_store()) as store,
        served(Agent(model=ScriptedModel("So it is."), tools=[pay], store=store)) as b,
    ):
        async with (
            aclosing(make_store()) as other,
            served(Agent(model=ScriptedModel([call("pay", amount=5)]), tools=[pay], store=other)) as a,
        ):
            path, wanted = await asked(a)
        assert (await b.posted(f"{path}/approve", {"call_id": wanted["call_id"]}))[0] == 202
        (letter,) = await store.list_letters(path.rpartition("/")[2])
        assert letter.arguments_hash == wanted["arguments_hash"]  # an approval is of what stood there
        await b.server.recover()
        assert (await whole(b, path))[-1]["tools"][0]["result"] == "[success]\npaid 5"


async def test_an_adapter_elsewhere_refuses_in_the_same_words_for_ended_runs(make_store):
    async with two_apps(make_store, ScriptedModel("Done.")) as (a, b):
        run_id = (await a.ask())["run_id"]
        adapter = Adapter(b.server, Caller())
        for decision in (
            Answer(text="x"),
            Approve(call_id="c"),
            Reject(call_id="c"),
            Amend(call_id="c", arguments={}),
        ):
            with pytest.raises(NotPendingError, match=r"\(completed\) waits for no"):
                await adapter.decide(run_id, decision)


# -- of processes --------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis8"])
def shared(request, tmp_path):
    """A store by its file or its server, as two processes name it."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.db")
        return
    process = RedisProcess(tmp_path, PROGRAMS[request.param])
    yield process.url
    process.kill()


@asynccontextmanager
async def two_processes(shared):
    """The base of another process that works on runs, and that process; and a server of the same store here."""
    with serving(shared) as (process, base):
        async with aclosing(store_at(shared)) as store, served(talking(store), grace=GRACE) as here:
            yield here, base, process


async def first_event(here, base, text):
    """The first event of a run that the other process has begun and works on; its reader there leaves."""
    async with here.client.post(f"{base}/api/agent/stream", json={"input": text}) as response:
        event = await Frames(response).next()
        response.close()
        return event


async def test_a_run_of_another_process_lives_as_long_as_it_is_read_here(shared):
    async with two_processes(shared) as (here, base, _):
        run_id = (await first_event(here, base, "talk"))["run_id"]
        async with here.get(f"/api/runs/{run_id}/events") as response:
            frames, said = Frames(response), 0
            while said < 4 * GRACE / PAUSE:  # which takes four times as long as the grace, at least
                event = await frames.next()
                assert event["type"] not in ("cancelled", "failed"), event
                if event["type"] == "delta":
                    said = int(event["text"].split()[-1])
            response.close()
        found = [event async for event in here.server.agent(None).follow(run_id, event["seq"])]
        assert (found[-1].type, found[-1].reason) == (EventType.CANCELLED, "disconnect")
        assert_laws(await here.server.store.read(run_id, 0, 10_000))


async def test_a_run_of_another_process_is_approved_and_one_is_stopped_from_here(shared):
    async with two_processes(shared) as (here, base, _):
        async with here.client.post(f"{base}/api/agent/chat", json={"input": "pay"}) as response:
            body = await response.json()
        decision = {"call_id": body["pending"][0]["call_id"]}
        assert (await here.posted(f"/api/runs/{body['run_id']}/approve", decision))[0] == 202
        assert (await whole(here, f"/api/runs/{body['run_id']}"))[-1]["text"] == "So it is."
        run_id = (await first_event(here, base, "talk"))["run_id"]
        assert (await here.posted(f"/api/runs/{run_id}/cancel"))[0] == 202
        assert (await whole(here, f"/api/runs/{run_id}"))[-1]["reason"] == "user"
