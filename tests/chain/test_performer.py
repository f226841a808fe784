"""What models and tools do to a run: rounds, limits, cut replies, odd ids, and faults of every kind."""

import asyncio

import msgspec
import pytest

from agentflow import Agent, ModelChunk, ToolContext, Usage
from agentflow.errors import ModelRateLimitError
from agentflow.events import MAX_ANSWER_BYTES, MAX_DELTA_BYTES, MAX_EVENT_BYTES, EventType, encode
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import TOOLS, log_of


async def run(*script, **options):
    """One run's log, which is lawful."""
    model = script[0] if callable(script[0]) else ScriptedModel(*script)
    async with Agent(model=model, tools=options.pop("tools", TOOLS), **options) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    return log


def of(log, *types):
    return [event for event in log if event.type in types]


async def test_a_call_is_told_in_the_append_of_the_reply_that_asked_for_it():
    log = await run([call("look", key="a")], "done")
    types = [event.type.value for event in log]
    assert types[:6] == ["input", "state", "model_start", "state", "model_complete", "state"]
    assert types[6:8] == ["tool_start", "state"]


async def test_the_rounds_reach_the_model_as_paired_messages_with_its_instructions():
    model = ScriptedModel(["Let me look.", call("look", key="a")], "done", "again")
    async with Agent(model=model, tools=TOOLS, instructions="Be brief.") as agent:
        await agent.chat("hello", session_id="s")
        await agent.chat("and?", session_id="s")
    first, second, third = (request.messages for request in model.requests)
    assert [m.role for m in first] == ["system", "user"]
    assert [m.role for m in second] == ["system", "user", "assistant", "tool"]
    assert (second[2].content, second[3].content) == ("Let me look.", "[success]\nvalue of a")
    assert [m.role for m in third] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert {tool.name for tool in model.requests[0].tools} == {"look", "fetch", "count"}


async def test_a_run_has_so_many_rounds_and_says_so():
    script = [[call("look", key=str(number))] for number in range(3)]
    log = await run(*script, max_iterations=3)
    end = log[-1]
    assert (end.finish_reason, end.iterations) == ("max_iterations", 4)
    assert "limit of 3 model rounds" in end.text
    assert [e.status for e in of(log, EventType.TOOL_ERROR)] == ["limit"]
    assert len(of(log, EventType.MODEL_START)) == 3


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_calls_of_a_cut_reply_are_never_run(reason):
    ran = []

    def effect(n: int) -> str:
        ran.append(n)
        return "done"

    chunk = ModelChunk(calls=(CallRequest(name="effect", arguments='{"n": 1}'),), finish_reason=reason)
    log = await run([chunk], "I send it again.", tools=[effect])
    (error,) = of(log, EventType.TOOL_ERROR)
    assert (ran, error.status, error.error.kind) == ([], "invalid_arguments", "truncated")
    assert reason in error.result
    assert log[-1].text == "I send it again."


@pytest.mark.parametrize(("reason", "finish"), [("length", "length"), ("content_filter", "stop"), ("odd", "stop")])
async def test_a_text_ends_with_the_reason_of_its_reply(reason, finish):
    log = await run([ModelChunk(text="half"), ModelChunk(finish_reason=reason)])
    assert (log[-1].text, log[-1].finish_reason) == ("half", finish)


async def test_a_refusal_is_what_the_user_is_told():
    log = await run([ModelChunk(refusal="I will not.")])
    assert log[-1].text == "I will not."


async def test_reasoning_is_kept_apart_from_the_answer():
    log = await run([ModelChunk(reasoning="hm "), ModelChunk(reasoning="so"), ModelChunk(text="yes")])
    deltas = [(event.channel, event.text) for event in of(log, EventType.DELTA)]
    assert deltas == [("reasoning", "hm "), ("reasoning", "so"), ("answer", "yes")]
    assert log[-1].text == "yes"


