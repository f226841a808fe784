"""What models do to a run: their requests and replies, their bounds, odd ids, and faults of every kind."""

import asyncio

import msgspec
import pytest

from agentflow import Agent, ModelChunk, Usage
from agentflow.errors import ConfigError, ModelConnectionError, ModelRateLimitError
from agentflow.events import MAX_ANSWER_BYTES, MAX_DELTA_BYTES, MAX_EVENT_BYTES, EventType, State, encode
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.testing import ScriptedModel, assert_laws, call, text
from tests.builders import TOOLS, log_of, look, of, run, served, turns


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


GARBAGE = {
    "no chunk": "not a chunk",
    "nothing": None,
    "bytes as text": ModelChunk(text=b"bytes"),
    "a number as reasoning": ModelChunk(reasoning=5),
    "arguments that are no text": ModelChunk(calls=(CallRequest(name="look", arguments={"key": "a"}),)),
    "a name that is none": ModelChunk(calls=(CallRequest(name=None, arguments="{}"),)),
    "10,000 calls": ModelChunk(calls=(CallRequest(name="look", arguments="{}"),) * 10_000),
    "calls of 2 MiB": ModelChunk(calls=(CallRequest(name="look", arguments="x" * 2_000_000),)),
    "usage as a dict": ModelChunk(text="a", usage={"input_tokens": 1}),
    "usage of None": ModelChunk(text="a", usage=Usage(input_tokens=None, output_tokens=3)),
    "negative usage": ModelChunk(text="a", usage=Usage(input_tokens=-5, output_tokens=3)),
    "usage of truth": ModelChunk(text="a", usage=Usage(input_tokens=True, output_tokens=3)),
    "a number as finish reason": ModelChunk(text="a", finish_reason=3),
}


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_model_that_gives_what_it_must_not_fails_the_run_and_is_not_asked_again(garbage):
    async def odd(request):
        yield GARBAGE[garbage]

    log = await run(odd)
    assert (log[-1].type, log[-1].error.kind) == (EventType.FAILED, "protocol")
    assert len(of(log, EventType.MODEL_START)) == 1


@pytest.mark.parametrize(
    "chunk", [ModelChunk(calls=(None,)), ModelChunk(calls=(CallRequest(id=5, name="a", arguments=""),))]
)
async def test_calls_that_are_none_fail_the_run(chunk):
    async def odd(request):
        yield chunk

    assert (await run(odd))[-1].type is EventType.FAILED


@pytest.mark.parametrize("count", ["x", -4, None, 2.5])
async def test_a_count_that_is_none_is_one(count):
    log = await run([ModelChunk(text="hi", count=count)])
    assert [event.count for event in of(log, EventType.DELTA)] == [1]


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


async def test_the_usage_of_a_call_is_counted_once_when_the_end_comes_beside_its_completion():
    async with Agent(model=ScriptedModel([call("look", key="a")]), tools=TOOLS) as agent:
        chain = agent.stream("hello")
        used = None
        async for event in chain:
            if event.type is EventType.MODEL_COMPLETE:
                used = event.usage
                chain.cancel()
        assert event.usage == used


async def test_a_cancelled_model_call_is_estimated():
    hold = asyncio.Event()

    async def slow(request):
        await hold.wait()
        yield None

    async with Agent(model=slow) as agent:
        chain = agent.start("hello")
        await turns()
        chain.cancel()
        end = await chain
        assert (end.usage.input_tokens > 0, end.usage.output_tokens, end.usage.estimated) == (True, 0, True)


# -- options ---------------------------------------------------------------------------------------------


async def test_what_is_asked_for_beside_the_messages_is_on_the_wire():
    options = {
        "seed": 7,
        "stop": ("END",),
        "tool_choice": "look",
        "parallel_tool_calls": False,
        "extra_body": {"top_k": 5},
    }
    async with served(text("hi"), model_options=options, temperature=0.0, max_tokens=99) as (provider, agent):
        await agent.chat("hello")
        body = provider.requests[0].body
    assert {name: body[name] for name in ("seed", "stop", "parallel_tool_calls", "top_k")} == {
        "seed": 7,
        "stop": ["END"],
        "parallel_tool_calls": False,
        "top_k": 5,
    }
    assert (body["temperature"], body["max_tokens"]) == (0.0, 99)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}


