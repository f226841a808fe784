import asyncio

import pytest
from aiohttp import web

from agentflow import Agent, Settings, tool
from agentflow.errors import AgentflowError
from agentflow.testing import ScriptedModel, call
from agentflow.transports import create_app, setup
from agentflow.transports.app import drain
from tests.transports.served import Frames, Gate, listening, read, served


def own_app():
    app = web.Application()

    async def home(request):
        return web.Response(text="home")

    app.router.add_get("/", home)
    return app


async def test_agents_are_served_below_a_prefix_of_an_app_and_nothing_else_of_it_changes():
    async with Agent(model=ScriptedModel("Hello.", "Hello.")) as agent:
        app = own_app()
        before = (list(app), list(app.middlewares), list(app.on_response_prepare), app._client_max_size)
        setup(app, [agent], Settings(server={"shutdown_grace": 0.1}), prefix="/bot")
        assert (list(app), list(app.middlewares), list(app.on_response_prepare), app._client_max_size) == before
        async with listening(app) as here:
            async with here.get("/") as response:
                assert await response.text() == "home"
                assert "Content-Security-Policy" not in response.headers
            async with here.get("/nowhere", headers={"Host": "evil.example"}) as response:
                assert (response.status, response.content_type) == (404, "text/plain")
            assert (await here.posted("/bot/api/agent/chat", {"input": "x"}))[1]["content"] == "Hello."
            async with here.get("/bot/api/agent/stream?message=x") as response:
                assert "Content-Security-Policy" in response.headers
                assert read(await response.text())[-1][1]["type"] == "done"
            assert (await here.json("/bot/nowhere"))[1]["error"]["kind"] == "not_found"
            assert (await here.json("/bot/v1/nowhere"))[1]["error"]["code"] == "not_found"
            assert (await here.json("/bot/healthz", headers={"Host": "evil.example"}))[0] == 403
        with pytest.raises(AgentflowError, match="script has 2 turns"):  # it is not closed
            await agent.chat("again")


async def test_two_apps_in_one_process_share_nothing():
    a, b = Agent(model=ScriptedModel("A")), Agent(model=ScriptedModel("B"))
    async with served(a) as one, served(b) as two:
        assert ((await one.ask())["content"], (await two.ask())["content"]) == ("A", "B")
        assert len((await one.json("/api/sessions"))[1]["sessions"]) == 1


async def test_every_answer_carries_what_keeps_a_browser_safe():
    async with served() as here:
        for path in (
            "healthz",
            "api/agents",
            "nowhere",
            "api/runs/x",
            "api/agent/stream",
            "api/agent/stream?message=x",
        ):
            async with here.get(f"/{path}") as response:
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert "no-" in response.headers["Cache-Control"]
                assert "aiohttp" not in response.headers["Server"]
                await response.read()


async def test_what_is_not_there_is_told_in_the_one_form():
    async with served() as here:
        assert await here.json("/nowhere") == (404, {"error": {"kind": "not_found", "message": "Not Found"}})
        async with here.delete("/api/agent/chat") as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            assert (await response.json())["error"]["kind"] == "method_not_allowed"


async def test_a_fault_of_our_own_is_logged_and_not_told(caplog):
    async with served() as here:
        here.server.agents = None
        status, body = await here.posted("/api/agent/chat", {"input": "a secret"})
        assert (status, body["error"]["kind"]) == (500, "internal")
        assert "'NoneType'" in caplog.text
        assert "NoneType" not in str(body)
        assert "a secret" not in caplog.text
        here.server.agents = {}


async def test_at_the_end_new_work_is_refused_and_what_goes_on_may_end():
    model = Gate()
    async with (
        served(Agent(model=model), shutdown_grace=60) as here,
        here.post("/api/agent/stream", {"input": "x"}) as it,
    ):
        await model.waiting.wait()
        draining = asyncio.ensure_future(drain(here.app))  # noqa: TID251  as a signal does
        await asyncio.sleep(0)
        for path in ("/api/agent/chat", "/api/agent/stream"):
            async with here.post(path, {"input": "x"}) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert (await here.json("/readyz"))[0] == 503
        model.open.set()
        assert (await Frames(it).rest())[-1]["type"] == "final"
        await draining


async def test_what_does_not_end_in_time_is_cancelled_and_says_so():
    model = Gate()
    async with served(Agent(model=model), shutdown_grace=0.01) as here:
        async with here.post("/api/agent/stream", {"input": "x"}) as response:
            await model.waiting.wait()
            await drain(here.app)
            last = (await Frames(response).rest())[-1]
            assert (last["type"], last["reason"]) == ("cancelled", "shutdown")
        await drain(here.app)


async def test_runs_that_wait_for_people_are_left_and_their_readers_sent_away(monkeypatch):
    monkeypatch.setattr("agentflow.transports.app._LAST_WORDS", 0.01)

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(model=ScriptedModel([call("pay")], "done"), tools=[pay])
    async with served(agent, shutdown_grace=60) as here, here.post("/api/agent/stream", {"input": "x"}) as response:
        frames = Frames(response)
        while (event := await frames.next())["type"] != "approval":
            pass
        await drain(here.app)
        assert [one["type"] for one in await frames.rest()] == ["state"]
        assert (await here.server.view(event["run_id"])).is_suspended


async def test_an_app_that_ends_ends_its_runs_but_closes_no_agent_that_was_given():
    async with Agent(model=ScriptedModel("Hello.", "Hello.")) as agent:
        async with listening(create_app([agent], Settings(server={"shutdown_grace": 0.1}))) as here:
            await here.ask()
        assert (await agent.chat("again")).text == "Hello."


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "OPTIONS"])
async def test_other_methods_are_not_there(method):
    async with served() as here, here.client.request(method, here.base + "/api/agent/chat") as response:
        assert response.status == 405