@pytest.mark.parametrize("chunks", [1, 8, 4096])
async def test_an_answer_over_its_bound_ends_for_its_length_with_every_delta_in_bounds(chunks):
    piece = "字\n" * (MAX_ANSWER_BYTES // chunks)
    closed = []

    async def endless(request):
        try:
            yield ModelChunk(calls=(CallRequest(name="look", arguments="{}"),))
            while True:
                yield ModelChunk(text=piece)
        finally:
            closed.append(True)

    log = await run(endless)
    end = log[-1]
    assert (end.finish_reason, closed, end.tools) == ("length", [True], ())
    assert MAX_ANSWER_BYTES * 0.9 < len(msgspec.json.encode(end.text)) <= MAX_ANSWER_BYTES + 2
    deltas = of(log, EventType.DELTA)
    assert "".join(event.text for event in deltas) == end.text
    assert max(len(encode(event)) for event in deltas) <= MAX_DELTA_BYTES
    assert len(encode(end)) <= MAX_EVENT_BYTES


async def test_the_first_of_a_flushs_deltas_carries_the_count():
    log = await run([ModelChunk(text="x" * 600_000, count=7)])
    assert of(log, EventType.DELTA)[0].count == 7
    assert sum(event.count for event in of(log, EventType.DELTA)) == 7


async def test_final_fits_its_bound_however_much_the_tools_said():
    def much(n: int) -> str:
        return "x" * 64_000

    script = [[call("much", n=10 * turn + n) for n in range(10)] for turn in range(5)]
    log = await run(*script, "y" * 500_000, tools=[much], max_iterations=10)
    assert len(encode(log[-1])) <= MAX_EVENT_BYTES
    assert len(log[-1].tools) == 50


@pytest.mark.parametrize("given", [None, "", "same", "with spaces/and:more"])
async def test_call_ids_are_unique_in_the_session_whatever_the_provider_sends(given):
    calls = [call("look", id=given, key="a"), call("look", id=given, key="b")]
    model = ScriptedModel(calls, calls, "done", calls, "done")
    async with Agent(model=model, tools=TOOLS) as agent:
        await agent.chat("hello", session_id="s")
        last = await agent.start("again", session_id="s")
        assert_laws(await log_of(agent, last.run_id))
    messages = model.requests[-1].messages
    ids = [call.call_id for message in messages for call in message.tool_calls]
    assert (len(ids), len(set(ids)), unpaired(messages)) == (6, 6, None)
    assert all(ids)


async def test_unknown_tools_and_bad_arguments_are_answered_and_never_run():
    calls = [
        CallRequest(name="nope", arguments="{}"),
        CallRequest(name="an illegal name!", arguments="{}"),
        CallRequest(name="look", arguments='{"key": 5}'),
        CallRequest(name="look", arguments='{"key": "a'),
        CallRequest(name="look", arguments="[]"),
        CallRequest(name="look", arguments=""),
    ]
    log = await run(calls, "sorry")
    errors = of(log, EventType.TOOL_ERROR)
    assert [error.status for error in errors] == ["unknown_tool"] * 2 + ["invalid_arguments"] * 4
    assert [start.arguments for start in of(log, EventType.TOOL_START)][2:] == [{"key": 5}, None, None, None]
    assert all(error.result.startswith("[error: ") for error in errors)
    assert log[-1].text == "sorry"


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("bad \ud800 text"),
        Odd(),
        asyncio.CancelledError(),
        GeneratorExit(),
        SystemExit(3),
        MemoryError("none left"),
        ExceptionGroup("several", [ValueError("one")]),
        TimeoutError(),
        StopAsyncIteration(),
    ],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_whatever_a_model_raises_fails_the_run(fault, when):
    async def faulty(request):
        if when == "after":
            yield ModelChunk(text="so far")
        raise fault
        yield ModelChunk()

    log = await run(faulty)
    assert (log[-1].type, log[-1].usage.estimated) == (EventType.FAILED, True)
    assert [event.text for event in of(log, EventType.DELTA)] == (["so far"] if when == "after" else [])


