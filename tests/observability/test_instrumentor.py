import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentflow import Agent
from agentflow.chain.tracing import install, installed
from agentflow.errors import ConfigError
from agentflow.observability.instrumentor import AgentflowInstrumentor
from agentflow.testing import ScriptedModel

SHOP = """
from agentflow import Agent, InMemoryStore, tool
from agentflow.testing import ScriptedModel, call

@tool
def look() -> str:
    "Look."
    return "seen"

agent = Agent(name="shop", model=ScriptedModel([call("look")], "Sold."), tools=[look], store=InMemoryStore())
"""


@pytest.fixture(autouse=True)
def nobody():
    yield
    install(None)


def recorded():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


async def talk():
    async with Agent(model=ScriptedModel("hello")) as agent:
        await agent.chat("hi")


async def test_who_is_traced_is_everybody_from_instrument_to_uninstrument(caplog):
    exporter, provider = recorded()
    await talk()
    AgentflowInstrumentor().instrument(tracer_provider=provider, skip_dep_check=True)
    first = installed()
    AgentflowInstrumentor().instrument(tracer_provider=provider)  # twice is once
    assert installed() is first
    assert "traced already" in caplog.text
    await talk()
    AgentflowInstrumentor().uninstrument()
    await talk()

    assert [span.name for span in exporter.get_finished_spans()].count("invoke_agent agent") == 1


@pytest.mark.parametrize(("value", "shown"), [("SPAN_ONLY", True), ("NO_CONTENT", False), ("EVENT_ONLY", False)])
async def test_the_conventions_own_variable_says_whether_words_are_shown(monkeypatch, value, shown):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    exporter, provider = recorded()
    AgentflowInstrumentor().instrument(tracer_provider=provider)
    await talk()

    assert any("gen_ai.input.messages" in span.attributes for span in exporter.get_finished_spans()) is shown


@pytest.mark.parametrize(("names", "told"), [("0.1.0", False), ("1.41", True), ("both", True)])
async def test_an_agents_span_names_its_provider_after_the_older_conventions_only(monkeypatch, names, told):
    monkeypatch.setenv("AGENTFLOW_TELEMETRY__SEMCONV", names)
    exporter, provider = recorded()
    AgentflowInstrumentor().instrument(tracer_provider=provider)
    await talk()

    (agent,) = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent agent"]
    assert ("gen_ai.provider.name" in agent.attributes) is told


def test_settings_that_cannot_be_read_are_told(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_TELEMETRY__SEMCONV", "2.0")
    with pytest.raises(ConfigError, match=r"telemetry\.semconv"):
        AgentflowInstrumentor().instrument()
    assert installed() is None


def test_other_tools_find_it_by_its_entry_point():
    (point,) = [point for point in entry_points(group="opentelemetry_instrumentor") if point.name == "agentflow"]
    assert point.load() is AgentflowInstrumentor


# -- whole processes -------------------------------------------------------------------------------------


@asynccontextmanager
async def collector(spans):
    """A collector that keeps spans, each with its service: the variables that point to it."""

    async def take(request):
        told = ExportTraceServiceRequest.FromString(await request.read())
        for resource in told.resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
            spans.extend((service, span) for scope in resource.scope_spans for span in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{runner.addresses[0][1]}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
    finally:
        await runner.cleanup()


async def one_run(tmp_path, *command, **variables):
    """Serve an agent by a command, have one run, and end it: its exit code, and what it said on standard error."""
    (tmp_path / "shop.py").write_text(SHOP)
    process = await asyncio.create_subprocess_exec(
        *command,
        *(sys.executable, "-m", "agentflow", "serve", "--port", "0", "shop"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},  # noqa: TID251  nothing else is passed on
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        line = (await process.stdout.readline()).decode()
        assert line, (await process.stderr.read()).decode()
        address = re.search(r"http://\S+", line)[0] + "/api/agent/chat"
        parent = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
        async with aiohttp.ClientSession() as client, client.post(address, json={"input": "x"}, headers=parent) as said:
            assert (await said.json())["content"] == "Sold."
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, said.decode()


def outline(spans):
    names = {span.span_id: span.name for _, span in spans}
    return {(names.get(span.parent_span_id, span.parent_span_id.hex()), span.name) for _, span in spans}


WHOLE = {
    ("b" * 16, "invoke_agent shop"),
    ("invoke_agent shop", "search_memory"),
    ("invoke_agent shop", "chat scripted"),
    ("invoke_agent shop", "execute_tool look"),
}


async def test_opentelemetry_instrument_traces_a_server_without_any_code(tmp_path):
    spans = []
    async with collector(spans) as variables:
        chosen = {"OTEL_TRACES_EXPORTER": "otlp_proto_http", "OTEL_SERVICE_NAME": "store"}
        silent = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        command = str(Path(sys.executable).parent / "opentelemetry-instrument")
        assert (await one_run(tmp_path, command, **variables, **chosen, **silent))[0] == 0

    assert outline(spans) == WHOLE
    assert {service for service, _ in spans} == {"store"}
    assert {span.trace_id.hex() for _, span in spans} == {"a" * 32}


async def test_the_server_sends_its_spans_by_itself_where_the_settings_say_so(tmp_path):
    spans = []
    async with collector(spans) as variables:
        assert (await one_run(tmp_path, AGENTFLOW_TELEMETRY__TRACES="true", **variables))[0] == 0

    assert outline(spans) == WHOLE
    assert {service for service, _ in spans} == {"agentflow"}


async def test_a_server_whose_collector_is_gone_serves_and_ends(tmp_path):
    async with collector([]) as variables:
        pass
    assert (await one_run(tmp_path, AGENTFLOW_TELEMETRY__TRACES="true", **variables))[0] == 0
