"""Limits and breakers as settings say them, before the runs of real agents, in virtual time."""

import asyncio

import pytest

from agentflow import Agent, tool
from agentflow.chain.gates import Step
from agentflow.errors import ConfigError, ModelStatusError, RateLimitedError, RunFailed, ToolUnavailableError
from agentflow.events import EventType
from agentflow.messages import Usage
from agentflow.models.base import ModelChunk
from agentflow.observability.gates import build_gates
from agentflow.observability.rate_limit_redis import RedisLedger
from agentflow.settings import Settings
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing import ScriptedModel, call
from tests.builders import turns

pytestmark = pytest.mark.virtual_time


@tool(retries=0, degraded="The shop is closed.")
async def order(what: str) -> str:
    """Order something."""
    if what == "nothing":
        raise ConnectionError("no route")
    return what


def gates_of(*, wait="0.001s", breaker=None, **rates):
    return build_gates(Settings(limits={"rates": rates, "wait": wait, "breaker": breaker or {}}).limits)


def agent_with(gate, *script, name="a", delay=0.0, **fields):
    return Agent(name=name, model=ScriptedModel(*script, delay=delay), tools=[order], gate=gate, **fields)


def now():
    return asyncio.get_running_loop().time()


async def refused(agent, **fields):
    with pytest.raises((RateLimitedError, RunFailed)) as error:
        await agent.chat("hello", **fields)
    return error.value


async def test_nothing_is_built_where_nothing_is_set():
    assert build_gates(Settings().limits) is None
    assert gates_of(keys={"per": "key", "requests": "1/m"}) is None


async def test_each_user_has_a_limit_of_their_own():
    gate = gates_of(users={"per": "user", "only": "guest-*", "requests": "1/m"})
    async with agent_with(gate, *["hi"] * 4) as agent:
        await agent.chat("hello", user_id="guest-1")
        await agent.chat("hello", user_id="guest-2")
        for _ in range(2):
            await agent.chat("hello", user_id="anna")
        error = await refused(agent, user_id="guest-1")
        assert (error.kind, error.retry_after) == ("rate_limited", pytest.approx(60.0))
        assert "users.requests" in str(error)
        assert gate.snapshot() == {"waiting": 0, "refused": {"users.requests": 1}, "breakers": []}


async def test_what_is_refused_costs_nothing_elsewhere():
    gate = gates_of(users={"per": "user", "requests": "1/m"}, everybody={"per": "all", "requests": "2/m"})
    async with agent_with(gate, *["hi"] * 4) as agent:
        await agent.chat("hello", user_id="u")
        for _ in range(5):
            await refused(agent, user_id="u")
        await agent.chat("hello", user_id="v")
        assert "everybody.requests" in str(await refused(agent, user_id="w"))


async def test_a_limit_is_waited_for():
    gate = gates_of(wait="30s", agents={"per": "agent", "requests": "2/m"})
    async with agent_with(gate, *["hi"] * 3) as agent:
        for _ in range(3):
            await agent.chat("hello")
    assert now() == pytest.approx(30.0)


async def test_so_many_runs_at_a_time_and_the_next_when_one_has_ended():
    gate = gates_of(wait="60s", users={"per": "user", "concurrent": 2})
    async with agent_with(gate, *["hi"] * 6, delay=5.0) as agent:
        started = [agent.start("hello", user_id="u") for _ in range(4)]
        other = agent.start("hello", user_id="v")
        await turns(20)
        assert gate.snapshot()["waiting"] == 2
        started[0].cancel()
        started[3].cancel()
        for chain in (*started, other):
            await chain
    assert gate.snapshot()["waiting"] == 0
    assert len(gate._limiter._ledger) == 0


async def test_tokens_are_estimated_before_and_settled_after():
    gate = gates_of(providers={"per": "provider", "tokens": "600/m"})
    async with agent_with(gate, *[["hi", ModelChunk(usage=Usage(input_tokens=400, output_tokens=500))]] * 2) as agent:
        await agent.chat("hello")
        error = await refused(agent)
        assert error.kind == "rate_limited"
        await asyncio.sleep(34.0)  # 300 that were too many, and some for the next
        await agent.chat("hello")


