import json

import msgspec
import pytest

from agentflow import Agent, tool
from agentflow.events import ErrorInfo, EventType, State, ToolErrorEvent, ToolStartEvent
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports.views import RunView
from tests.builders import begin, delta, make, model_start, rollback

pytestmark = pytest.mark.virtual_time


async def view_of(agent, chain):
    view = RunView(chain.run_id)
    view.take([event async for event in agent.follow(chain.run_id)])
    return view


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def test_the_view_of_an_answered_run_is_what_its_reply_says():
    model = ScriptedModel(["Wait. ", call("add", a=1, b=2), call("nothing")], "It is three.")
    async with Agent(name="shop", model=model, tools=[add]) as agent:
        chain = agent.start("hello", session_id="s1", user_id="u1")
        reply = await chain.reply()
        view = await view_of(agent, chain)
        assert (view.text, view.usage, view.tools, view.state) == (reply.text, reply.usage, reply.tools, reply.state)
        assert (view.agent, view.session_id, view.input, view.pending, view.error) == ("shop", "s1", "hello", (), None)
        told = view.snapshot()
        assert msgspec.json.decode(msgspec.json.encode(told)) == json.loads(json.dumps(told))
        assert (told["state"], told["finish_reason"], told["tools"][1]["status"]) == (
            "completed",
            "stop",
            "unknown_tool",
        )


@pytest.mark.parametrize(
    ("turn", "tools", "decide"),
    [
        ([call("pay", amount=5)], [pay], lambda chain, asked: chain.approve(asked.call_id)),
        ([call("pay", amount=5)], [pay], lambda chain, asked: chain.reject(asked.call_id)),
        ([call("ask_user", question="Why?")], [ask_user], lambda chain, _: chain.answer("so")),
        (['{"question": "Why?", "options": ["a"]}'], [], lambda chain, _: chain.answer("a")),
    ],
)
async def test_what_waits_stands_in_the_view_until_it_is_decided(turn, tools, decide):
    async with Agent(model=ScriptedModel(turn, "done", "done again"), tools=tools) as agent:
        chain = agent.start("hello")
        reply = await chain.reply()
        view = RunView(chain.run_id)
        view.take(await agent.store.read(chain.run_id, 0, 100))
        assert (view.is_suspended, view.pending, view.text) == (True, reply.pending, reply.text)
        assert view.tools == reply.tools or view.tools == ()  # a call has no record before it has begun
        assert view.snapshot()["pending"][0]["type"] in ("approval", "question")
        assert view.open_calls == {event.call_id for event in reply.pending if event.type is EventType.APPROVAL} | {
            one.call_id for one in view.tools
        }
        decide(chain, *reply.pending)
        await chain
        ended = await view_of(agent, chain)
        assert (ended.pending, ended.open_calls) == ((), set())


async def test_the_view_of_a_run_that_did_not_answer_says_why():
    async with Agent(model=ScriptedModel("half an answer", delay=1.0)) as agent:
        chain = agent.start("hello")
        await anext(aiter(chain))
        chain.cancel("timeout")
        await chain
        view = await view_of(agent, chain)
        assert (view.state, view.error.kind, view.snapshot()["error"]["kind"]) == (
            State.CANCELLED,
            "timeout",
            "timeout",
        )
    async with Agent(model=ScriptedModel()) as agent:
        chain = agent.start("hello")
        await chain
        view = await view_of(agent, chain)
        assert (view.state, view.error.kind, view.text) == (State.FAILED, "model", "")


def test_the_text_is_that_of_the_last_attempt_of_the_last_round():
    view = RunView("r")
    view.take([begin(), model_start(), delta("one"), delta("a child's", chain_id="c")])
    assert view.text == "one"
    view.take([rollback()])
    assert view.text == ""
    view.take([delta("t", attempt=2), delta("wo", attempt=2), delta("hm", attempt=2, channel="reasoning")])
    assert view.text == "two"
    view.take([delta("three", iteration=2)])
    assert view.text == "three"


def test_a_call_that_begins_again_stays_one_call():
    fields = {"call_id": "c", "tool": "t"}
    start = {"arguments": {"a": 1}, "raw_arguments": "{}"} | fields
    again = make(
        ToolErrorEvent, status="timeout", error=ErrorInfo(kind="k", message="m"), result="r", will_retry=True, **fields
    )
    view = RunView("r")
    view.take([make(ToolStartEvent, **start), again, make(ToolStartEvent, attempt=2, **start)])
    assert [(one.call_id, one.status, one.arguments) for one in view.tools] == [("c", "", {"a": 1})]
