"""When a model has failed for good: the next one of its alias, an answer of the framework's own, or patience."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel

from agentflow import Agent, ModelChunk, Settings
from agentflow.errors import ModelConnectionError, ModelStatusError
from agentflow.events import EventType
from agentflow.testing import FakeProvider, Reply, ScriptedModel, assert_laws, call, status, text, tool_calls
from tests.builders import TOOLS, folded_text, of, run, served

pytestmark = pytest.mark.virtual_time

ANSWER = "Grüße, 世界: the whole answer."


# -- the next model --------------------------------------------------------------------------------------


@asynccontextmanager
async def two_providers(first, second, **model):
    """Two providers behind one alias, which an agent tries in turn; `model` are settings of that section."""
    async with FakeProvider(*first) as one, FakeProvider(*second) as two:
        settings = Settings(
            model=model,
            aliases={"main": ["one/small", "two/large"]},
            providers={"one": {"base_url": one.base_url}, "two": {"base_url": two.base_url}},
        )
        async with Agent(model="main", settings=settings, tools=TOOLS) as agent:
            yield one, two, agent


BUSY = status(429, headers={"Retry-After": "3600"})
REFUSED = status(400, {"error": {"message": "no such model"}})
PARTIAL = Reply(steps=(*text("of the first model").steps[:2], b'data: {"error": {"message": "no", "code": 400}}\n\n'))


@pytest.mark.parametrize("failure", [BUSY, REFUSED, PARTIAL], ids=["over the cap", "refused", "after its first delta"])
async def test_a_model_that_cannot_gives_place_to_the_next_at_once(failure):
    async with two_providers([failure], [text(ANSWER)]) as (one, two, agent):
        log = [event async for event in agent.stream("hello")]
        assert_laws(log)
        starts = [(event.provider, event.model, event.attempt) for event in of(log, EventType.MODEL_START)]
        assert starts == [("one", "small", 1), ("two", "large", 2)]
        assert [(event.attempt, event.reason) for event in of(log, EventType.ROLLBACK)] == [(1, "fallback")]
        (told,) = of(log, EventType.WARNING)
        assert (told.code, told.data["next"], told.data["wait_seconds"]) == ("model_attempt_failed", "fallback", 0.0)
        assert (log[-1].text, folded_text(log)) == (ANSWER, ANSWER)
        assert [request.body["model"] for request in (*one.requests, *two.requests)] == ["small", "large"]
        assert one.refusals == two.refusals == []


async def test_a_model_gets_all_its_attempts_before_the_next_has_its_turn():
    async with two_providers([status(503)] * 3, [status(503), status(503), text(ANSWER)]) as (one, two, agent):
        log = [event async for event in agent.stream("hello")]
        assert_laws(log)
        assert [event.reason for event in of(log, EventType.ROLLBACK)] == [
            "retry",
            "retry",
            "fallback",
            "retry",
            "retry",
        ]
        assert [event.attempt for event in of(log, EventType.MODEL_START)] == [1, 2, 3, 4, 5, 6]
        assert (log[-1].text, len(one.requests), len(two.requests)) == (ANSWER, 3, 3)


async def test_when_all_models_fail_one_error_names_each_and_keeps_the_last_ones_kind():
    async with two_providers([REFUSED], [BUSY]) as (_, _, agent):
        log = [event async for event in agent.stream("hello")]
        assert_laws(log)
        error = log[-1].error
        assert (log[-1].type, error.kind, error.retryable) == (EventType.FAILED, "rate_limit", True)
        assert "'one'" in error.message
        assert "no such model" in error.message
        assert "'two'" in error.message


async def test_a_model_that_was_given_up_is_not_asked_again_in_later_rounds_but_by_the_next_run():
    second = [tool_calls(("look", {"key": "a"})), tool_calls(("look", {"key": "b"})), text("done"), REFUSED]
    async with two_providers([REFUSED, text("I am back.")], second) as (one, two, agent):
        log = [event async for event in agent.stream("hello", session_id="s")]
        assert_laws(log)
        starts = [(event.iteration, event.provider) for event in of(log, EventType.MODEL_START)]
        assert starts == [(1, "one"), (1, "two"), (2, "two"), (3, "two")]
        assert (await agent.chat("again", session_id="s")).text == "I am back."
        assert (len(one.requests), len(two.requests), one.refusals, two.refusals) == (2, 3, [], [])


async def test_a_later_failure_of_the_second_model_names_the_first_ones_too():
    async with two_providers([REFUSED], [tool_calls(("look", {"key": "a"})), BUSY]) as (_, _, agent):
        error = (await agent.start("hello")).error
        assert "no such model" in error.message
        assert "'two'" in error.message


# -- a degraded answer -----------------------------------------------------------------------------------

SORRY = "I cannot answer now; please try again in some minutes."


@pytest.mark.parametrize("failure", [BUSY, REFUSED, PARTIAL], ids=["over the cap", "refused", "after its first delta"])
async def test_when_every_model_has_failed_the_degraded_answer_is_one_more_round(failure):
    async with served(failure, text("Go on."), degraded=SORRY) as (provider, agent):
        log = [event async for event in agent.stream("hello", session_id="s")]
        assert_laws(log)
        end = log[-1]
        assert (end.type, end.finish_reason, end.text, end.iterations) == (EventType.FINAL, "degraded", SORRY, 2)
        (told,) = of(log, EventType.WARNING)
        assert (told.code, told.data["attempt"]) == ("degraded", 1)
        assert "'openai'" in told.message
        (complete,) = of(log, EventType.MODEL_COMPLETE)
        assert complete.finish_reason == "error"
        assert end.usage == complete.usage
        assert (end.usage.output_tokens > 0) is (failure is PARTIAL)
        assert (await agent.chat("again", session_id="s")).text == "Go on."
        sent = [(message["role"], message["content"]) for message in provider.requests[-1].body["messages"]]
        assert sent == [("user", "hello"), ("assistant", SORRY), ("user", "again")]
        assert provider.refusals == []


async def test_the_degraded_answer_may_come_from_the_settings_and_after_all_attempts_and_models():
    async with two_providers([status(503)] * 3, [BUSY], degraded=SORRY) as (_, _, agent):
        log = [event async for event in agent.stream("hello")]
        assert_laws(log)
        assert [event.reason for event in of(log, EventType.ROLLBACK)] == ["retry", "retry", "fallback"]
        assert [event.code for event in of(log, EventType.WARNING)][-1] == "degraded"
        assert "'one'" in of(log, EventType.WARNING)[-1].message
        assert (log[-1].finish_reason, log[-1].text) == ("degraded", SORRY)


async def test_a_degraded_answer_keeps_what_the_rounds_before_it_did():
    partial = ["of the second round", ModelChunk(reasoning="hm"), ModelStatusError("no", status=400)]
    model = ScriptedModel([call("look", key="a")], partial, "Go on.")
    async with Agent(model=model, tools=TOOLS, degraded=SORRY) as agent:
        reply = await agent.chat("hello", session_id="s")
        assert (reply.text, [record.status for record in reply.tools]) == (SORRY, ["success"])
        await agent.chat("again", session_id="s")
    sent = model.requests[-1].messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert "of the second round" not in repr(sent)


async def test_a_degraded_answer_is_held_against_no_form():
    class Weather(BaseModel):
        degrees: int

    async with Agent(
        model=ScriptedModel([ModelStatusError("no", status=400)]), degraded=SORRY, output=Weather
    ) as agent:
        reply = await agent.chat("hello")
        assert (reply.text, reply.output) == (SORRY, None)


@pytest.mark.parametrize("degraded", ["", SORRY])
async def test_a_model_of_the_users_that_only_says_error_has_failed_and_its_calls_are_not_run(degraded):
    log = await run([call("look", key="a"), ModelChunk(finish_reason="error")], degraded=degraded)
    assert of(log, EventType.TOOL_START) == []
    if degraded:
        assert log[-1].finish_reason == "degraded"
    else:
        assert (log[-1].type, "finish reason 'error'" in log[-1].error.message) == (EventType.FAILED, True)


# -- a provider that comes back --------------------------------------------------------------------------


async def test_runs_that_waited_for_a_provider_do_not_come_back_together():
    """HAZARDS F14: a hundred runs wait; the provider fails for 60 seconds, and then is back."""
    random.seed(14)  # the chain's own waits are drawn from it
    loop, times = asyncio.get_running_loop(), []

    async def provider(request):
        times.append(loop.time())
        await asyncio.sleep(0.01)
        if loop.time() < 60:
            raise ModelStatusError("unavailable", status=503)
        yield ModelChunk(text=ANSWER)

    settings = Settings(model={"retries": {"attempts": 60}})
    async with Agent(model=provider, settings=settings) as agent:
        ends = await asyncio.gather(*(agent.stream("hello") for _ in range(100)))
    assert {end.text for end in ends} == {ANSWER}
    usual = sum(20 <= time < 60 for time in times) / 40  # attempts in a second
    seconds = [sum(second <= time < second + 1 for time in times) for second in range(20, 70)]
    assert max(seconds) <= 2 * usual
    assert loop.time() < 60 + 8 + 1  # the cap of a wait


async def test_many_runs_that_fail_after_their_waits_leave_nothing_behind():
    model = ScriptedModel(*([ModelConnectionError("gone")] for _ in range(600)))
    async with Agent(model=model) as agent:
        ends = await asyncio.gather(*(agent.stream("hello") for _ in range(200)))
        assert {end.error.kind for end in ends} == {"connection"}
        assert (agent._runs, len(asyncio.all_tasks())) == ({}, 1)
