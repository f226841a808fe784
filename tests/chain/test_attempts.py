"""Attempts at a model call: what is made again and when, how it is told, and that nothing of a failed one stays."""

import asyncio

import pytest

from agentflow import Agent, ModelChunk, Settings, Usage
from agentflow.errors import (
    ModelConnectionError,
    ModelError,
    ModelProtocolError,
    ModelRateLimitError,
    ModelStatusError,
    ModelTimeoutError,
    ModelTruncatedError,
)
from agentflow.events import EventType
from agentflow.models.base import estimate_tokens
from agentflow.testing import (
    HalfClose,
    Reply,
    Reset,
    ScriptedModel,
    assert_laws,
    call,
    status,
    text,
    tool_calls,
)
from tests.builders import TOOLS, folded_text, log_of, of, served

pytestmark = pytest.mark.virtual_time

PASSING = [
    ModelConnectionError("gone"),
    ModelTimeoutError("silent"),
    ModelTruncatedError("cut"),
    ModelRateLimitError("too much"),
    *(ModelStatusError("broken", status=code) for code in (500, 502, 503, 529)),
]
LASTING = [
    ModelError("odd"),
    ModelProtocolError("no reply"),
    *(ModelStatusError("no", status=code) for code in (400, 401, 403, 404, 422)),
]
ANSWER = "Grüße, 世界: the whole answer."


def now():
    return asyncio.get_running_loop().time()


def at_half(chain):
    """Let every random wait of this run be half of its bound."""
    chain._agent_run._performer._root.models._chance = lambda: 0.5
    return chain


async def play(*script, **options):
    """One run's log, which is lawful."""
    async with Agent(model=ScriptedModel(*script), tools=TOOLS, **options) as agent:
        log = [event async for event in at_half(agent.stream("hello"))]
    assert_laws(log)
    return log


# -- retries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", PASSING, ids=repr)
@pytest.mark.parametrize("said", [[], ["wrong "], [ModelChunk(reasoning="hm"), "wrong"]])
async def test_an_error_that_passes_is_tried_again_after_a_random_wait_and_each_attempt_is_told(error, said):
    log = await play([*said, error], [*said, error], ANSWER)
    told = of(log, EventType.WARNING, EventType.ROLLBACK, EventType.MODEL_START)
    assert [event.type.value for event in told] == ["model_start", *["warning", "rollback", "model_start"] * 2]
    assert [event.attempt for event in told if event.type is EventType.MODEL_START] == [1, 2, 3]
    assert [(event.attempt, event.reason) for event in of(log, EventType.ROLLBACK)] == [(1, "retry"), (2, "retry")]
    warnings = of(log, EventType.WARNING)
    assert {(event.code, event.message) for event in warnings} == {("model_attempt_failed", str(error))}
    assert [event.data for event in warnings] == [
        {"attempt": attempt, "kind": error.kind, "wait_seconds": wait, "next": "retry"}
        for attempt, wait in ((1, 0.25), (2, 0.5))
    ]
    assert (now(), folded_text(log), log[-1].text, log[-1].iterations) == (0.75, ANSWER, ANSWER, 1)


@pytest.mark.parametrize("error", LASTING, ids=lambda error: f"{type(error).__name__} {error.status}")
@pytest.mark.parametrize("said", [[], ["so far"]])
async def test_an_error_that_does_not_pass_is_never_tried_again(error, said):
    log = await play([*said, error], "never asked")
    assert (log[-1].type, log[-1].error.kind, log[-1].error.message) == (EventType.FAILED, error.kind, str(error))
    assert (len(of(log, EventType.MODEL_START)), of(log, EventType.WARNING, EventType.ROLLBACK), now()) == (1, [], 0)


async def test_a_model_that_fails_for_good_fails_the_run_with_its_last_error():
    log = await play(*([f"try {number}", ModelConnectionError(f"gone {number}")] for number in range(3)))
    error = log[-1].error
    assert (error.kind, error.message, error.retryable) == ("connection", "gone 2", True)
    assert [event.attempt for event in of(log, EventType.MODEL_START)] == [1, 2, 3]


