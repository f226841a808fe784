"""What a run asks of the gate before its steps, what it tells it afterwards, and what becomes of a refusal."""

import asyncio

import pytest

from agentflow import Agent, tool
from agentflow.chain.gates import Admission
from agentflow.errors import (
    ModelConnectionError,
    ModelStatusError,
    ModelUnavailableError,
    RateLimitedError,
    RunFailed,
    ToolUnavailableError,
)
from agentflow.events import EventType, State, ToolErrorEvent
from agentflow.settings import Settings
from agentflow.testing import ScriptedModel, call
from tests.builders import turns

pytestmark = pytest.mark.virtual_time


class Recorder:
    """A gate that lets all through but what `refusals` says, after `wait` seconds, and keeps what it was told."""

    def __init__(self, refusals=None, wait=0.0):
        self.refusals = refusals or {}
        self.wait = wait
        self.told = []
        self.steps = []
        self.inside = 0

    async def enter(self, step):
        if self.wait:
            await asyncio.sleep(self.wait)
        self.steps.append(step)
        error = self.refusals.get(step.kind) or self.refusals.get(step.model)
        if error is not None:
            raise error
        return self.readmit(step)

    def readmit(self, step):
        self.inside += 1
        return Passed(self, step)


class Passed:
    def __init__(self, gate, step):
        self.gate, self.step, self.left = gate, step, False

    def leave(self, verdict="void", seconds=0.0, tokens=None):
        if not self.left:
            self.left = True
            self.gate.inside -= 1
            self.gate.told.append((self.step.kind, verdict, seconds, tokens))


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(timeout=10.0, retries=0, idempotent=True, degraded="The shop is closed.")
async def slow() -> str:
    """Take six seconds."""
    await asyncio.sleep(6.0)
    return "done"


@tool(retries=0)
async def fail(how: str) -> str:
    """Fail."""
    if how == "connection":
        raise ConnectionError("no route")
    raise ValueError("a mistake of its own")


def agent_with(gate, *script, delay=0.0, **fields):
    model = ScriptedModel(*script, delay=delay)
    return Agent(name="a", model=model, tools=(add, pay, slow, fail), gate=gate, **fields)


def of_type(events, kind):
    return [event for event in events if event.type == kind]


async def test_each_step_is_asked_for_once_and_told_of_once():
    gate = Recorder()
    async with agent_with(gate, [call("add", a=1, b=2)], "three") as agent:
        await agent.chat("hello", user_id="u")
    assert [step.kind for step in gate.steps] == ["run", "model", "tool", "model"]
    assert {(step.agent, step.user_id) for step in gate.steps} == {("a", "u")}
    assert [(step.provider, step.model, step.tool) for step in gate.steps[1:3]] == [
        ("scripted", "scripted", ""),
        ("", "", "add"),
    ]
    assert [(kind, verdict) for kind, verdict, *_ in gate.told] == [
        ("model", "ok"),
        ("tool", "ok"),
        ("model", "ok"),
        ("run", "void"),
    ]
    used = [tokens for kind, *_, tokens in gate.told if kind == "model"]
    assert all(tokens > step.tokens > 0 for tokens, step in zip(used, gate.steps[1::2], strict=True))


async def test_a_refused_run_begins_nothing_and_says_why():
    gate = Recorder({"run": RateLimitedError("too much", retry_after=3.0)})
    async with agent_with(gate, "hello") as agent:
        chain = agent.start("hello")
        with pytest.raises(RateLimitedError) as refused:
            await chain.reply()
        assert refused.value.retry_after == 3.0
        assert list(await agent.store.read(chain.run_id, 0, 10)) == []
        assert list(await agent.store.list_runs()) == []


async def test_it_can_be_waited_for_whether_a_run_begins():
    gate = Recorder(wait=2.0)
    async with agent_with(gate, *["hi"] * 3) as agent:
        await agent.start("hello").begun()
        assert asyncio.get_running_loop().time() == 2.0
        chain = agent.start("hello")
        waiting = asyncio.gather(chain.begun())
        chain.cancel()
        await waiting
        gate.refusals = {"run": RateLimitedError("too much", retry_after=3.0)}
        with pytest.raises(RateLimitedError):
            await agent.start("hello").begun()


async def test_a_run_that_waits_for_people_takes_up_no_place():
    gate = Recorder()
    async with agent_with(gate, [call("pay", amount=5)], "paid") as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        assert gate.inside == 0
        chain.approve(asked.call_id)
        await turns(3)
        assert gate.inside > 0
        await chain
    assert gate.inside == 0
    assert [step.kind for step in gate.steps].count("run") == 1


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5])
async def test_a_cancel_is_heard_at_once_whatever_is_waited_for(moment):
    gate = Recorder(wait=1.0)
    async with agent_with(gate, [call("slow")], "done") as agent:
        chain = agent.start("hello")
        await asyncio.sleep(moment)
        chain.cancel()
        await chain
        assert asyncio.get_running_loop().time() == moment
        assert chain.state is State.CANCELLED
    assert gate.inside == 0


