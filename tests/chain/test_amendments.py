"""Amendments in flight: a call that runs is stopped and begun again with a human's arguments, or told why it is not."""

import asyncio
import threading

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk, tool
from agentflow.errors import ModelConnectionError, NotPendingError, OutcomePendingError, ToolArgumentsError
from agentflow.events import EventType, State
from agentflow.messages import Usage
from agentflow.models.base import estimate_tokens
from agentflow.stores.base import OutcomeKey
from agentflow.testing import ScriptedModel, call
from tests.builders import of, turns
from tests.chain.families import caller, checked, line, so_far, statuses

pytestmark = pytest.mark.virtual_time
VOID = ("tool_error", "amended", True)


def told(log, *tools):
    """What became of each attempt, in order."""
    closing = of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)
    return [
        (event.type.value, getattr(event, "status", "success"), getattr(event, "will_retry", False))
        for event in closing
        if event.tool in tools or not tools
    ]


async def until_started(agent, chain, name):
    """The start of the last call of that tool, once its body may be running."""
    while True:
        await turns(5)
        starts = [event for event in of(await so_far(agent, chain), EventType.TOOL_START) if event.tool == name]
        if starts:
            return starts[-1]
        await asyncio.sleep(0.01)


class Desk:
    """Tools that wait until they are let go, and note what they did."""

    def __init__(self):
        self.did, self.cleaned, self.gate = [], [], asyncio.Event()

    def fetch(self, **options):
        @tool(**{"timeout": 1000.0} | options)
        async def fetch(key: str) -> str:
            """Fetch it."""
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cleaned.append(key)
                raise
            self.did.append(key)
            return f"fetched {key}"

        return fetch

    def count(self):
        @tool(timeout=1000.0)
        async def count(key: str):
            """Count it."""
            yield f"{key} one "
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cleaned.append(key)
                raise
            self.did.append(key)
            yield "two"

        return count

    def refund(self):
        @tool(approval=True)
        async def refund() -> str:
            """Give money back."""
            self.did.append("refunded")
            return "refunded"

        return refund


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("name", ["fetch", "count"])
async def test_a_running_or_streaming_call_is_stopped_and_begun_again(name, depth):
    desk = Desk()
    async with line([call(name, key="a")], "done", tools=[getattr(desk, name)()], depth=depth) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, name)
        chain.amend(start.call_id, {"key": "b"}, by="anna")
        await turns(50)
        assert desk.cleaned == ["a"]
        desk.gate.set()
        await chain
        log = await checked(agent, chain)
        starts = [event for event in of(log, EventType.TOOL_START) if event.tool == name]
        assert [(event.attempt, event.arguments["key"]) for event in starts] == [(1, "a"), (2, "b")]
        assert told(log, name) == [VOID, ("tool_complete", "success", False)]
        assert desk.did == ["b"]
        (result,) = [event.result for event in of(log, EventType.TOOL_COMPLETE) if event.tool == name]
        assert result == {"fetch": "[success]\nfetched b", "count": "[success]\nb one two"}[name]
        (resolved,) = of(log, EventType.RESOLVED)
        assert (resolved.decision, resolved.arguments, resolved.by) == ("amended", {"key": "b"}, "anna")
        assert statuses(log) == {name: "success"} | {f"a{level}": "success" for level in range(1, depth + 1)}


async def test_a_call_is_amended_as_often_as_it_takes_and_the_last_counts():
    desk = Desk()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch()], depth=1) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "fetch")
        for key in ("b", "c"):
            chain.amend(start.call_id, {"key": key})  # both before the log has accepted one
        await turns(50)
        chain.amend(start.call_id, {"key": "d"})
        await turns(50)
        desk.gate.set()
        await chain
        log = await checked(agent, chain)
        assert desk.cleaned == ["a", "c"]
        assert desk.did == ["d"]
        assert told(log, "fetch") == [VOID, VOID, ("tool_complete", "success", False)]


async def test_an_amendment_before_the_first_step_of_the_body_is_not_lost():
    desk = Desk()
    desk.gate.set()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch()], depth=0) as agent:
        chain = agent.stream("hello")

        def amend(event):
            if event.type is EventType.TOOL_START and event.attempt == 1:
                chain.amend(event.call_id, {"key": "b"})

        agent.events.subscribe(amend)
        await chain
        log = await checked(agent, chain)
        assert (desk.did, told(log)) == (["b"], [VOID, ("tool_complete", "success", False)])