async def test_every_round_has_its_own_attempts():
    gone = [ModelConnectionError("gone")]
    log = await play(gone, gone, [call("look", key="a")], gone, gone, "done")
    starts = [(event.iteration, event.attempt) for event in of(log, EventType.MODEL_START)]
    assert starts == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert (log[-1].text, log[-1].iterations, len(log[-1].tools)) == ("done", 2, 1)


NOW, IN_TWO_SECONDS = "Thu, 01 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026 00:00:02 GMT"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "1"}, 1.0),
        ({}, 0.25),
        ({"Retry-After": "soon"}, 0.25),
        ({"Retry-After": "-5"}, 0.25),
        ({"Retry-After": "0"}, 0.25),
        ({"Retry-After": "30"}, 30.0),
        ({"Retry-After": IN_TWO_SECONDS, "Date": NOW}, 2.0),
        ({"Retry-After": NOW, "Date": IN_TWO_SECONDS}, 0.25),
        ({"Retry-After": "3600"}, None),
    ],
    ids=repr,
)
async def test_a_provider_that_says_when_to_come_back_is_taken_at_its_word_up_to_a_cap(headers, wait):
    refused = status(429, headers=headers)
    async with served(refused, text("hi")) as (provider, agent):
        begun = now()
        log = [event async for event in at_half(agent.stream("hello"))]
        assert_laws(log)
        assert now() - begun == pytest.approx(wait or 0)
        assert (log[-1].type, len(provider.requests)) == ((EventType.FINAL, 2) if wait else (EventType.FAILED, 1))
        if not wait:
            assert (log[-1].error.kind, log[-1].error.retryable) == ("rate_limit", True)


@pytest.mark.parametrize("code", [500, 502, 503, 529, 400, 401, 403, 404])
async def test_a_status_is_tried_again_only_if_it_is_the_servers_fault(code):
    async with served(status(code), text("hi")) as (provider, agent):
        end = await agent.stream("hello")
        assert (end.type, len(provider.requests)) == ((EventType.FINAL, 2) if code >= 500 else (EventType.FAILED, 1))


# -- a failure anywhere ----------------------------------------------------------------------------------

OVERLOADED = b'data: {"error": {"message": "overloaded", "code": 503}}\n\n'
FAULTS = {"reset": Reset(), "half-closed": HalfClose(), "error object": OVERLOADED}


@pytest.mark.parametrize("fault", FAULTS)
async def test_after_a_failure_at_any_frame_the_folded_text_is_the_final_one(fault):
    frames = text(ANSWER, chunk=5).steps
    retried = 0
    async with served() as (provider, agent):
        for index in range(len(frames) + 1):
            provider.scripts.extend([Reply(steps=(*frames[:index], FAULTS[fault])), text(ANSWER, chunk=3)])
            log = [event async for event in agent.stream("hello")]
            assert_laws(log)
            assert (log[-1].text, folded_text(log), log[-1].iterations) == (ANSWER, ANSWER, 1)
            retried += len(of(log, EventType.ROLLBACK))
            provider.scripts.clear()  # the second is not asked for where the first was whole
        assert provider.refusals == []
    assert retried >= len(frames) - 3  # all but those that came after the finish reason


@pytest.mark.parametrize("fault", FAULTS)
async def test_after_a_failure_at_any_frame_of_a_call_it_runs_once(fault):
    ran = []

    async def effect(number: int) -> str:
        ran.append(number)
        return "done"

    frames = tool_calls(("effect", {"number": 1}), content="I do it.", chunk=4).steps
    async with served(tools=[effect]) as (provider, agent):
        for index in range(len(frames) + 1):
            ran.clear()
            again = tool_calls(("effect", {"number": 1}), content="I do it.")
            # Told by what it is asked, since the first reply may be whole: a result is answered with text.
            provider._respond = lambda request, again=again: (
                text(ANSWER) if request.body["messages"][-1]["role"] == "tool" else again
            )
            provider.scripts.append(Reply(steps=(*frames[:index], FAULTS[fault])))
            log = [event async for event in agent.stream("hello")]
            assert_laws(log)
            assert (ran, log[-1].text, log[-1].iterations) == ([1], ANSWER, 2)
        assert provider.refusals == []


