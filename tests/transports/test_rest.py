import asyncio
import json

import pytest

from agentflow import Agent, InMemoryStore, Settings, tool
from agentflow.errors import ModelRateLimitError, StoreError
from agentflow.events import State
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports import create_app
from tests.transports.served import Gate, HandClock, listening, pair, served


@tool(examples=[{"a": 1, "b": 2}])
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def test_a_whole_answer_says_what_was_said_done_and_used():
    agent = Agent(model=ScriptedModel([call("add", a=1, b=2)], "It is three."), tools=[add])
    async with served(agent) as here:
        body = await here.ask("add", session_id="s1")
        assert set(body) == {"content", "session_id", "run_id", "tool_history", "input_tokens", "output_tokens"}
        assert (body["content"], body["session_id"]) == ("It is three.", "s1")
        (record,) = body["tool_history"]
        assert (record["tool"], record["arguments"], record["status"]) == ("add", {"a": 1, "b": 2}, "success")
        assert body["input_tokens"] > body["output_tokens"] > 0


@pytest.mark.parametrize(
    ("turn", "tools", "kind"),
    [
        ([call("pay", amount=5)], [pay], "approval"),
        ([call("ask_user", question="Why?")], [ask_user], "question"),
        (['{"question": "Why?", "options": []}'], [], "question"),
    ],
)
async def test_a_run_that_waits_for_people_is_answered_with_what_it_waits_for(turn, tools, kind):
    async with served(Agent(model=ScriptedModel(turn, "done"), tools=tools)) as here:
        status, body = await here.posted("/api/agent/chat", {"input": "x", "request_id": "r"})
        assert status == 202
        assert [one["type"] for one in body["pending"]] == [kind]
        assert await here.posted("/api/agent/chat", {"input": "x", "request_id": "r"}) == (202, body)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(ModelRateLimitError("slow down"), 502, "rate_limit"), (ValueError("a secret"), 502, "model")],
)
async def test_a_run_that_failed_is_told_by_a_status_and_which_run_it_was(error, status, kind):
    settings = Settings(model={"retries": {"attempts": 1}})
    async with served(Agent(model=ScriptedModel([error]), settings=settings)) as here:
        answered, body = await here.posted("/api/agent/chat", {"input": "x", "session_id": "s1"})
        assert (answered, body["error"]["kind"], body["session_id"]) == (status, kind, "s1")
        assert (await here.json(f"/api/runs/{body['run_id']}"))[1]["state"] == "failed"


@pytest.mark.parametrize(("reason", "status"), [("user", 409), ("timeout", 504), ("shutdown", 503)])
async def test_a_run_that_was_cancelled_is_told_so(reason, status):
    model = Gate()
    agent = Agent(model=model)
    async with served(agent) as here:
        asking = here.posted("/api/agent/chat", {"input": "x"})

        async def cancel():
            await model.waiting.wait()
            (record,) = await here.server.store.list_runs()
            agent.attach(record.run_id).cancel(reason)

        (answered, body), _ = await asyncio.gather(asking, cancel())
        assert (answered, body["error"]["kind"]) == (status, "cancelled")


@pytest.mark.parametrize("noticed_at_once", [True, False])
async def test_who_asks_and_leaves_leaves_the_run_without_a_reader(noticed_at_once):
    clock, model = HandClock(), Gate()
    async with Agent(model=model) as agent:
        settings = Settings(server={"ping": 0.01, "shutdown_grace": 0.1})
        async with listening(create_app([agent], settings, clock=clock), handler_cancellation=noticed_at_once) as here:
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            body = b'{"input": "x"}'
            head = "POST /api/agent/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await model.waiting.wait()
            (record,) = await here.server.store.list_runs()
            chain = here.server.chain(record.run_id)
            clock.advance(1000)
            writer.close()
            await here.server.connections.closed()
            clock.advance(31)
            assert (await chain).reason == "disconnect"


async def test_the_agents_are_told_with_their_tools_and_what_may_be_asked_for():
    settings = Settings(model={"default": "openai/x", "allowed": ["openai/*"]}, aliases={"fast": "openai/y"})
    store = InMemoryStore()
    shop = Agent(
        name="shop", description="Sells.", examples=["A tea, please."], model="openai/x", tools=[add, pay], store=store
    )
    async with served(shop, Agent(name="b", store=store), settings=settings) as here:
        status, told = await here.json("/api/agents")
        assert status == 200
        shop, other = told["agents"]
        assert (shop["name"], shop["description"], other["name"], other["tools"]) == ("shop", "Sells.", "b", [])
        assert [(one["name"], one["approval"], one["examples"]) for one in shop["tools"]] == [
            ("add", False, [{"a": 1, "b": 2}]),
            ("pay", True, []),
        ]
        assert (shop["examples"], other["examples"]) == (["A tea, please."], [])
        assert shop["tools"][0]["parameters"]["required"] == ["a", "b"]
        assert told["models"] == {"default": "openai/x", "allowed": ["openai/*"], "aliases": ["fast"]}
    await store.aclose()