async def test_an_approved_call_is_amended_while_it_runs():
    desk = Desk()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch(approval=True)], depth=2) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        chain.approve(asked.call_id, asked.arguments_hash)
        await until_started(agent, chain, "fetch")
        chain.amend(asked.call_id, {"key": "b"})
        await turns(50)
        desk.gate.set()
        await chain
        log = await checked(agent, chain)
        assert [event.decision for event in of(log, EventType.RESOLVED)] == ["approved", "amended"]
        assert desk.did == ["b"]


@pytest.mark.abandons_threads
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_function_in_a_thread_cannot_be_stopped(idempotent):
    gate, began, did = threading.Event(), [], []

    @tool(idempotent=idempotent, timeout=1000.0)
    def save(key: str) -> str:
        """Save it."""
        began.append(key)
        if key == "a":
            gate.wait()
        did.append(key)
        return f"saved {key}"

    loop = asyncio.get_running_loop()
    script = ScriptedModel([call("save", key="a")], "It failed, sorry.")
    async with Agent(model=script, tools=[save]) as agent:
        chain = agent.start("hello")
        while not began:
            await turns(5)
        chain.amend((await until_started(agent, chain, "save")).call_id, {"key": "b"})
        await loop.advance(2.0)  # the grace
        end = await chain
        log = await checked(agent, chain)
        assert agent.abandoned == 1
        gate.set()
        if idempotent:
            assert told(log) == [VOID, ("tool_complete", "success", False)]
            assert end.tools[0].result == "[success]\nsaved b"
        else:
            assert told(log) == [("tool_error", "unknown_outcome", False)]
            assert "it may have had its effect" in end.tools[0].result
            assert began == ["a"]
            assert [event.code for event in of(log, EventType.WARNING)] == ["decision_too_late"]


async def test_a_call_that_waits_for_its_next_attempt_gets_the_new_arguments_there():
    seen = []

    @tool(idempotent=True)
    async def fetch(key: str) -> str:
        """Fetch it."""
        seen.append(key)
        if key == "a":
            raise ConnectionResetError("gone")
        return f"fetched {key}"

    async with line([call("fetch", key="a")], "done", tools=[fetch], depth=1) as agent:
        chain = agent.start("hello")
        await turns(30)
        start = await until_started(agent, chain, "fetch")
        chain.amend(start.call_id, {"key": "b"})
        await chain
        log = await checked(agent, chain)
        assert seen == ["a", "b"]
        assert told(log, "fetch") == [("tool_error", "error", True), ("tool_complete", "success", False)]


class BusyError(Exception):
    """A service that asks to be left alone for some seconds."""

    status = 429

    def __init__(self, retry_after):
        super().__init__("busy")
        self.retry_after = retry_after


async def test_an_attempt_that_failed_as_it_was_amended_is_not_tried_again_with_its_own_arguments():
    seen, waits, gate = [], [1, 5], asyncio.Event()

    @tool
    async def fetch(key: str) -> str:
        """Fetch it."""
        seen.append(key)
        await gate.wait()
        if waits:
            raise BusyError(waits.pop(0))
        return f"fetched {key}"

    async with line([call("fetch", key="a")], "done", tools=[fetch], depth=1) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "fetch")
        gate.set()
        chain.amend(start.call_id, {"key": "b"})
        await chain
        log = await checked(agent, chain)
        assert seen == ["a", "b", "b"]
        assert told(log, "fetch")[:2] == 2 * [("tool_error", "rate_limited", True)]


async def test_what_does_not_fit_changes_nothing():
    desk = Desk()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch()], depth=2) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "fetch")
        before = await so_far(agent, chain)
        for arguments in ({}, {"key": None}, {"key": {"x": 1}}, "b"):
            with pytest.raises(ToolArgumentsError):
                chain.amend(start.call_id, arguments)
        await turns(50)
        assert await so_far(agent, chain) == before
        desk.gate.set()
        await chain
        await checked(agent, chain)
        assert (desk.did, desk.cleaned) == (["a"], [])