async def test_a_models_own_error_keeps_its_kind_and_whether_to_try_again():
    log = await run([ModelRateLimitError("slow down", retry_after=3600.0)])
    error = log[-1].error
    assert (error.kind, error.message, error.retryable) == ("rate_limit", "slow down", True)


@pytest.mark.parametrize(
    "chunk",
    [
        "not a chunk",
        ModelChunk(text=b"bytes"),
        ModelChunk(calls=(CallRequest(name="look", arguments={"key": "a"}),)),
        ModelChunk(calls=(CallRequest(name=None, arguments="{}"),)),
    ],
)
async def test_a_model_that_gives_what_it_must_not_fails_the_run(chunk):
    async def odd(request):
        yield chunk

    log = await run(odd)
    assert log[-1].type is EventType.FAILED


async def test_what_a_model_sends_along_is_plain_and_clean():
    calls = (CallRequest(name="lo\ud800ok", arguments='{"key": "\ud83d"}', id="\udc00"),)
    chunk = ModelChunk(text="a\ud800", calls=calls, provider_data={"n": float("nan"), "o": object()})
    log = await run([chunk], "done")
    (complete, _) = of(log, EventType.MODEL_COMPLETE)
    assert complete.provider_data == {"n": None, "o": {"$unencodable": "object"}}
    assert of(log, EventType.DELTA)[0].text == "a\ufffd"


async def test_usage_is_the_providers_or_an_estimate():
    usage = Usage(input_tokens=100, output_tokens=50)
    log = await run([ModelChunk(text="hi", usage=usage)])
    assert log[-1].usage == usage

    async def silent(request):
        yield ModelChunk(text="12345678")

    log = await run(silent, tools=())
    assert (log[-1].usage.output_tokens, log[-1].usage.estimated) == (2, True)
    assert log[-1].usage.input_tokens == of(log, EventType.MODEL_START)[0].input_tokens_estimate


async def test_a_reply_of_nothing_is_an_empty_answer():
    log = await run([])
    assert (log[-1].text, log[-1].finish_reason) == ("", "stop")


async def test_a_tool_that_is_out_of_memory_fails_the_run():
    def hungry() -> str:
        raise MemoryError

    log = await run([call("hungry")], tools=[hungry])
    assert "out of memory" in log[-1].error.message
    assert of(log, EventType.TOOL_ERROR)[0].status == "cancelled"


async def test_a_tool_knows_its_call():
    seen = []

    def look_around(context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    async with Agent(model=ScriptedModel([call("look_around")], "done"), tools=[look_around]) as agent:
        reply = await agent.chat("hello", session_id="s", user_id="u", metadata={"k": 1})
    (context,) = seen
    assert (context.run_id, context.session_id, context.user_id) == (reply.run_id, "s", "u")
    assert (context.call_id, context.tool, context.metadata) == (reply.tools[0].call_id, "look_around", {"k": 1})


@pytest.mark.virtual_time
async def test_deltas_are_joined_by_windows_and_come_before_what_followed_them():
    loop = asyncio.get_running_loop()

    async def slow(request):
        if len(request.messages) > 1:
            yield ModelChunk(text="done")
            return
        for number in range(10):
            yield ModelChunk(text=f"{number} ")
            await asyncio.sleep(0.07)
        yield ModelChunk(calls=(CallRequest(name="look", arguments='{"key": "a"}'),))

    async with Agent(model=slow, tools=TOOLS) as agent:
        times = []
        agent.bus.attach(
            lambda event: times.append((round(loop.time(), 2), event.type.value, getattr(event, "text", "")))
        )
        await agent.start("hello")
    deltas = [(at, text) for at, kind, text in times if kind == "delta"]
    assert deltas == [(0.0, "0 "), (0.2, "1 2 "), (0.4, "3 4 5 "), (0.6, "6 7 8 "), (0.7, "9 "), (0.7, "done")]