# -- the wait --------------------------------------------------------------------------------------------


async def test_a_run_cancelled_while_it_waits_for_its_next_attempt_ends_at_once():
    model = ScriptedModel(["wrong ", ModelRateLimitError("later", retry_after=20.0)], "next")
    async with Agent(model=model) as agent:
        chain = agent.start("hello", session_id="s")
        await asyncio.sleep(5)
        chain.cancel()
        end = await chain
        assert (end.type, end.reason, now(), len(model.requests)) == (EventType.CANCELLED, "user", 5.0, 1)
        log = await log_of(agent, chain.run_id)
        assert_laws(log)
        assert of(log, EventType.ROLLBACK) == []
        assert (await agent.chat("again", session_id="s")).text == "next"
        assert [message.role for message in model.requests[-1].messages] == ["user", "assistant", "user"]


async def test_time_spent_waiting_for_an_attempt_counts_in_the_runs():
    script = [[ModelRateLimitError("later", retry_after=20.0)]] * 3
    log = await play(*script, timeout=30.0, settings=Settings(model={"retries": {"attempts": 9}}))
    assert (log[-1].type, log[-1].reason, now()) == (EventType.CANCELLED, "timeout", 30.0)


async def test_a_consumer_that_leaves_during_the_wait_ends_it():
    model = ScriptedModel([ModelRateLimitError("later", retry_after=20.0)], "never asked")
    async with Agent(model=model) as agent:
        chain = agent.stream("hello")
        async for event in chain:
            if event.type is EventType.WARNING:
                break
        del event
        assert ((await chain).reason, now()) == ("disconnect", 0.0)


# -- usage -----------------------------------------------------------------------------------------------

USED, USED_AGAIN = Usage(input_tokens=100, output_tokens=7), Usage(input_tokens=90, output_tokens=5)


async def test_what_failed_attempts_used_is_counted_and_marked_where_it_is_an_estimate():
    log = await play(
        ["wrong ", ModelChunk(usage=USED), ModelConnectionError("gone")],
        [ModelConnectionError("gone before it said anything")],
        ["right", ModelChunk(usage=USED_AGAIN)],
    )
    assert log[-1].usage == USED + USED_AGAIN
    log = await play(["wrong text", ModelConnectionError("gone")], ["right", ModelChunk(usage=USED)])
    asked = of(log, EventType.MODEL_START)[0].input_tokens_estimate
    estimate = Usage(input_tokens=asked, output_tokens=estimate_tokens("wrong text"), estimated=True)
    assert log[-1].usage == estimate + USED


async def test_a_failed_run_counts_each_attempt_once():
    attempt = ["wrong ", ModelChunk(usage=USED), ModelConnectionError("gone")]
    assert (await play(attempt, attempt, attempt))[-1].usage == USED + USED + USED
    assert (await play([ModelStatusError("no", status=400)]))[-1].usage == Usage()


@pytest.mark.parametrize("when", ["in the call", "in the wait", "in the next call"])
async def test_a_cancelled_run_counts_each_attempt_once(when):
    hold = asyncio.Event()
    script = [ModelRateLimitError("later", retry_after=20.0)] if when != "in the call" else []

    async def slow(request):
        yield ModelChunk(text="some words of text")
        if script:
            raise script.pop()
        await hold.wait()

    async with Agent(model=slow) as agent:
        chain = agent.start("hello")
        await asyncio.sleep(10 if when != "in the next call" else 25)
        chain.cancel()
        end = await chain
        log = await log_of(agent, chain.run_id)
    begun = of(log, EventType.MODEL_START)
    output = estimate_tokens("some words of text")
    assert end.usage == Usage(
        input_tokens=sum(event.input_tokens_estimate for event in begun),
        output_tokens=output * len(begun),
        estimated=True,
    )
    assert len(begun) == (2 if when == "in the next call" else 1)
