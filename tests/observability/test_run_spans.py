import asyncio
import logging

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as current
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from agentflow import Agent, InMemoryStore, ModelChunk, Settings, tool
from agentflow.errors import ModelConnectionError, StoreError
from agentflow.events import EventType
from agentflow.messages import Usage
from agentflow.models.http import REQUEST_HEADERS
from agentflow.streams import LoopClock
from agentflow.testing import FakeProvider, ScriptedModel, call, status, text
from agentflow.testing.stores import FailingLog
from agentflow.tools import ask_user
from tests.builders import of
from tests.chain.families import line, so_far
from tests.chain.memories import OURS, Model, agent_of, says_of_it, store_with
from tests.observability.traces import failed, traced

pytestmark = pytest.mark.virtual_time


def current_span():
    return trace.get_current_span().get_span_context()


@pytest.fixture
def traces():
    with traced() as found:
        yield found


async def test_a_run_of_depth_three_with_tools_of_every_kind_is_one_tree_whatever_thread_they_ran_in(traces):
    seen = {}
    tracer = traces.provider.get_tracer("the user's")

    def note(name):
        seen[name] = current_span().span_id
        tracer.start_span(f"{name}'s own").end()

    def in_thread() -> str:
        """Work in a thread."""
        note("in_thread")
        return "done"

    async def as_coroutine() -> str:
        """Work as a coroutine."""
        await asyncio.sleep(1)
        note("as_coroutine")
        return "done"

    async def as_stream():
        """Stream."""
        yield "a"
        await asyncio.sleep(1)
        note("as_stream")
        yield "b"

    def as_generator():
        """Stream in a thread."""
        yield "a"
        note("as_generator")
        yield "b"

    tools = [in_thread, as_coroutine, as_stream, as_generator]
    script = ([call(name.__name__) for name in tools], "done")
    async with line(*script, tools=tools, depth=3) as agent:
        await agent.chat("go", session_id="s")

    leaf = sorted((f"execute_tool {name}", f"{name}'s own") for name in seen)
    leaf_chats = ["chat scripted", *leaf, "chat scripted"]

    def level(number, below):
        return (f"invoke_agent a{number}", "chat scripted", (f"execute_tool a{number + 1}", below), "chat scripted")

    (root,) = traces.tree()
    expected = level(0, level(1, level(2, ("invoke_agent a3", *leaf_chats))))
    assert shape(root) == shape((*expected, "search_memory"))
    assert set(seen) == {one.__name__ for one in tools}
    for name, span_id in seen.items():
        assert traces.one(f"execute_tool {name}").context.span_id == span_id
    assert {failed(span) for span in traces.spans} == {None}


def shape(tree):
    """A tree without the order of siblings: in virtual time many begin at once."""
    if isinstance(tree, str):
        return tree
    return (tree[0], *sorted(map(shape, tree[1:]), key=str))


async def test_spans_have_the_times_of_the_events_and_the_trace_of_the_run(traces):
    @tool
    async def slow() -> str:
        """Take a while."""
        await asyncio.sleep(7)
        return "done"

    async with Agent(name="shop", model=ScriptedModel([call("slow")], "done"), tools=[slow]) as agent:
        chain = agent.start("go")
        await chain
        log = [event async for event in agent.follow(chain.run_id)]

    span = traces.one("execute_tool slow")
    assert span.end_time - span.start_time == 7_000_000_000
    assert {trace.format_trace_id(span.context.trace_id) for span in traces.spans} == {event.trace_id for event in log}
    carried = log[0].metadata["traceparent"].split("-")
    assert carried[2] == trace.format_span_id(traces.one("invoke_agent shop").context.span_id)


async def test_a_run_that_is_begun_within_a_span_is_below_it_and_has_its_trace_and_baggage(traces):
    found = []

    async def look() -> str:
        """Look."""
        found.append(baggage.get_baggage("tenant"))
        return "seen"

    outer = traces.provider.get_tracer("the user's").start_span("request")
    token = current.attach(baggage.set_baggage("tenant", "t1", trace.set_span_in_context(outer)))
    agent = Agent(model=ScriptedModel([call("look")], "done"), tools=[look])
    chain = agent.stream("go")  # what is current here counts, not where it is consumed
    current.detach(token)
    async with agent:
        await chain
    outer.end()

    (tree,) = traces.tree()
    assert (tree[0], tree[1][0]) == ("request", "invoke_agent agent")
    assert found == ["t1"]