# -- too late ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", range(12))
async def test_at_whatever_step_an_amendment_comes_a_call_has_one_outcome(steps, depth, caplog):
    """Some come before the result, some while it is on its way, some after it; none is lost without a word."""
    desk = Desk()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch()], depth=depth) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "fetch")
        desk.gate.set()
        await turns(steps)
        refused = await late(chain, start.call_id)
        await chain
        log = await checked(agent, chain)
        warned = [event.code for event in of(log, EventType.WARNING)]
        if refused:
            assert (desk.did, warned) == (["a"], [])
        elif warned:
            assert (desk.did, warned) == (["a"], ["decision_too_late"])
        else:
            assert desk.did == ["b"]
        assert caplog.records == []


class SlowStore(InMemoryStore):
    """Takes some turns of the loop to accept events, so that more of them gather."""

    async def append(self, *arguments, **options):
        await turns(7)
        await super().append(*arguments, **options)


@pytest.mark.parametrize("steps", range(0, 20, 4))
async def test_an_amendment_that_meets_the_result_on_its_way_is_told_where_it_was_dropped(steps, caplog):
    desk = Desk()
    desk.gate.set()
    script = ScriptedModel([call("count", key="a")], "done")
    async with Agent(model=script, tools=[desk.count()], store=SlowStore()) as agent:
        starts = asyncio.Queue()
        agent.bus.attach(lambda event: starts.put_nowait(event) if event.type is EventType.TOOL_START else None)
        chain = agent.start("hello")
        start = await starts.get()
        await turns(steps)
        refused = await late(chain, start.call_id)
        await chain
        log = await checked(agent, chain)
        warned = [event.code for event in of(log, EventType.WARNING)]
        assert desk.did[-1] == ("a" if refused or warned else "b")
        assert warned in ([], ["decision_too_late"])
        assert caplog.records == []


async def late(chain, call_id):
    """Amend the call; whether that was refused."""
    try:
        chain.amend(call_id, {"key": "b"})
    except NotPendingError:
        return True
    return False


async def test_a_call_that_is_closed_is_not_pending():
    desk = Desk()
    desk.gate.set()
    async with line([call("fetch", key="a")], "done", tools=[desk.fetch()], depth=1) as agent:
        chain = agent.start("hello")
        await chain
        start = of(await checked(agent, chain), EventType.TOOL_START)[-1]
        with pytest.raises(NotPendingError, match="that waits or runs"):
            chain.amend(start.call_id, {"key": "b"})


async def test_a_tool_that_gives_its_result_when_it_is_asked_to_stop_has_given_it():
    @tool(timeout=1000.0)
    async def stubborn(key: str) -> str:
        """Finish what was begun."""
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return f"finished {key}"

    async with line([call("stubborn", key="a")], "done", tools=[stubborn], depth=0) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "stubborn")
        chain.amend(start.call_id, {"key": "b"})
        end = await chain
        log = await checked(agent, chain)
        assert end.tools[0].result == "[success]\nfinished a"
        assert [event.code for event in of(log, EventType.WARNING)] == ["decision_too_late"]


# -- keys ----------------------------------------------------------------------------------------------------


async def test_a_call_is_begun_again_under_the_key_of_its_new_arguments():
    desk, store = Desk(), InMemoryStore()
    function = desk.fetch(idempotency_key=["key"])
    async with Agent(model=ScriptedModel([call("fetch", key="a")], "done"), tools=[function], store=store) as agent:
        chain = agent.start("hello", user_id="u")
        start = await until_started(agent, chain, "fetch")
        chain.amend(start.call_id, {"key": "b"})
        await turns(50)
        desk.gate.set()
        await chain
        log = await checked(agent, chain)
        named = f"fetch {agent.tools.get('fetch').origin}"
        first, second = (event.idempotency_key for event in of(log, EventType.TOOL_START))
        assert first != second
        kept = await store.claim_outcome(OutcomeKey(tool=named, key=second, user_id="u"), "other")
        assert (kept.result, desk.did) == ("[success]\nfetched b", ["b"])
        with pytest.raises(OutcomePendingError):  # it was stopped somewhere in its middle
            await store.claim_outcome(OutcomeKey(tool=named, key=first, user_id="u"), "other")


# -- agents --------------------------------------------------------------------------------------------------


async def called(agent, chain, name):
    """The call of the agent of that name."""
    return next(event for event in of(await so_far(agent, chain), EventType.TOOL_START) if event.tool == name)


