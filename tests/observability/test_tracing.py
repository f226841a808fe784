import gc
import threading
import uuid
import weakref

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agentflow import Agent
from agentflow.bus import EventBus
from agentflow.chain.tracing import install, installed
from agentflow.observability.tracing import Tracing
from agentflow.streams import LoopClock
from agentflow.testing import ScriptedModel
from tests.observability.traces import traced
from tests.transports.served import served

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def nobody():
    yield
    install(None)


async def test_without_an_sdk_runs_go_on_untraced(nobody):
    install(Tracing(trace.NoOpTracerProvider()))
    async with Agent(model=ScriptedModel("hello")) as agent:
        chain = agent.start("go")
        await chain
        log = [event async for event in agent.follow(chain.run_id)]

    assert len({event.trace_id for event in log}) == 1
    assert log[0].metadata == {}


async def test_agents_of_one_bus_are_traced_once():
    bus = EventBus()
    with traced() as traces:
        for name in ("a", "b"):
            async with Agent(name=name, model=ScriptedModel("hello"), bus=bus) as agent:
                await agent.chat("go")

    assert [len(traces.named(f"invoke_agent {name}")) for name in ("a", "b")] == [1, 1]
    assert len(traces.named("chat scripted")) == 2


async def test_what_is_traced_lives_no_longer_than_its_run():
    with traced():
        async with Agent(model=ScriptedModel("hello")) as agent:
            chain = agent.stream("go")
            await chain
            alive = weakref.ref(chain._agent_run.info.trace)
            del chain
        del agent
        gc.collect()
        assert alive() is None


async def test_a_run_taken_over_within_the_process_stays_traced_when_its_first_owner_lets_go(nobody):
    tracing = Tracing(TracerProvider(shutdown_on_exit=False))
    bus, about = EventBus(), {"run_id": str(uuid.uuid4()), "agent": "a", "session_id": "s", "model": "m"}
    first = tracing.trace(bus, {}, None)
    first.begin(**about, clock=LoopClock())
    second = tracing.trace(bus, first.carried(), first.trace_id)
    second.begin(**about, clock=LoopClock())
    first.close()

    assert tracing._runs[about["run_id"]] is second


async def test_a_request_is_handled_although_its_trace_cannot_be_read(nobody, monkeypatch, caplog):
    def extract(headers):
        raise ValueError("a broken propagator")

    monkeypatch.setattr(propagate, "extract", extract)
    with Tracing(TracerProvider(shutdown_on_exit=False)).incoming({"traceparent": PARENT}):
        pass

    assert "could not be read" in caplog.text


class Sink(SpanExporter):
    """An exporter that does as `take` says."""

    def __init__(self, take):
        self._take = take

    def export(self, spans):
        return self._take()

    def shutdown(self):
        pass


async def runs_with(exporter, number):
    """Runs whose spans go to an exporter in batches; the answers, and the spans that wait after them."""
    processor = BatchSpanProcessor(exporter, max_queue_size=100, max_export_batch_size=50, schedule_delay_millis=10)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    install(Tracing(provider))
    async with Agent(model=ScriptedModel(*["hello"] * number)) as agent:
        answers = [(await agent.chat("go")).text for _ in range(number)]
    return answers, provider


async def test_a_slow_exporter_holds_up_no_run_and_keeps_a_bounded_number_of_spans(nobody, caplog):
    released = threading.Event()

    def take():
        released.wait(20)
        return SpanExportResult.SUCCESS

    answers, provider = await runs_with(Sink(take), 200)
    assert answers == ["hello"] * 200  # while the first batch still waits to be taken
    assert not released.is_set()
    (processor,) = provider._active_span_processor._span_processors
    assert len(processor._batch_processor._queue) <= 100
    released.set()
    provider.shutdown()


async def test_an_exporter_that_is_down_harms_no_run(nobody):
    def take():
        raise ConnectionError("the collector is down")

    answers, provider = await runs_with(Sink(take), 20)
    provider.shutdown()

    assert answers == ["hello"] * 20


async def test_a_request_with_a_traceparent_is_the_parent_of_the_run_that_it_begins():
    with traced() as traces:
        async with served(Agent(model=ScriptedModel("hello", "hello"))) as here:
            for parent in (PARENT, "nonsense"):
                status, _ = await here.posted("/api/agent/chat", {"input": "go"}, headers={"traceparent": parent})
                assert status == 200

    first, second = traces.named("invoke_agent agent")
    assert (first.context.trace_id, first.parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert second.parent is None


async def test_where_the_server_is_instrumented_itself_its_span_is_the_parent():
    with traced() as traces:
        tracer = traces.provider.get_tracer("the server's")
        outer = tracer.start_span("POST")
        with trace.use_span(outer, end_on_exit=True), installed().incoming({"traceparent": PARENT}):
            async with Agent(model=ScriptedModel("hello")) as agent:
                await agent.chat("go")

    assert traces.one("invoke_agent agent").parent.span_id == outer.get_span_context().span_id