async def test_a_traceparent_in_the_metadata_is_the_parent_where_no_span_is_current(traces):
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    async with Agent(model=ScriptedModel("hello", "hello")) as agent:
        await agent.chat("go", metadata={"traceparent": parent})
        await agent.chat("go", metadata={"traceparent": 5})

    first, second = traces.named("invoke_agent agent")
    assert (first.context.trace_id, first.parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert second.parent is None


async def test_a_suspended_run_has_no_open_span_and_its_further_ones_are_linked(traces):
    asked = [call("ask_user", question="Which?")]
    async with line(asked, "done", tools=[ask_user], depth=2) as agent:
        chain = agent.start("go")
        await chain.reply()
        before = traces.spans
        assert {span.attributes["agentflow.outcome"] for span in before if span.name.startswith("invoke")} == {
            "suspended"
        }
        await asyncio.sleep(3600)
        chain.answer("this one")
        await chain

    for name in ("invoke_agent a0", "execute_tool a1", "invoke_agent a1", "execute_tool a2", "invoke_agent a2"):
        first, second = traces.named(name)
        assert second.start_time - first.end_time >= 3600 * 10**9
        assert [link.context for link in second.links] == [first.context]
        assert second.context.trace_id == first.context.trace_id
    root, again = traces.named("invoke_agent a0")
    assert again.parent.span_id == root.context.span_id
    assert again.attributes["agentflow.outcome"] == "completed"
    assert len(traces.named("execute_tool ask_user")) == 1


async def test_a_run_cancelled_while_it_waits_says_so_in_a_last_span(traces):
    async with Agent(model=ScriptedModel([call("ask_user", question="Which?")]), tools=[ask_user]) as agent:
        chain = agent.start("go")
        await chain.reply()
        chain.cancel()
        await chain

    assert [span.attributes["agentflow.outcome"] for span in traces.named("invoke_agent agent")] == [
        "suspended",
        "cancelled",
    ]


async def test_a_cancelled_run_ends_every_span_and_none_has_failed(traces):
    @tool
    async def endless() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return "never"

    async with line([call("endless")], tools=[endless], depth=2) as agent:
        chain = agent.start("go")
        async for event in chain:
            if event.type == EventType.TOOL_START and event.tool == "endless":
                chain.cancel()
        traces.tree()

    assert traces.one("execute_tool endless").attributes["agentflow.attempt"] == 1
    assert traces.one("invoke_agent a0").attributes["agentflow.cancel.reason"] == "user"
    assert {failed(span) for span in traces.spans} == {None}


async def test_a_run_out_of_time_has_failed(traces):
    async with Agent(model=ScriptedModel("slow", delay=100.0), timeout=5.0) as agent:
        await agent.start("go")

    assert failed(traces.one("invoke_agent agent")) == "timeout"


async def test_the_attempts_of_a_call_are_in_one_span(traces):
    def error():
        return ModelConnectionError("gone", provider="p")

    @tool(retries=2, idempotent=True)
    async def shaky() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no")
        return "done"

    tries = []
    script = ScriptedModel([error()], [call("shaky")], "done")
    async with Agent(model=script, tools=[shaky]) as agent:
        await agent.chat("go")

    first, _ = traces.named("chat scripted")
    assert [(event.name, event.attributes["reason"], event.attributes["kind"]) for event in first.events] == [
        ("rollback", "retry", "connection")
    ]
    assert failed(first) is None
    span = traces.one("execute_tool shaky")
    assert [event.name for event in span.events] == ["attempt_failed", "attempt"]
    assert (span.attributes["agentflow.attempt"], failed(span)) == (2, None)


async def test_another_model_has_a_span_of_its_own_and_requests_name_the_span_they_are_for(traces):
    async with FakeProvider(status(400, {"error": {"message": "no"}})) as one, FakeProvider(text("hello")) as two:
        settings = Settings(
            aliases={"main": ["one/small", "two/large"]},
            providers={"one": {"base_url": one.base_url}, "two": {"base_url": two.base_url}},
        )
        async with Agent(model="main", settings=settings) as agent:
            await agent.chat("go")

    first, second = traces.one("chat small"), traces.one("chat large")
    assert (failed(first), failed(second)) == ("status", None)
    for span, provider in ((first, one), (second, two)):
        carried = provider.requests[0].headers["traceparent"].split("-")
        assert carried[1:3] == [format(span.context.trace_id, "032x"), format(span.context.span_id, "016x")]


async def test_a_failing_run_names_the_kind_of_its_error_and_no_words_of_it(traces):
    async with Agent(model=ScriptedModel([ValueError("the secret")])) as agent:
        await agent.start("go")

    assert failed(traces.one("chat scripted")) == failed(traces.one("invoke_agent agent")) == "model"
    assert "secret" not in "".join(span.to_json() for span in traces.spans)


async def test_a_thousand_early_breaks_leave_no_open_span_no_detach_error_and_no_current_span(traces, caplog):
    async def stream():
        """Stream."""
        for number in range(100):
            yield number
            await asyncio.sleep(0)

    model = [[call("as_stream")], "many words in this answer"]
    for number in range(1000):
        async with Agent(model=ScriptedModel(*model), tools=[tool(name="as_stream")(stream)]) as agent:
            left = 0
            async for _ in agent.stream("go"):
                left += 1
                if left > number % 12:
                    break

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not current_span().is_valid
    assert len(traces.tree()) == len(traces.named("invoke_agent agent")) == 1000


async def test_an_amended_agent_ends_with_all_that_is_below_it_and_a_new_one_begins_in_the_same_call(traces):
    waiting = asyncio.Event()

    @tool(timeout=1000.0)
    async def wait() -> str:
        """Wait."""
        await waiting.wait()
        return "done"

    async with line(ScriptedModel([call("wait")], "no more"), tools=[wait], depth=2) as agent:
        chain = agent.start("go")
        async for event in chain:
            if event.type == EventType.TOOL_START and event.tool == "wait":
                (start,) = [one for one in await so_far(agent, chain) if getattr(one, "tool", "") == "a1"]
                chain.amend(start.call_id, {"input": "leave it"})

    (_,) = traces.tree()
    asked = traces.one("execute_tool a1")
    assert [(event.name, event.attributes["attempt"]) for event in asked.events] == [
        ("attempt_failed", 1),
        ("attempt", 2),
    ]
    first, second = traces.named("invoke_agent a1")
    assert first.parent.span_id == second.parent.span_id == asked.context.span_id
    assert (failed(first), failed(second)) == ("amended", None)


async def test_what_is_remembered_beside_a_run_has_a_span_of_it(traces):
    store = InMemoryStore()
    async with agent_of(Model(says_of_it()), store, turns=1) as agent:
        for number in range(4):
            await agent.chat(f"question {number}", **OURS)

    updates = traces.named("update_memory")
    assert updates
    runs = {span.context.span_id for span in traces.named("invoke_agent agent")}
    assert {span.parent.span_id for span in updates} <= runs


async def test_a_models_call_for_a_summary_is_a_chat_below_it_also_after_the_end_of_its_run(traces):
    headers = []

    async def slowly(request):
        await asyncio.sleep(1)
        headers.append(REQUEST_HEADERS.get())
        headers.append(current_span())
        async for chunk in says_of_it(facts=["The user said 1."])(request):
            yield chunk
        yield ModelChunk(usage=Usage(input_tokens=70, output_tokens=7))

    async with agent_of(Model(slowly), await store_with(4), turns=4) as agent:
        await agent.chat("hello", **OURS)
        await agent._runtime.owner.drain(60)
    (update,) = traces.named("update_memory")
    (asked,) = [span for span in traces.named("chat model") if span.parent.span_id == update.context.span_id]
    assert asked.kind is SpanKind.CLIENT
    assert asked.attributes["gen_ai.usage.input_tokens"] == 70
    assert asked.attributes["gen_ai.output.type"] == "json"
    assert headers[0]["traceparent"].split("-")[2] == f"{asked.context.span_id:016x}"
    assert headers[1] == asked.context


async def test_a_models_call_for_a_summary_that_fails_says_so(traces):
    async with agent_of(Model(), await store_with(4), turns=4) as agent:
        await agent.chat("hello", **OURS)
        await agent._runtime.owner.drain(60)
    (update,) = traces.named("update_memory")
    (asked,) = [span for span in traces.named("chat model") if span.parent.span_id == update.context.span_id]
    assert (failed(asked), failed(update)) == ("model", None)


async def test_a_clock_that_is_set_back_makes_no_span_end_before_it_begins(traces):
    class Back(LoopClock):
        now = 2_000_000_000.0

        def wall(self):
            self.now -= 3600.0
            return self.now

    async with Agent(model=ScriptedModel("hello"), clock=Back()) as agent:
        await agent.chat("go")
    traces.tree()


async def test_a_run_whose_store_fails_ends_its_spans_as_stopped(traces):
    store = FailingLog(InMemoryStore(), fail_at=3)
    async with Agent(model=ScriptedModel("hello"), store=store) as agent:
        chain = agent.start("go")
        with pytest.raises(StoreError, match="as the test asked"):
            await chain

    assert traces.one("invoke_agent agent").attributes["agentflow.outcome"] == "stopped"


async def test_a_run_taken_over_goes_on_below_its_first_span(traces):
    store = InMemoryStore()
    script = [call("ask_user", question="Which?")]
    async with Agent(model=ScriptedModel(script), tools=[ask_user], store=store) as agent:
        chain = agent.start("go", session_id="s")
        await chain.reply()
    first = traces.one("invoke_agent agent")
    with traced() as elsewhere:
        async with Agent(model=ScriptedModel("done"), tools=[ask_user], store=store) as agent:
            (again,) = await agent.recover(chain.run_id)
            assert not elsewhere.named("invoke_agent agent")
            again.answer("this")
            await again
        second = elsewhere.one("invoke_agent agent")

    assert second.context.trace_id == first.context.trace_id
    assert second.parent.span_id == first.context.span_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert elsewhere.one("chat scripted").parent.span_id == second.context.span_id


async def test_a_run_that_was_not_traced_before_goes_on_under_the_trace_id_of_its_log():
    store = InMemoryStore()
    script = [call("ask_user", question="Which?")]
    async with Agent(model=ScriptedModel(script), tools=[ask_user], store=store) as agent:
        chain = agent.start("go", session_id="s")
        await chain.reply()
    with traced() as traces:
        async with Agent(model=ScriptedModel("done"), tools=[ask_user], store=store) as agent:
            (again,) = await agent.recover(chain.run_id)
            again.answer("this")
            await again
            log = [event async for event in agent.follow(chain.run_id)]

    assert {trace.format_trace_id(span.context.trace_id) for span in traces.spans} == {log[0].trace_id}


async def test_what_is_not_sampled_is_not_recorded_and_keeps_what_is_below_it_from_being_so():
    found = []

    async def look() -> str:
        """Look."""
        found.append(current_span())
        return "seen"

    with traced(sampler=ALWAYS_OFF) as traces:
        async with Agent(model=ScriptedModel([call("look")], "done"), tools=[look]) as agent:
            chain = agent.start("go")
            await chain
            log = [event async for event in agent.follow(chain.run_id)]

    assert traces.spans == ()
    assert trace.format_trace_id(found[0].trace_id) == log[0].trace_id
    assert not found[0].trace_flags.sampled


async def test_nothing_that_was_said_is_in_spans_unless_it_is_asked_for():
    @tool
    async def look(place: str) -> str:
        """Look."""
        return f"answer of {place}"

    async def run():
        script = ScriptedModel([call("look", place="the canary cage")], "canary said " + "x" * 5000)
        async with Agent(model=script, tools=[look]) as agent:
            await agent.chat("where is the canary?")

    with traced() as silent:
        await run()
    with traced(content=True) as telling:
        await run()

    assert "canary" not in "".join(span.to_json() for span in silent.spans)
    agent, looked = telling.one("invoke_agent agent"), telling.one("execute_tool look")
    assert agent.attributes["gen_ai.input.messages"] == (
        '[{"role":"user","parts":[{"type":"text","content":"where is the canary?"}]}]'
    )
    assert looked.attributes["gen_ai.tool.call.arguments"] == '{"place":"the canary cage"}'
    assert looked.attributes["gen_ai.tool.call.result"] == "[success]\nanswer of the canary cage"
    first, second = telling.named("chat scripted")
    assert '"type":"tool_call"' in first.attributes["gen_ai.output.messages"]
    assert 1024 < len(second.attributes["gen_ai.output.messages"]) < 1200


async def test_telemetry_that_raises_harms_no_run():
    def sample(*_args, **_kwargs):
        raise RuntimeError("a broken sampler")

    sampler = type("BrokenSampler", (), {"should_sample": sample, "get_description": lambda self: "broken"})()
    with traced(sampler=sampler) as traces:
        async with Agent(model=ScriptedModel("hello")) as agent:
            chain = agent.start("go")
            assert (await chain).text == "hello"
            log = of([event async for event in agent.follow(chain.run_id)], EventType.INPUT)

    assert traces.spans == ()
    assert len(log[0].trace_id) == 32
