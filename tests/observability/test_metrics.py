"""What the metrics say is what the logs say."""

from collections import Counter
from contextlib import asynccontextmanager

import pytest
from opentelemetry.metrics import NoOpMeter

from agentflow import Agent, InMemoryStore, ModelChunk, Settings
from agentflow.errors import ModelStatusError, StoreError
from agentflow.events import ToolErrorEvent, ToolStartEvent
from agentflow.messages import Usage
from agentflow.observability import metrics as module
from agentflow.observability.gates import build_gates
from agentflow.observability.metrics import MAX_MODELS, Metrics
from agentflow.observability.prometheus import Exposition
from agentflow.testing import FailingLog, ScriptedModel, call
from tests.builders import log_of, of, turns
from tests.chain.memories import Model, agent_of, chat, says_of_it, store_with
from tests.observability.mixed import look, mixed_agent, run_all, value, values


@asynccontextmanager
async def measured(agent, **options):
    """A function that gives the values as they are, while the agent is measured."""
    exposition = Exposition()
    metrics = Metrics(exposition.meter, [agent], **options)
    attached = metrics.attach()
    try:
        async with agent:
            yield lambda: values(exposition.text()[0].decode())
    finally:
        attached.dispose()
        exposition.close()


def closings(log):
    return [e for e in log if e.type in ("tool_complete", "tool_error")]


async def test_counters_equal_the_logs_of_runs_of_every_kind():
    agent = mixed_agent()
    async with measured(agent) as read:
        logs = [await log_of(agent, run_id) for run_id in await run_all(agent)]
        found = read()
    events = [event for log in logs for event in log]
    outcomes = Counter(log[-1].type.value for log in logs)
    assert outcomes == {"final": 4, "failed": 1, "cancelled": 1}
    for outcome, count in outcomes.items():
        assert value(found, "agentflow_runs_total", agent="shop", outcome=outcome) == count
        assert value(found, "agentflow_run_duration_seconds_count", outcome=outcome) == count
    closed = [e for e in closings(events) if not getattr(e, "will_retry", False)]
    by_status = Counter(getattr(e, "status", "success") for e in closed)
    assert by_status.keys() >= {"success", "error", "unknown_tool", "cancelled"}
    for status, count in by_status.items():
        assert value(found, "agentflow_tool_calls_total", status=status) == count
    for tool, count in Counter(e.tool for e in closed).items():
        shown = tool if tool != "invented_by_the_model" else "unknown"
        assert value(found, "agentflow_tool_calls_total", tool=shown) == count
    retried = sum(isinstance(e, ToolErrorEvent) and e.will_retry for e in events)
    assert value(found, "agentflow_tool_retries_total", tool="flaky") == retried == 1
    warnings = Counter(e.code for e in of(events, "warning"))
    assert warnings["arguments_corrected"] == value(found, "agentflow_argument_corrections_total", tool="look") == 1
    assert {code: value(found, "agentflow_warnings_total", code=code) for code in warnings} == warnings


async def test_model_calls_and_their_tokens_equal_the_logs():
    agent = mixed_agent()
    async with measured(agent, conventions="both") as read:
        events = [event for run_id in await run_all(agent) for event in await log_of(agent, run_id)]
        found = read()
    answered = of(events, "model_complete")
    labels = {"gen_ai_provider_name": "scripted", "gen_ai_request_model": "scripted", "gen_ai_operation_name": "chat"}
    assert value(found, "agentflow_model_duration_seconds_count", provider="scripted") == len(answered)
    first = sum(e.first_chunk_ms is not None for e in answered)
    assert value(found, "agentflow_first_chunk_seconds_count", model="scripted") == first
    assert value(found, "gen_ai_client_inference_time_to_first_chunk_seconds_count", **labels) == first
    called = {(e.chain_id, e.iteration) for e in of(events, "model_start")}
    assert value(found, "gen_ai_client_inference_duration_seconds_count", **labels) == len(called)
    assert value(found, "gen_ai_client_operation_duration_seconds_count", **labels) == len(called)
    failed = value(found, "gen_ai_client_inference_duration_seconds_count", error_type="model")
    assert failed == len(called) - len(answered) - value(
        found, "gen_ai_client_inference_duration_seconds_count", error_type="error"
    )
    for kind in ("input", "output"):
        tokens = sum(getattr(e.usage, f"{kind}_tokens") for e in answered)
        assert value(found, f"gen_ai_client_inference_usage_{kind}_tokens_total", **labels) == tokens
        assert value(found, f"gen_ai_client_inference_operation_{kind}_tokens_sum", **labels) == tokens
        assert value(found, "gen_ai_client_token_usage_sum", gen_ai_token_type=kind) == tokens