async def test_sessions_are_listed_newest_first_with_what_they_are_about():
    async with served() as here:
        for number in range(5):
            await here.ask(f"  question\n {number} " + "x" * 200, session_id=f"s{number}", user_id="a")
        await here.ask(session_id="other", user_id="b")
        _, page = await here.json("/api/sessions?user_id=a&limit=3")
        assert [one["session_id"] for one in page["sessions"]] == ["s4", "s3", "s2"]
        assert page["sessions"][0]["title"] == ("question 4 " + "x" * 200)[:80]
        assert (page["sessions"][0]["turns_stored"], page["sessions"][0]["active_run"]) == (1, None)
        before = page["sessions"][-1]["number"]
        _, page = await here.json(f"/api/sessions?user_id=a&limit=3&before={before}")
        assert [one["session_id"] for one in page["sessions"]] == ["s1", "s0"]
        assert [one["session_id"] for one in (await here.json("/api/sessions?userId=b"))[1]["sessions"]] == ["other"]
        assert (await here.json("/api/sessions"))[1]["sessions"] == []


async def test_a_session_in_which_a_run_goes_on_tells_what_was_said_and_where_it_stands():
    model = Gate()
    async with served(Agent(model=model)) as here:

        async def listed():
            (one,) = (await here.json("/api/sessions"))[1]["sessions"]
            return one["title"], one["state"]

        async def look():
            await model.waiting.wait()
            assert await listed() == ("first thing", "awaiting_model")
            model.open.set()

        await asyncio.gather(here.ask("first thing"), look())
        assert await listed() == ("first thing", None)


async def test_a_session_is_its_turns_without_what_is_the_providers():
    agent = Agent(model=ScriptedModel([call("add", a=1, b=2)], "It is three.", "Again."), tools=[add])
    async with served(agent) as here:
        first = await here.ask("add", session_id="s1")
        await here.ask("more", session_id="s1")
        _, told = await here.json("/api/sessions/s1")
        assert (told["session_id"], told["turns_stored"], len(told["turns"])) == ("s1", 2, 2)
        turn = told["turns"][0]
        assert (turn["run_id"], turn["outcome"]) == (first["run_id"], "final")
        assert [one["role"] for one in turn["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert json.loads(turn["messages"][1]["tool_calls"][0]["raw_arguments"]) == {"a": 1, "b": 2}
        assert "provider_data" not in json.dumps(told)
        _, told = await here.json("/api/sessions/s1?after=1&limit=1")
        assert [one["messages"][0]["content"] for one in told["turns"]] == ["more"]


async def test_a_session_can_be_forgotten_also_while_it_is_busy():
    model = Gate()
    async with served(Agent(model=model)) as here:

        async def forget():
            await model.waiting.wait()
            (record,) = await here.server.store.list_runs()
            chain = here.server.chain(record.run_id)
            async with here.delete("/api/sessions/s1") as response:
                assert response.status == 204
            assert chain.state is State.CANCELLED  # at once, not when its lease is next renewed
            async with here.delete("/api/sessions/s1") as response:
                assert response.status == 404

        asking = here.posted("/api/agent/chat", {"input": "x", "session_id": "s1"})
        (status, body), _ = await asyncio.gather(asking, forget())
        assert (status, body["error"]["kind"]) == (409, "cancelled")
        assert (await here.json("/api/sessions/s1"))[0] == 404


async def test_whether_it_is_well_is_told_without_a_key():
    class Down(InMemoryStore):
        is_down = False

        async def list_runs(self, **options):
            if self.is_down:
                raise StoreError("it is down")
            return await super().list_runs(**options)

    store = Down()
    async with served(Agent(model=ScriptedModel(), store=store)) as here:
        assert await here.json("/healthz") == (200, {"status": "ok"})
        assert await here.json("/readyz") == (200, {"status": "ok"})
        store.is_down = True
        status, body = await here.json("/readyz")
        assert (status, body["error"]["kind"]) == (503, "store")
        assert (await here.json("/healthz"))[0] == 200
        store.is_down = False
        here.server.draining = True
        assert (await here.json("/readyz"))[0] == 503
    await store.aclose()


async def test_an_agent_among_several_keeps_its_sessions_with_the_others():
    async with served(*pair(one=ScriptedModel("1", "1"), two=ScriptedModel("2"))) as here:
        await here.ask(session_id="s")
        await here.ask(session_id="s", agent="two")
        assert (await here.json("/api/sessions/s"))[1]["turns_stored"] == 2
