"""The model calls of summaries: they are let through or refused, and told to whoever counts them."""

import asyncio

import pytest

from agentflow import Agent, ModelChunk
from agentflow.errors import ModelConnectionError, RateLimitedError
from agentflow.messages import Usage
from agentflow.settings import Settings
from tests.builders import of
from tests.chain.memories import OURS, Model, chat, says_of_it, store_with, summaries_in
from tests.chain.test_gates import Recorder

pytestmark = pytest.mark.virtual_time

USED = Usage(input_tokens=70, output_tokens=7)


def agent_with(summarise, store, gate=None):
    settings = Settings(memory={"turns": 4})
    agent = Agent(model=Model(summarise), store=store, settings=settings, gate=gate)
    told = []
    agent.summary_calls.append(told.append)
    return agent, told


def slowly(*chunks):
    async def summarise(request):
        await asyncio.sleep(2.0)
        async for chunk in says_of_it(facts=["The user said 1."])(request):
            yield chunk
        for chunk in chunks:
            await asyncio.sleep(1.0)
            yield chunk

    return summarise


async def test_a_summarys_call_is_told_with_what_it_took_and_used_and_is_in_no_runs_usage():
    agent, told = agent_with(slowly(ModelChunk(usage=USED)), await store_with(4))
    async with agent:
        log = await chat(agent)
    (asked,) = told
    assert (asked.agent, asked.session_id, asked.provider, asked.model) == (agent.name, "s", "model", "model")
    assert (asked.first_chunk, asked.seconds) == pytest.approx((2.0, 3.0))
    assert (asked.finish_reason, asked.usage, asked.error) == ("stop", USED, None)
    usage = of(log, "final")[0].usage
    assert usage.input_tokens < USED.input_tokens


async def test_what_a_model_does_not_say_of_its_tokens_is_estimated():
    agent, told = agent_with(slowly(), await store_with(4))
    async with agent:
        await chat(agent)
    assert told[0].usage.estimated
    assert min(told[0].usage.input_tokens, told[0].usage.output_tokens) > 0


async def test_a_gate_is_asked_for_each_and_told_how_it_went():
    gate = Recorder()
    agent, _ = agent_with(slowly(ModelChunk(usage=USED)), await store_with(4), gate)
    async with agent:
        await chat(agent)
    step = gate.steps[-1]
    assert (step.kind, step.provider, step.model, step.user_id) == ("model", "model", "model", "u")
    assert step.tokens > 0
    kind, verdict, seconds, tokens = gate.told[-1]
    assert (kind, verdict, tokens, gate.inside) == ("model", "ok", 77, 0)
    assert seconds == pytest.approx(2.0)


async def test_a_refused_one_is_not_made_and_quotes_stand_in(caplog):
    class NothingLong(Recorder):
        """Refuses what is long, as what summaries are asked with is."""

        async def enter(self, step):
            if step.tokens > 150:
                raise RateLimitedError("enough for today")
            return await super().enter(step)

    gate, store = NothingLong(), await store_with(4, said="My city is Bergen, for the {} time.")
    agent, told = agent_with(slowly(), store, gate)
    async with agent:
        assert (await agent.chat("hello", **OURS)).text == "noted"
        await agent._runtime.owner.drain(60)
        (summary,) = await summaries_in(store)
    assert "Bergen" in summary.text
    assert told == []
    assert "summarised without a model: enough for today" in caplog.text


async def down(request):
    await asyncio.sleep(1.0)
    raise ModelConnectionError("no route", provider="model")
    yield


async def breaks(request):
    yield "no chunk"


async def hangs(request):
    await asyncio.sleep(1e9)
    yield


@pytest.mark.parametrize(
    ("summarise", "error", "verdict"),
    [(down, "connection", "failed"), (breaks, "model", "void"), (hangs, "model", "void")],
)
async def test_one_that_fails_is_told_with_the_kind_of_its_error(summarise, error, verdict):
    gate = Recorder()
    agent, told = agent_with(summarise, await store_with(4), gate)
    async with agent:
        await agent.chat("hello", **OURS)
        await agent._runtime.owner.drain(3600)
    assert [asked.error for asked in told] == [error]
    assert (gate.told[-1][1], gate.inside) == (verdict, 0)


async def test_one_that_the_end_of_the_agent_breaks_off_is_told_too():
    gate = Recorder()
    agent, told = agent_with(hangs, await store_with(4), gate)
    await agent.chat("hello", **OURS)
    await agent.aclose()
    assert [asked.error for asked in told] == ["cancelled"]
    assert (gate.told[-1][1], gate.inside) == ("void", 0)


async def test_who_cannot_count_it_costs_no_summary(caplog):
    store = await store_with(4)
    agent, told = agent_with(slowly(), store)
    agent.summary_calls.insert(0, lambda asked: 1 / 0)
    async with agent:
        await chat(agent)
    assert len(told) == len(await summaries_in(store)) == 1
    assert "was not counted" in caplog.text
