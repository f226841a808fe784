"""What each key may take up, over every way in: refused with when to come back, and given back whatever happens."""

import asyncio

import pytest
from openai import AsyncOpenAI, RateLimitError

from agentflow import Agent, Settings, tool
from agentflow.messages import Usage
from agentflow.models.base import ModelChunk
from agentflow.observability.gates import build_gates
from agentflow.testing import ScriptedModel, call
from agentflow.testing.store_probe import until
from agentflow.transports.auth import new_key
from tests.transports.served import Frames, Gate, HandClock, served
from tests.transports.sockets import PATH, connected


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def limited(*agents, keys=None, clock=None, **rate):
    settings = Settings(
        server={"shutdown_grace": 0.2, "keys": keys or {}}, limits={"rates": {"clients": {"per": "key", **rate}}}
    )
    return served(*agents, settings=settings, clock=clock)


def key_for(user):
    key_id, key, hashed = new_key()
    return {"Authorization": f"Bearer {key}"}, {key_id: {"hash": hashed, "user": user}}


def taken(here):
    """The places that are taken up, runs and connections."""
    return here.server.quotas._limiter._ledger._places.total()


async def until_free(here, but=0):
    async def is_free():
        return taken(here) <= but

    await until(is_free, "what was taken up is given back")


async def test_without_limits_for_keys_nothing_is_asked():
    async with served() as here:
        assert here.server.quotas is None


async def test_requests_are_limited_per_key_and_it_is_told_when_to_come_back():
    (alices, alice), (bobs, bob) = key_for("alice"), key_for("bob")
    clock = HandClock()
    async with limited(keys=alice | bob, clock=clock, requests="2/m") as here:
        for _ in range(2):
            assert (await here.json("/api/agents", headers=alices))[0] == 200
        async with here.post("/api/agent/chat", {"input": "x"}, headers=alices) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "30")
            assert (await response.json())["error"]["kind"] == "rate_limited"
        assert (await here.json("/api/agents", headers=bobs))[0] == 200
        async with here.get("/healthz") as response:
            assert response.status == 200
        assert (await here.json("/api/agents"))[0] == 401  # nobody's, and so at nobody's cost
        clock.advance(30)
        assert (await here.json("/api/agents", headers=alices))[0] == 200
        clock.advance(29)
        assert (await here.json("/api/agents", headers=alices))[0] == 429


async def test_runs_at_a_time_are_limited_over_every_way_in():
    model = Gate()
    async with limited(Agent(name="a", model=model), concurrent=1) as here:
        asking = asyncio.gather(here.ask("x"))
        await model.waiting.wait()
        for path in ("/api/agent/chat", "/api/agent/stream"):
            async with here.post(path, {"input": "x"}) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "1")
        async with here.get("/api/agent/stream", params={"message": "x"}) as response:
            assert response.status == 429
        async with connected(here) as client:
            error = await client.refused("run", input="x")
            assert error["kind"] == "rate_limited"
        async with AsyncOpenAI(base_url=f"{here.base}/v1", api_key="none", max_retries=0) as openai:
            with pytest.raises(RateLimitError) as refused:
                await openai.chat.completions.create(model="a", messages=[{"role": "user", "content": "x"}])
            assert refused.value.response.headers["Retry-After"] == "1"
            assert "'clients.concurrent' is reached" in refused.value.message
        model.open.set()
        await asking
        await until_free(here)
        await here.ask("x")


async def test_a_run_that_waits_for_people_takes_up_no_place_and_counts_when_it_goes_on():
    agent = Agent(model=ScriptedModel([call("pay", amount=1)], "paid", "hello"), tools=[pay])
    async with limited(agent, concurrent=1) as here:
        status, body = await here.posted("/api/agent/chat", {"input": "x"})
        assert status == 202
        await until_free(here)
        call_id = body["pending"][0]["call_id"]
        await here.posted(f"/api/runs/{body['run_id']}/approve", {"call_id": call_id})
        async with here.get(f"/api/runs/{body['run_id']}/events") as response:
            await Frames(response).rest()
        await until_free(here)
        assert (await here.ask("x"))["content"] == "hello"