async def test_model_calls_for_summaries_are_counted_although_no_log_has_them():
    async def summarise(request):
        async for chunk in says_of_it(facts=["The user said 1."])(request):
            yield chunk
        yield ModelChunk(usage=Usage(input_tokens=7000, output_tokens=70))

    agent = agent_of(Model(summarise), await store_with(4), turns=4)
    async with measured(agent) as read:
        usage = of(await chat(agent), "final")[0].usage
        found = read()
    labels = {"gen_ai_provider_name": "model", "gen_ai_agent_name": agent.name, "gen_ai_operation_name": "chat"}
    for kind, used in (("input", usage.input_tokens + 7000), ("output", usage.output_tokens + 70)):
        assert value(found, f"gen_ai_client_inference_usage_{kind}_tokens_total", **labels) == used
    assert value(found, "gen_ai_client_inference_duration_seconds_count", **labels) == 2
    assert value(found, "agentflow_model_duration_seconds_count", model="model") == 2
    assert agent.summary_calls == []


async def test_a_model_call_for_a_summary_that_fails_is_counted_with_its_error():
    agent = agent_of(Model(), await store_with(4), turns=4)
    async with measured(agent) as read:
        await chat(agent)
        found = read()
    assert value(found, "gen_ai_client_inference_duration_seconds_count", error_type="model") == 1


async def test_each_agents_tasks_are_counted_with_what_they_took():
    agent = mixed_agent()
    async with measured(agent) as read:
        events = [event for run_id in await run_all(agent) for event in await log_of(agent, run_id)]
        found = read()
    chains = {e.chain_id: e.path[-1] for e in events}
    assert Counter(chains.values()) == {"shop": 6, "helper": 2}
    for name in ("shop", "helper"):
        own = [e for e in events if e.path[-1] == name]
        rounds = {(e.chain_id, e.iteration) for e in of(own, "model_start")}
        closed = [e for e in closings(own) if not getattr(e, "will_retry", False)]
        named = {"gen_ai_agent_name": name}
        assert value(found, "gen_ai_invoke_agent_duration_seconds_count", **named) == len(
            {chain for chain, owner in chains.items() if owner == name}
        )
        assert value(found, "gen_ai_invoke_agent_inference_calls_sum", **named) == len(rounds)
        assert value(found, "gen_ai_invoke_agent_tool_calls_sum", **named) == len(closed)
    ran = sum(e.type == "tool_complete" or e.status not in ("unknown_tool", "rejected") for e in closings(events))
    assert value(found, "agentflow_tool_duration_seconds_count") == ran
    assert value(found, "gen_ai_execute_tool_duration_seconds_count", gen_ai_agent_name="helper") == 1


async def test_a_cancel_is_timed_from_when_it_was_asked_for():
    agent = mixed_agent()
    async with measured(agent) as read:
        await run_all(agent)
        found = read()
    assert value(found, "agentflow_cancel_latency_seconds_count") == 1


async def test_runs_in_flight_and_pools_are_as_they_are_when_they_are_read():
    during = []
    agent = Agent(name="shop", model=ScriptedModel([call("look", key="a")], "done"), tools=[look])
    async with measured(agent) as read:
        agent.bus.attach(lambda event: during.append(read()) if isinstance(event, ToolStartEvent) else None)
        await agent.chat("hi")
        after = read()
    assert value(during[0], "agentflow_runs_in_flight", agent="shop") == 1
    assert value(after, "agentflow_runs_in_flight", agent="shop") == 0
    assert ("agentflow_thread_pool_busy", frozenset({("pool", "default")})) in after
    assert value(after, "agentflow_store_seconds_count", op="append") > 0