async def test_only_what_is_asked_for_is_on_the_wire():
    async with served(text("hi"), tools=[]) as (provider, agent):
        await agent.chat("hello")
        assert provider.requests[0].body.keys() == {"model", "messages", "stream", "stream_options"}


def test_an_unknown_option_is_refused_when_the_agent_is_made():
    with pytest.raises(ConfigError, match=r"no sed, tempo; it has seed, stop, tool_choice"):
        Agent(model=ScriptedModel("hi"), model_options={"sed": 7, "tempo": 1})


async def test_an_option_that_the_request_cannot_have_fails_the_run_by_name():
    async with served(model_options={"tool_choice": "nothing like it"}) as (_, agent):
        end = await agent.stream("hello")
        assert (end.error.kind, "'nothing like it'" in end.error.message) == ("config", True)


# -- models that do not behave ---------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [ModelChunk(), ModelChunk(reasoning=""), ModelChunk(usage=Usage())])
async def test_a_model_that_never_waits_lets_others_run_and_can_be_cancelled(chunk):
    async def busy(request):
        while True:
            yield chunk

    async with Agent(model=busy) as agent:
        chain = agent.start("hello")
        await turns(50)  # which pass
        assert chain.state is State.AWAITING_MODEL
        chain.cancel()
        assert (await chain).reason == "user"


class Cleaning:
    """What a model's clean-up may do once its answer was cut."""

    @staticmethod
    async def hangs():
        await asyncio.Event().wait()

    @staticmethod
    async def raises():
        raise ValueError("a bug in the clean-up")

    @staticmethod
    async def has_failed():
        raise ModelConnectionError("gone")

    @staticmethod
    async def is_cancelled():
        raise asyncio.CancelledError

    @staticmethod
    async def takes_its_time():
        await turns(30)


@pytest.mark.parametrize("clean_up", ["hangs", "raises", "has_failed", "is_cancelled", "takes_its_time"])
async def test_the_clean_up_of_a_model_that_was_cut_cannot_change_the_end(clean_up):
    async def endless(request):
        try:
            while True:
                yield ModelChunk(text="x" * MAX_ANSWER_BYTES)
        finally:
            await getattr(Cleaning, clean_up)()

    log = await run(endless)
    assert (log[-1].type, log[-1].finish_reason) == (EventType.FINAL, "length")
    assert len(of(log, EventType.MODEL_START)) == 1


async def test_an_odd_name_of_a_model_is_told_as_text():
    class Odd:
        provider, name = 5, "\ud800"

        async def stream(self, request):
            yield ModelChunk(text="hi")

    async with Agent(model=Odd()) as agent:
        chain = agent.stream("hello")
        (start,) = [event async for event in chain if event.type is EventType.MODEL_START]
    assert (start.provider, start.model) == ("5", "\ufffd")


async def test_a_call_is_demanded_of_the_first_round_only_so_that_an_answer_can_follow():
    model = ScriptedModel([call("look", key="a")], "seen")
    async with Agent(model=model, tools=[look], model_options={"tool_choice": "required"}) as agent:
        assert (await agent.chat("go")).text == "seen"
    assert [request.tool_choice for request in model.requests] == ["required", "auto"]


async def test_a_tokenizer_of_ones_own_counts_what_the_provider_does_not():
    async def silent(request):
        yield ModelChunk(text="one two three", finish_reason="stop")

    async with Agent(model=silent, instructions="be brief", tokenizer=lambda text: len(text.split())) as agent:
        log = [event async for event in agent.stream("a b c d")]
    (start,) = of(log, EventType.MODEL_START)
    assert start.input_tokens_estimate == (4 + 2) + (4 + 4)  # words, and what a frame round a message costs
    assert log[-1].usage == Usage(input_tokens=14, output_tokens=3, estimated=True)