async def test_a_refused_model_is_passed_over_for_the_next_at_once():
    gate = Recorder({"first": ModelUnavailableError("broken")})
    first, second = ScriptedModel("no"), ScriptedModel("yes")
    first.name, second.name = "first", "second"
    async with Agent(model=first, gate=gate) as agent:
        agent._models.resolve = lambda *_: (first, second)
        reply = await agent.chat("hello")
    assert (reply.text, asyncio.get_running_loop().time()) == ("yes", 0.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RateLimitedError("too much", retry_after=3.0), "rate_limited"), (ModelUnavailableError("broken"), "unavailable")],
)
async def test_without_another_model_the_run_fails_at_once_with_the_refusal(error, kind):
    async with agent_with(Recorder({"model": error}), "hello") as agent:
        with pytest.raises(RunFailed, match=str(error)) as failed:
            await agent.chat("hello")
    assert (failed.value.kind, failed.value.retryable) == (kind, True)
    assert asyncio.get_running_loop().time() == 0.0


async def test_a_refused_model_may_be_answered_for():
    gate = Recorder({"model": ModelUnavailableError("broken")})
    async with agent_with(gate, "hello", degraded="Come back later.") as agent:
        assert (await agent.chat("hello")).text == "Come back later."


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ModelConnectionError("gone"), "failed"), (ModelStatusError("no", status=400), "void")],
)
async def test_what_a_failed_model_call_says_of_its_provider(error, verdict):
    gate = Recorder()
    settings = Settings(model={"retries": {"attempts": 1}})
    async with agent_with(gate, [error], settings=settings) as agent:
        with pytest.raises(RunFailed):
            await agent.chat("hello")
    assert [told[:2] for told in gate.told if told[0] == "model"] == [("model", verdict)]


async def test_a_model_call_that_was_broken_off_says_nothing():
    gate = Recorder()
    async with agent_with(gate, "never", delay=1.0) as agent:
        chain = agent.start("hello")
        await asyncio.sleep(0.5)
        chain.cancel()
        await chain
        await turns(5)
    assert ("model", "void") in [told[:2] for told in gate.told]
    assert gate.inside == 0


async def test_a_refused_tool_call_is_not_run_and_the_model_is_told():
    gate = Recorder({"tool": RateLimitedError("over the limit; try again in 9 s", retry_after=9.0)})
    async with agent_with(gate, [call("add", a=1, b=2)], "I could not add them.") as agent:
        chain = agent.start("hello")
        events = [event async for event in chain]
    (error,) = of_type(events, EventType.TOOL_ERROR)
    assert isinstance(error, ToolErrorEvent)
    assert (error.status, error.will_retry) == ("rate_limited", False)
    assert error.result == "[error: rate_limited]\nover the limit; try again in 9 s"


@pytest.mark.parametrize(
    ("name", "told"), [("slow", "The shop is closed."), ("add", "The service behind add has failed too often")]
)
async def test_a_tool_that_is_given_up_for_now_gives_its_degraded_text(name, told):
    arguments = {"a": 1, "b": 2} if name == "add" else {}
    async with agent_with(Recorder({"tool": ToolUnavailableError("broken")}), [call(name, **arguments)], "no") as agent:
        chain = agent.start("hello")
        events = [event async for event in chain]
    (error,) = of_type(events, EventType.TOOL_ERROR)
    assert (error.status, error.error.kind) == ("degraded", "unavailable")
    assert error.result.startswith(f"[degraded]\n{told}")


@pytest.mark.parametrize(("wait", "status"), [(3.0, None), (5.0, "timeout")])
async def test_the_wait_counts_in_the_tools_time(wait, status):
    gate = Recorder()
    async with agent_with(gate, [call("slow")], "I could not.") as agent:
        chain = agent.start("hello")
        await turns(3)
        gate.wait = wait
        events = [event async for event in chain]
    failed = of_type(events, EventType.TOOL_ERROR)
    assert [event.status for event in failed] == ([status] if status else [])


@pytest.mark.parametrize(("how", "verdict"), [("connection", "failed"), ("mistake", "void")])
async def test_what_a_failed_tool_call_says_of_its_service(how, verdict):
    gate = Recorder()
    async with agent_with(gate, [call("fail", how=how)], "It failed.") as agent:
        await agent.chat("hello")
    assert [told[:2] for told in gate.told if told[0] == "tool"] == [("tool", verdict)]


async def test_the_chains_below_a_run_stand_before_its_gate():
    gate = Recorder()
    inner = Agent(name="inner", model=ScriptedModel("inside"))
    async with Agent(
        name="outer", model=ScriptedModel([call("inner", input="x")], "done"), tools=[inner.as_tool()], gate=gate
    ) as agent:
        await agent.chat("hello")
    assert [(step.kind, step.agent) for step in gate.steps] == [
        ("run", "outer"),
        ("model", "outer"),
        ("model", "inner"),
        ("model", "outer"),
    ]


async def test_a_place_is_taken_up_once_and_without_a_gate_not_at_all():
    gate = Recorder()
    admission = Admission(gate, None)
    admission.resume()
    admission.resume()
    assert gate.inside == 1
    nothing = Admission(None, None)
    await nothing.enter()
    nothing.resume()
    nothing.leave()