async def test_limits_that_are_waited_for_and_breakers_are_told():
    limits = Settings(limits={"rates": {"all": {"per": "all", "concurrent": 1}}, "breaker": {"window": 1}}).limits
    broken = ModelStatusError("boom", status=500)
    agent = Agent(model=ScriptedModel([broken]), settings=Settings(), gate=build_gates(limits))
    async with measured(agent) as read:
        first, second = agent.start("x"), agent.start("x")
        await turns(3)
        assert value(read(), "agentflow_limiter_waiting") == 1
        second.cancel()
        for run in (first, second):
            await run
        found = read()
    assert value(found, "agentflow_limiter_waiting") == 0
    assert value(found, "agentflow_breaker_state", breaker="model:scripted") == 2


async def test_no_label_is_an_id_or_a_name_that_a_model_or_a_user_made_up():
    agent = mixed_agent()
    async with measured(agent, conventions="both") as read:
        ids = await run_all(agent)
        events = [event for run_id in ids for event in await log_of(agent, run_id)]
        found = read()
    labels = {value for _, pairs in found for _, value in pairs}
    secret = {e.chain_id for e in events} | {e.session_id for e in events} | {e.trace_id for e in events}
    assert not labels & secret
    assert not any("invented" in label for label in labels)


async def test_users_cannot_make_series_without_end_by_asking_for_models():
    agent = Agent(model=ScriptedModel())
    async with measured(agent):
        metrics = Metrics(Exposition().meter, [agent])
        told = {metrics._model("mine", f"model-{number}") for number in range(2 * MAX_MODELS)}
        assert len(told) == MAX_MODELS + 1
        assert metrics._model("mine", "model-0") == ("mine", "model-0")


async def test_runs_whose_end_is_never_seen_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_RUNS", 3)
    agent = Agent(model=ScriptedModel(*["hi"] * 9))
    metrics = Metrics(Exposition().meter, [agent])
    async with agent:
        agent.bus.attach(lambda event: metrics.see(event) if event.type == "input" else None)
        for _ in range(9):
            await agent.chat("hi")
    assert len(metrics._runs) == 3


async def test_what_no_log_accepted_is_not_counted_and_a_broken_run_is_not_in_flight():
    store = FailingLog(InMemoryStore(), fail_at=4)
    agent = Agent(name="shop", model=ScriptedModel([call("look", key="a")], "done"), tools=[look], store=store)
    async with measured(agent) as read:
        with pytest.raises(StoreError):
            await agent.chat("hi")
        found = read()
        (record,) = await store.list_runs()
        log = await store.read(record.run_id, 0, 99)
    assert value(found, "agentflow_runs_in_flight", agent="shop") == 0
    assert value(found, "agentflow_runs_total") == 0
    assert value(found, "agentflow_tool_calls_total") == len(closings(log))
    assert value(found, "agentflow_model_duration_seconds_count") == len(of(log, "model_complete"))


async def test_instruments_that_fail_harm_no_run():
    class Broken(NoOpMeter):
        def create_histogram(self, *args, **fields):
            return BrokenInstrument()

    class BrokenInstrument:
        def record(self, *args):
            raise OSError("no exporter")

    agent = mixed_agent()
    attached = Metrics(Broken("broken"), [agent]).attach()
    async with agent:
        logs = [await log_of(agent, run_id) for run_id in await run_all(agent)]
    attached.dispose()
    assert Counter(log[-1].type.value for log in logs) == {"final": 4, "failed": 1, "cancelled": 1}


async def test_nothing_is_counted_or_told_after_the_end():
    exposition = Exposition()
    agent = Agent(name="shop", model=ScriptedModel("one", "two"))
    attached = Metrics(exposition.meter, [agent]).attach()
    async with agent:
        await agent.chat("hi")
        attached.dispose()
        await agent.chat("hi")
        found = values(exposition.text()[0].decode())
        assert not vars(agent.store).keys() & {"append", "read"}
    assert value(found, "agentflow_runs_total") == 1
    assert not any(name == "agentflow_runs_in_flight" for name, _ in found)
    exposition.close()
