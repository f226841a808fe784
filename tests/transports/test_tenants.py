"""Users, what is theirs, and every way to get at it: what is another's looks as if it were not there.

What operators may, and that a key which is good no more ends what it has open, is shown here too.
"""

from contextlib import AsyncExitStack

import pytest

from agentflow import Agent, InMemoryStore, Settings, tool
from agentflow.models.base import ModelChunk
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, call
from tests.transports.every_route import COMMANDS, EXAMPLES, ROUTES, name_of, target
from tests.transports.served import Frames, Gate, read, served
from tests.transports.sockets import connected
from tests.transports.test_auth import bearer, made

NOTHING = "00000000-0000-4000-8000-000000000000"  # as long as any id, so that answers about it are
OWN = [route for route in ROUTES if "{id}" in route.path and not route.path.startswith("/v1/models")]
ABOUT_RUNS = {kind: fields for kind, fields in COMMANDS.items() if kind != "run"}
INDIFFERENT = {"/api/agents", "/api/tickets", "/v1/models", "/v1/models/{id}"}  # the same whoever is named
OPERATORS = [route for route in ROUTES if route.scope == "operator"]


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def count(request):
    """How many messages it was sent."""
    yield ModelChunk(text=str(len(request.messages)), finish_reason="stop")


class Tenants:
    """A server with keys of three users; the first has a run that waits, one that goes on, and one that has ended."""

    def __init__(self, here, gate, keys):
        self.here = here
        self.gate = gate
        self.ann, self.bob, self.root = map(bearer, keys)
        self.runs = {}

    async def begin(self):
        for agent, session in (("payer", "s-waits"), ("gate", "s-goes-on"), ("counter", "s-ended")):
            ask = {"input": "x", "agent": agent, "session_id": session, "detached": True}
            async with self.here.post("/api/agent/stream", ask, headers=self.ann) as response:
                frames = Frames(response)
                while (told := await frames.next())["type"] not in ("approval", "delta", "final"):
                    pass
                self.runs[session] = told["run_id"]
        await self.gate.waiting.wait()
        return self

    async def logs(self):
        """Everything that is kept of the runs."""
        store = self.here.server.store
        kept = [await store.read(run_id, 0, 1000) for run_id in self.runs.values()]
        sessions = [await store.find_session(SessionKey(name, "ann")) for name in self.runs]
        return kept, sessions

    async def answer(self, key, method, address, **options):
        """All that tells somebody something."""
        headers = key | options.pop("headers", {})
        async with self.here.client.request(method, self.here.base + address, headers=headers, **options) as response:
            told = {name: value for name, value in response.headers.items() if name != "Date"}
            return response.status, told, await response.text()


@pytest.fixture
async def tenants():
    store, gate = InMemoryStore(), Gate()
    agents = [
        Agent(name="payer", model=ScriptedModel([call("pay", amount=5)], "done"), tools=[pay], store=store),
        Agent(name="gate", model=gate, store=store),
        Agent(name="counter", model=count, store=store),
    ]
    made_keys = [made("ann"), made("bob"), made("root", "operator")]
    keys = {name: its for _, settings in made_keys for name, its in settings.items()}
    async with served(*agents, keys=keys) as here:
        here.keys = keys
        yield await Tenants(here, gate, [key for key, _ in made_keys]).begin()
    await store.aclose()


def attempts(run_id, session_id):
    """Every way in which a run or a session is named by an address or a header."""
    for route in OWN:
        about = session_id if "/sessions/" in route.path else run_id
        yield route.method, target(route, about), {"json": EXAMPLES[route.body]} if route.body else {}
    last = {"headers": {"Last-Event-ID": f"{run_id}:1"}}
    yield "GET", "/api/agent/stream?message=x", last
    yield "POST", "/api/agent/stream", {"json": {"input": "x"}} | last
    yield "GET", f"/api/runs/{run_id}/events?after=1&format=simple", {}


async def test_what_is_anothers_looks_as_if_it_were_not_there(tenants):
    before = await tenants.logs()
    for session_id, run_id in tenants.runs.items():
        nowhere = session_id.replace("s-", "n-")
        foreign, unknown = attempts(run_id, session_id), attempts(NOTHING, nowhere)
        for (method, address, options), (_, elsewhere, others) in zip(foreign, unknown, strict=True):
            status, headers, text = await tenants.answer(tenants.bob, method, address, **options)
            told = text.replace(run_id, NOTHING).replace(session_id, nowhere)
            expected = await tenants.answer(tenants.bob, method, elsewhere, **others)
            assert (status, headers, told) == expected, (method, address)
            assert status == 404, (method, address)
    assert await tenants.logs() == before
    assert (await tenants.here.json("/api/sessions", headers=tenants.bob))[1] == {"sessions": []}


async def test_commands_about_anothers_run_are_refused_as_if_there_were_none(tenants):
    before = await tenants.logs()
    for run_id in tenants.runs.values():
        async with connected(tenants.here, headers=tenants.bob) as client:
            for kind, fields in ABOUT_RUNS.items():
                foreign = await client.refused(kind, **fields | {"run_id": run_id})
                unknown = await client.refused(kind, **fields | {"run_id": NOTHING})
                assert foreign["kind"] == "run_not_found"
                assert str(foreign).replace(run_id, NOTHING) == str(unknown)
                asked = fields | {"run_id": run_id, "user_id": "ann"}  # nor does it help to say that one is her
                assert (await client.refused(kind, **asked))["kind"] == "forbidden"
    assert await tenants.logs() == before