async def test_an_agent_whose_calls_are_open_is_given_another_task(caplog):
    """These are closed, the tasks end, nothing of theirs expires, and a new chain begins."""
    desk = Desk()
    calls = [call("fetch", key="a"), call("refund")]
    async with line(calls, tools=[desk.fetch(), desk.refund()], depth=3, leaf={"approval_timeout": 60.0}) as agent:
        chain = agent.start("hello")
        await until_started(agent, chain, "fetch")
        chain.amend((await called(agent, chain, "a2")).call_id, {"input": "do the other thing"})
        await chain
        await asyncio.sleep(100.0)
        log = await checked(agent, chain)
        assert told(log, "fetch", "refund", "a3") == [("tool_error", "amended", False)] * 3
        assert told(log, "a2") == [VOID, ("tool_complete", "success", False)]
        inputs = [event for event in of(log, EventType.INPUT) if event.path[-1] == "a2"]
        assert [event.text for event in inputs] == ["task of a2", "do the other thing"]
        assert inputs[0].chain_id != inputs[1].chain_id
        assert (desk.cleaned, desk.did, caplog.records) == (["a"], [], [])


@pytest.mark.parametrize("error", [None, ModelConnectionError("the stream was closed")], ids=["quiet", "raising"])
async def test_an_agent_whose_model_speaks_is_given_another_task_and_its_tokens_count_once(error):
    closed = []

    async def leaf(request):
        if closed:
            yield ModelChunk(text="the other thing is done", usage=Usage(input_tokens=7, output_tokens=5))
            return
        try:
            yield ModelChunk(text="half an answer")
            await asyncio.Event().wait()
        finally:
            closed.append("model")
            if error is not None:
                raise error

    below = Agent(name="leaf", model=leaf)
    async with caller(caller(below, level=1)) as agent:
        chain = agent.start("hello")
        await turns(50)
        assert not closed
        chain.amend((await called(agent, chain, "leaf")).call_id, {"input": "do the other thing"})
        end = await chain
        log = await checked(agent, chain)
        assert closed == ["model"]
        void = next(event for event in of(log, EventType.MODEL_START) if event.path[-1] == "leaf")
        told_usage = sum((event.usage for event in of(log, EventType.MODEL_COMPLETE)), Usage())
        assert end.usage.input_tokens == told_usage.input_tokens + void.input_tokens_estimate
        assert end.usage.output_tokens == told_usage.output_tokens + estimate_tokens("half an answer")
        assert end.usage.estimated


async def test_an_agent_that_waits_for_a_human_is_given_another_task():
    desk = Desk()
    async with line([call("refund")], "nothing to do", tools=[desk.refund()], depth=2) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        chain.amend((await called(agent, chain, "a2")).call_id, {"input": "leave it"})
        with pytest.raises(NotPendingError):
            await turns(50)
            chain.approve(asked.call_id)
        assert (await chain).type is EventType.FINAL
        log = await checked(agent, chain)
        assert (told(log, "a2"), desk.did) == ([VOID, ("tool_complete", "success", False)], [])


async def test_an_agent_that_asks_in_its_text_is_given_another_task():
    async with line(['{"question": "Which?", "options": []}'], "done", tools=[], depth=2) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        chain.amend((await called(agent, chain, "a2")).call_id, {"input": "the red one"})
        await turns(50)
        with pytest.raises(NotPendingError):
            chain.answer("red", asked.question_id)
        assert (await chain).type is EventType.FINAL
        assert chain.state is State.COMPLETED
        await checked(agent, chain)


class SlowLog(InMemoryStore):
    """A store that takes its time to accept events."""

    async def append(self, run_id, events, *, token=None):
        await asyncio.sleep(0.05)
        await super().append(run_id, events, token=token)


async def test_what_an_agent_still_says_while_its_amendment_is_written_is_dropped(caplog):
    async def leaf(request):
        for _ in range(100):
            await asyncio.sleep(0.03)
            yield ModelChunk(text=f"about {request.messages[-1].text} ")
        yield ModelChunk(finish_reason="stop")

    below = Agent(name="leaf", model=leaf)
    async with caller(below, store=SlowLog()) as agent:
        chain = agent.start("hello")
        start = await until_started(agent, chain, "leaf")
        await asyncio.sleep(1)
        chain.amend(start.call_id, {"input": "it"})
        await chain
        log = await checked(agent, chain)
        assert [(event.attempt, event.will_retry) for event in of(log, EventType.TOOL_ERROR)] == [(1, True)]
        assert of(log, EventType.TOOL_COMPLETE)[0].result == "[success]\n" + 100 * "about it "
        assert not caplog.records
