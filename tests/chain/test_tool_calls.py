"""Calls from the model's words to their results: run, refused, in parallel, and those that call agents."""

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk, ToolContext
from agentflow.events import EventType
from agentflow.models.base import CallRequest
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools.registry import ToolRegistry
from tests.builders import TOOLS, log_of, of, run, turns


@pytest.mark.parametrize("reason", ["length", "content_filter", "max_tokens", "SAFETY", "something new"])
async def test_calls_of_a_cut_reply_are_never_run(reason):
    ran = []

    def effect(n: int) -> str:
        ran.append(n)
        return "done"

    chunk = ModelChunk(calls=(CallRequest(name="effect", arguments='{"n": 1}'),), finish_reason=reason)
    log = await run([chunk], "Sorry, I send it again.", tools=[effect])
    (error,) = of(log, EventType.TOOL_ERROR)
    assert (ran, error.status, error.error.kind) == ([], "invalid_arguments", "truncated")
    assert reason in error.result
    assert log[-1].text == "Sorry, I send it again."


async def test_unknown_tools_and_bad_arguments_are_answered_and_never_run():
    calls = [
        CallRequest(name="nope", arguments="{}"),
        CallRequest(name="an illegal name!", arguments="{}"),
        CallRequest(name="look", arguments='{"key": 5.5}'),
        CallRequest(name="look", arguments='{"key": "a'),
        CallRequest(name="look", arguments="[]"),
        CallRequest(name="look", arguments=""),
    ]
    log = await run(calls, "sorry")
    errors = of(log, EventType.TOOL_ERROR)
    assert [error.status for error in errors] == ["unknown_tool"] * 2 + ["invalid_arguments"] * 4
    assert [start.arguments for start in of(log, EventType.TOOL_START)][2:] == [{"key": 5.5}, None, None, None]
    assert all(error.result.startswith("[error: ") for error in errors)
    assert log[-1].text == "sorry"


async def test_a_tool_knows_its_call():
    seen = []

    def look_around(context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    async with Agent(model=ScriptedModel([call("look_around")], "done"), tools=[look_around]) as agent:
        reply = await agent.chat("hello", session_id="s", user_id="u", metadata={"k": 1})
    (context,) = seen
    assert (context.run_id, context.session_id, context.user_id) == (reply.run_id, "s", "u")
    assert (context.call_id, context.tool, context.metadata) == (reply.tools[0].call_id, "look_around", {"k": 1})


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_tool_that_calls_its_own_session_is_refused_at_once_since_it_would_wait_for_itself(blocking):
    agents = []

    async def ask_again() -> str:
        return (await agents[0].chat("again", session_id="s")).text

    def ask_again_blocking() -> str:
        return agents[1].chat_sync("again", session_id="s").text

    used = ask_again_blocking if blocking else ask_again
    async with (
        Agent(model=ScriptedModel([call(used.__name__)], "That failed.", "again"), tools=[used]) as agent,
        Agent(model=ScriptedModel("other"), store=InMemoryStore()) as other,
    ):
        agents += [agent, other]
        reply = await agent.chat("hello", session_id="s")
        (record,) = reply.tools
        assert (record.status, reply.text) == ("error", "That failed.")
        assert "would wait for itself" in record.result
        assert (await agent.chat("and now?", session_id="s")).text == "again"


async def test_a_tool_may_call_its_agent_in_another_session():
    agents = []

    async def ask_aside() -> str:
        return (await agents[0].chat("aside")).text

    async with Agent(model=ScriptedModel([call("ask_aside")], "aside answer", "done"), tools=[ask_aside]) as agent:
        agents.append(agent)
        reply = await agent.chat("hello", session_id="s")
        assert (reply.tools[0].result, reply.text) == ("[success]\naside answer", "done")


async def test_tools_run_in_parallel_up_to_the_bound():
    running, most = 0, 0

    async def busy(number: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await turns()
        running -= 1
        return number

    calls = [call("busy", number=number) for number in range(40)]
    async with Agent(model=ScriptedModel(calls, "done"), tools=[busy]) as agent:
        end = await agent.start("hello")
        assert [record.result for record in end.tools] == [f"[success]\n{number}" for number in range(40)]
        assert most == 16
        assert_laws(await log_of(agent, end.run_id))


def test_the_tools_of_the_scenario_are_of_every_kind():
    assert [tool.kind for tool in ToolRegistry(TOOLS)] == ["sync", "coroutine", "async_generator"]


async def test_a_corrected_call_is_told_with_before_and_after_and_runs_with_what_was_meant():
    seen = []

    def orders(order_id: str, limit: int = 10) -> str:
        seen.append((order_id, limit))
        return "ok"

    raw = '{"orderId": "ORD1&limit=5", "note": "' + "x" * 1000 + '"}'
    log = await run([CallRequest(name="orders", arguments=raw)], "done", tools=[orders])
    (warning,) = of(log, EventType.WARNING)
    (start,) = of(log, EventType.TOOL_START)
    assert (seen, start.arguments, start.raw_arguments) == ([("ORD1", 5)], {"order_id": "ORD1", "limit": 5}, raw)
    assert (warning.code, warning.seq + 1) == ("arguments_corrected", start.seq)
    assert (warning.data["call_id"], warning.data["tool"]) == (start.call_id, "orders")
    assert [one["rule"] for one in warning.data["corrections"]] == ["name", "unknown_dropped", "taken_apart", "number"]
    assert max(len(str(one["before"])) for one in warning.data["corrections"]) <= 203


async def test_a_call_that_fits_is_not_remarked_on():
    log = await run([CallRequest(name="look", arguments='{"key": "key=5&other=6"}')], "done")
    assert len(of(log, EventType.TOOL_COMPLETE)) == 1