async def test_tokens_are_charged_as_they_are_used_and_a_debt_is_waited_for():
    clock = HandClock()
    used = ModelChunk(usage=Usage(input_tokens=100, output_tokens=140))
    agent = Agent(model=ScriptedModel(*[["hi", used]] * 2))
    async with limited(agent, clock=clock, tokens="120/m") as here:
        await here.ask("x")
        async with here.post("/api/agent/chat", {"input": "x"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "61")
        clock.advance(61)
        await here.ask("x")


async def test_open_connections_are_limited_before_the_upgrade_too_and_given_back_when_they_close():
    async with limited(connections=2) as here:
        async with connected(here), connected(here) as client:
            async with here.get(PATH, headers={"Connection": "Upgrade", "Upgrade": "websocket"}) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "1")
            await client.drop()
            await until_free(here, but=1)
            assert (await here.json("/api/agents"))[0] == 200
        await until_free(here)


async def test_commands_of_a_socket_count_as_requests():
    async with limited(requests="3/h") as here, connected(here) as client:
        await client.ended(await client.accepted("run", input="x"))
        await client.ended(await client.accepted("run", input="x"))
        assert (await client.refused("run", input="x"))["kind"] == "rate_limited"


async def test_what_could_not_begin_gives_its_place_back():
    settings = Settings(
        limits={"rates": {"clients": {"per": "key", "concurrent": 1}}}, session={"busy": "reject"}, server={"grace": 1}
    )
    model = Gate()
    async with served(Agent(model=model, settings=settings), settings=settings) as here:
        for fields in ({"agent": "nobody"}, {"model": "no such/model"}):
            assert (await here.posted("/api/agent/chat", {"input": "x", **fields}))[0] in (400, 503)
        assert taken(here) == 0
        run = here.server.agent(None).start("x", session_id="s")
        await model.waiting.wait()
        assert (await here.posted("/api/agent/chat", {"input": "x", "session_id": "s"}))[0] == 409
        await until_free(here)
        run.cancel()
        await run


async def test_a_request_id_that_was_refused_may_be_sent_again():
    clock = HandClock()
    async with limited(clock=clock, tokens="60/m") as here:
        here.server.quotas._limiter.charge(here.server.quotas._rules[0].needs(["tokens"], "", {})[0], 60.0)
        ask = {"input": "x", "request_id": "r"}
        assert (await here.posted("/api/agent/chat", ask))[0] == 429
        clock.advance(10)
        assert (await here.posted("/api/agent/chat", ask))[0] == 200


async def test_a_request_id_that_the_agents_gate_refused_may_be_sent_again_too():
    clock = HandClock()
    settings = Settings(limits={"rates": {"users": {"per": "user", "requests": "1/m"}}, "wait": "1ms"})
    agent = Agent(model=ScriptedModel("hi", "again"), gate=build_gates(settings.limits, clock))
    async with served(agent) as here:
        await here.ask("x", request_id="1")
        for status in (429, 429, 200, 200):
            assert (await here.posted("/api/agent/chat", {"input": "x", "request_id": "2"}))[0] == status
            clock.advance(30 if status == 429 else 0)


async def test_disconnects_at_any_moment_leave_nothing_taken():
    async with limited(Agent(model=ScriptedModel(*["one two three"] * 200)), concurrent=500, connections=500) as here:
        for moment in range(100):
            task = asyncio.get_running_loop().create_task(here.posted("/api/agent/stream", {"input": "x"}))
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
        await until_free(here)


async def test_the_limits_of_an_agent_are_told_by_the_same_status():
    settings = Settings(limits={"rates": {"users": {"per": "user", "requests": "1/m"}}, "wait": "1ms"})
    agent = Agent(name="a", model=ScriptedModel("hi", "hi"), gate=build_gates(settings.limits))
    async with served(agent) as here:
        await here.ask("x", user_id="u")
        for path in ("/api/agent/chat", "/api/agent/stream"):
            async with here.post(path, {"input": "x", "user_id": "u"}) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "60")
        async with connected(here) as client:
            await client.send("run", id="r", input="x", user_id="u")
            told = await client.until("refused")
            assert told["error"]["kind"] == "rate_limited"
        _, seen = await here.json("/api/operator/snapshot")
        assert seen["limits"] == {"waiting": 0, "refused": {"users.requests": 3}, "breakers": []}