async def test_tools_have_limits_by_themselves_and_by_who_has_them_called():
    gate = gates_of(tools={"per": "tool", "only": "order", "requests": "2/m"}, users={"per": "user", "calls": "1/m"})
    script = [[call("order", what="tea"), call("order", what="milk")], "One failed.", "It failed."]
    async with agent_with(gate, *script) as agent:
        chain = agent.start("hello", user_id="u")
        events = [event async for event in chain]
    closed = [event.type for event in events if event.type in (EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)]
    assert sorted(closed) == [EventType.TOOL_COMPLETE, EventType.TOOL_ERROR]
    assert gate.snapshot()["refused"] == {"users.calls": 1}


async def test_a_provider_that_fails_is_given_up_and_tried_again():
    broken = ModelStatusError("boom", status=500)
    gate = gates_of(breaker={"window": 4, "minimum": 2, "open_for": "30s", "probes": 1})
    settings = Settings(model={"retries": {"attempts": 1}})
    async with agent_with(gate, [broken], [broken], "well again", settings=settings) as agent:
        await refused(agent)
        chain = agent.start("hello")
        events = [event async for event in chain]
        (warning,) = [event for event in events if event.type == EventType.WARNING and event.code == "breaker"]
        assert warning.data["name"] == "model:scripted"
        assert (warning.data["previous"], warning.data["current"]) == ("closed", "open")
        error = await refused(agent)
        assert (error.kind, error.retryable) == ("unavailable", True)
        await asyncio.sleep(30.0)
        assert (await agent.chat("hello")).text == "well again"
        assert gate.snapshot()["breakers"][0]["state"] == "closed"


async def test_a_tool_that_fails_is_given_up_and_says_so():
    gate = gates_of(breaker={"window": 2})
    script = [turn for _ in range(3) for turn in ([call("order", what="nothing")], "It failed.")]
    async with agent_with(gate, *script) as agent:
        for _ in range(2):
            await agent.chat("hello")
        chain = agent.start("hello")
        (error,) = [event async for event in chain if event.type == EventType.TOOL_ERROR]
    assert (error.status, error.result) == ("degraded", "[degraded]\nThe shop is closed.")


async def test_a_probe_that_a_limit_refuses_is_given_back_and_takes_no_limit_itself():
    gate = gates_of(tools={"per": "tool", "requests": "1/m"}, breaker={"window": 1, "open_for": "1s", "probes": 1})
    step = Step(kind="tool", agent="a", user_id=None, tool="order", warn=lambda *_: None)
    (await gate.enter(step)).leave("failed")
    with pytest.raises(ToolUnavailableError, match="'order' has failed too often"):
        await gate.enter(step)
    await asyncio.sleep(1.0)
    for _ in range(2):
        with pytest.raises(RateLimitedError):
            await gate.enter(step)
    await asyncio.sleep(59.0)
    (await gate.enter(step)).leave("ok")
    assert gate.snapshot()["breakers"][0]["state"] == "closed"


async def test_a_run_that_is_taken_over_is_counted_and_not_refused():
    store = InMemoryStore(now=now)
    async with agent_with(None, "never", delay=100.0, store=store) as dead:
        chain = dead.start("hello")
        await turns(20)
        dead._runs[chain.run_id].leave()
    gate = gates_of(everybody={"per": "all", "requests": "1/m", "concurrent": 1})
    async with agent_with(gate, *["hi"] * 3, store=store) as agent:
        await agent.chat("hello")
        await asyncio.sleep(20.0)
        (taken,) = await agent.recover()
        assert (await taken.reply()).text == "hi"


async def test_an_address_of_redis_makes_it_count_for_all():
    limits = Settings(limits={"rates": {"a": {"per": "all", "concurrent": 1}}, "url": "redis://127.0.0.1:1/0"}).limits
    gate = build_gates(limits)
    assert isinstance(gate._limiter._ledger, RedisLedger)
    await gate.aclose()
    with pytest.raises(ConfigError, match="unusable"):
        build_gates(limits.model_copy(update={"url": "nowhere"}))
