import asyncio

import pytest

from agentflow import Agent, EventBus, ModelChunk, tool
from agentflow.events import EventType
from agentflow.observability.overview import Overview
from agentflow.testing import ScriptedModel, call
from tests.builders import of


def alive(_):
    return True


async def seen_while(agent, ask, overview, at):
    """The run's log, and the rows at the moment of the first event for which `at` holds."""
    log, rows = [], []

    def see(event):
        overview.see(event)
        log.append(event)
        if not rows and at(event):
            rows.append(overview.rows(alive))

    agent.bus.attach(see)
    chain = agent.start(ask, user_id="u1", session_id="s1")
    return chain, log, rows


@tool
def look(key: str) -> str:
    """Look."""
    return key


@tool
def broken() -> str:
    """Break."""
    raise ValueError("no")


async def test_a_run_in_flight_is_a_row_and_an_ended_one_is_a_row_of_what_ended():
    overview = Overview()
    async with Agent(name="shop", model=ScriptedModel([call("look", key="a")], ["done"]), tools=[look]) as agent:
        chain, log, rows = await seen_while(
            agent, "hi", overview, lambda e: getattr(e, "current", "") == "executing_tools"
        )
        end = await chain
    ((row,),) = rows
    assert (row["run_id"], row["agent"], row["session_id"], row["user_id"]) == (chain.run_id, "shop", "s1", "u1")
    assert (row["state"], row["last"], row["tools"], row["iteration"]) == ("executing_tools", "tool_start", ["look"], 1)
    assert row["began"] == log[0].ts
    assert ([tool for _, tool in row["calls"]], row["waiting"]) == (row["tools"], [])
    assert overview.rows(alive) == []
    (ended,) = overview.recent()["runs"]
    assert (ended["outcome"], ended["reason"], ended["duration_ms"]) == ("final", "stop", end.duration_ms)
    assert ended["first_chunk_ms"] is not None
    (used,) = overview.recent()["tools"]
    assert (used["tool"], used["status"], used["agent"], used["attempt"]) == ("look", "success", "shop", 1)
    models = overview.recent()["models"]
    assert len(models) == overview.totals["model_calls"] == 2
    assert sum(row["input_tokens"] for row in models) == end.usage.input_tokens
    assert overview.totals["input_tokens"] == end.usage.input_tokens
    assert {name: overview.totals[name] for name in ("runs", "final", "tool_calls", "tool_failures")} == {
        "runs": 1,
        "final": 1,
        "tool_calls": 1,
        "tool_failures": 0,
    }


async def test_failures_of_tools_and_of_runs_are_told_apart():
    async def failing(request):
        yield ModelChunk(text="a")
        raise RuntimeError("gone")

    overview, bus = Overview(), EventBus()
    bus.attach(overview.see)
    async with Agent(model=ScriptedModel([call("broken")], ["It failed."]), tools=[broken], bus=bus) as agent:
        await agent.start("hi")
    async with Agent(model=failing, bus=bus) as agent:
        await agent.start("hi")
    assert [row["outcome"] for row in overview.recent()["runs"]] == ["final", "failed"]
    assert overview.recent()["runs"][1]["reason"] == "model"
    assert (overview.totals["tool_failures"], overview.totals["failed"]) == (1, 1)
    assert overview.recent()["tools"][0]["status"] == "error"


@pytest.mark.virtual_time
async def test_time_in_which_a_run_waits_for_people_is_told_apart():
    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    overview = Overview()
    async with Agent(model=ScriptedModel([call("pay")], ["done"]), tools=[pay]) as agent:
        chain, log, rows = await seen_while(
            agent, "hi", overview, lambda e: e.type == EventType.STATE and e.current == "suspended"
        )
        await asyncio.sleep(1)
        asked = of(log, EventType.APPROVAL)[0]
        assert rows[0][0]["waits"] == 1
        await asyncio.sleep(60)
        chain.approve(asked.call_id, asked.arguments_hash)
        await chain
    (ended,) = overview.recent()["runs"]
    assert ended["waited_ms"] == pytest.approx(61_000, abs=100)


async def test_rows_are_bounded_and_those_of_runs_that_are_gone_are_dropped():
    overview = Overview(max_runs=2, max_recent=3)
    async with Agent(model=ScriptedModel(*(["done"] for _ in range(5)))) as agent:
        firsts = []
        agent.bus.attach(lambda event: firsts.append(event) if event.type == EventType.INPUT else None)
        agent.bus.attach(overview.see)
        for _ in range(5):
            await agent.start("hi")
        assert len(overview.recent()["runs"]) == 3
    for event in firsts[:3]:
        overview.see(event)
    assert [row["run_id"] for row in overview.rows(alive)] == [event.run_id for event in firsts[1:3]]
    assert overview.unseen == 1
    assert overview.rows(lambda run_id: run_id == firsts[2].run_id)[0]["run_id"] == firsts[2].run_id
    assert len(overview.rows(alive)) == 1