async def test_a_session_of_the_same_name_is_another_users_own(tenants):
    before = await tenants.logs()
    for session_id in tenants.runs:
        ask = {"input": "x", "agent": "counter", "session_id": session_id}
        status, body = await tenants.here.posted("/api/agent/chat", ask, headers=tenants.bob)
        assert (status, body["content"]) == (200, "1")  # neither busy nor with anything that was said there
        said = {
            "model": "counter",
            "messages": [{"role": "user", "content": "x"}],
            "metadata": {"session_id": session_id},
        }
        status, body = await tenants.here.posted("/v1/chat/completions", said, headers=tenants.bob)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "3")  # after what he has just said himself
    sessions = (await tenants.here.json("/api/sessions", headers=tenants.bob))[1]["sessions"]
    assert [one["turns_stored"] for one in sessions] == [2, 2, 2]
    async with tenants.here.delete("/api/sessions/s-ended", headers=tenants.bob) as response:
        assert response.status == 204
    assert await tenants.logs() == before


async def test_a_thread_of_another_user_has_nothing_to_resume(tenants):
    before = await tenants.logs()

    async def resumed(thread):
        answer = {"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}
        body = {"threadId": thread, "runId": "r", "messages": [], "resume": [answer]}
        status, _, text = await tenants.answer(tenants.bob, "POST", "/agui", json=body)
        return status, read(text)

    assert await resumed("s-waits") == await resumed("s-nothing")
    assert await tenants.logs() == before


@pytest.mark.parametrize("user", ["ann", "nobody"])
async def test_nobody_acts_for_another_user_whether_there_is_one_or_not(tenants, user):
    for route in ROUTES:
        query = {"user_id": user} if route.query and "user_id" in route.query.model_fields else {}
        fields = {"user_id": user} if route.body and "user_id" in route.body.model_fields else {}
        if route.scope == "user" and (query or fields) and route.path not in INDIFFERENT:
            body = {"json": EXAMPLES[route.body] | fields} if route.body else {}
            upgrade = {"headers": {"Upgrade": "websocket"}} if route.path.endswith("/ws") else {}
            status, _, text = await tenants.answer(tenants.bob, route.method, target(route, **query), **body, **upgrade)
            assert (status, "forbidden" in text) == (403, True), name_of(route)


# -- operators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", OPERATORS, ids=name_of)
async def test_what_is_for_operators_is_for_no_user(tenants, route):
    status, _, text = await tenants.answer(tenants.bob, route.method, target(route))
    assert (status, "'operator'" in text) == (403, True)
    async with tenants.here.client.request(
        route.method, tenants.here.base + target(route), headers=tenants.root
    ) as response:
        assert response.status in (200, 404)  # metrics may not be installed


async def test_an_operator_sees_and_ends_runs_of_all_but_reads_no_talks(tenants):
    for run_id in tenants.runs.values():
        assert (await tenants.here.json(f"/api/runs/{run_id}", headers=tenants.root))[0] == 200
        assert (await tenants.here.posted(f"/api/runs/{run_id}/cancel", {}, headers=tenants.root))[0] == 202
    assert (await tenants.here.json("/api/sessions/s-ended", headers=tenants.root))[0] == 404
    assert (await tenants.here.json("/api/sessions", headers=tenants.root))[1] == {"sessions": []}
    ends = {}
    for session_id, run_id in tenants.runs.items():
        async with tenants.here.get(f"/api/runs/{run_id}/events", headers=tenants.root) as response:
            ends[session_id] = read(await response.text())[-1][1]["type"]
    assert ends == {"s-waits": "cancelled", "s-goes-on": "cancelled", "s-ended": "final"}


# -- revocation --------------------------------------------------------------------------------------------


async def heard(frames, word):
    """Whether something is told in which the word is."""
    while (told := await frames.next()) is not None:
        if word in str(told):
            return True
    return False


async def test_a_key_that_is_revoked_ends_every_kind_of_stream_and_no_others(tenants):
    here, run_id = tenants.here, tenants.runs["s-goes-on"]
    ask = {"input": "x", "agent": "gate", "detached": True}
    messages = [{"id": "1", "role": "user", "content": "x"}]
    streams = [
        ("GET", "/api/agent/stream?message=x&agent=gate&detached=true", None),
        ("POST", "/api/agent/stream", ask),
        ("GET", f"/api/runs/{run_id}/events", None),
        ("POST", "/agui?agent=gate", EXAMPLES[ROUTES_BY_PATH["/agui"].body] | {"messages": messages}),
        ("POST", "/v1/chat/completions", {"model": "gate", "messages": messages, "stream": True}),
        ("GET", "/api/events", None),
    ]

    async def opened(stack, headers, method, path, body):
        response = here.client.request(method, here.base + path, json=body, headers=headers)
        return Frames(await stack.enter_async_context(response))

    async with AsyncExitStack() as stack:
        hers = [await opened(stack, tenants.ann, *one) for one in streams[:-1]]
        roots = [await opened(stack, tenants.root, *one) for one in streams]
        socket = await stack.enter_async_context(connected(here, headers=tenants.ann))
        await socket.send("follow", run_id=run_id)
        await socket.until("delta")
        for frames in (*hers, *roots[:-1]):
            await frames.next()
        left = {name: its for name, its in here.keys.items() if its["user"] != "ann"}
        here.server.replace_keys(Settings(server={"keys": left}).server.keys)
        for frames in hers:
            await frames.rest()
        assert (await socket.closed())[0] == 1008
        assert (await tenants.answer(tenants.ann, "GET", "/api/agents"))[0] == 401
        tenants.gate.open.set()
        for frames in roots[:-1]:
            assert await heard(frames, "last")  # what the model says after the gate
        assert await roots[-1].next() is not None


ROUTES_BY_PATH = {route.path: route for route in ROUTES}
