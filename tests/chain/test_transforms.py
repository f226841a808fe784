"""What transforms may do to a run, and what becomes of one that does more."""

import asyncio

import msgspec
import pytest

from agentflow import Agent, InMemoryStore, ModelChunk
from agentflow.errors import ConfigError
from agentflow.events import MAX_EVENT_BYTES, EventType, encode
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import TOOLS, of

SCRIPT = (["Let me look. ", call("look", key="a"), call("fetch", key="b"), call("count", upto=2)], "All is there.")


def redact(event):
    """A user's transform: hide a secret wherever text may be changed."""
    for field in ("text", "result", "data"):
        value = getattr(event, field, None)
        if isinstance(value, str) and "secret" in value:
            return msgspec.structs.replace(event, **{field: value.replace("secret", "***")})
    return event


async def test_a_transform_hides_text_from_log_model_session_and_taps():
    def leak() -> str:
        return "a secret result"

    async def drip():
        yield "secret drop"

    model = ScriptedModel([call("leak"), call("drip")], "the secret answer")
    store, seen = InMemoryStore(), []
    async with Agent(model=model, tools=[leak, drip], store=store, transforms=[redact]) as agent:
        agent.bus.attach(seen.append)
        reply = await agent.chat("my secret question", session_id="s")
    session = await store.open_session(SessionKey("s"), "r")
    assert reply.text == "the *** answer"
    everything = repr((seen, reply, model.requests, session))
    assert ("secret" in everything, "*** question" in everything, "*** result" in everything) == (False, True, True)
    assert "*** drop" in everything
    assert_laws(seen)


def _raise(event):
    raise ValueError("secret in the text of the error")


def other_type(event):
    return "not an event"


def other_field(event):
    return msgspec.structs.replace(event, iteration=event.iteration + 1)


def not_text(event):
    return msgspec.structs.replace(event, text=5) if hasattr(event, "text") else event


@pytest.mark.parametrize("at", [EventType.INPUT, EventType.DELTA, EventType.TOOL_COMPLETE, EventType.TOOL_DELTA])
@pytest.mark.parametrize("fault", [_raise, other_type, other_field])
async def test_a_transform_that_raises_or_changes_more_fails_the_run_before_anything_is_seen(at, fault):
    def only_at(event):
        return fault(event) if event.type is at else event

    async with Agent(model=ScriptedModel(*SCRIPT), tools=TOOLS, transforms=[only_at]) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    assert (log[-1].type, log[-1].error.kind) == (EventType.FAILED, "transform")
    assert all(event.type is not at for event in log)
    assert "secret" not in repr(log)


async def test_a_transform_may_not_make_text_something_else():
    async with Agent(model=ScriptedModel("hi"), transforms=[not_text]) as agent:
        end = await agent.stream("hello")
    assert "not a text" in end.error.message


@pytest.mark.parametrize("at", [EventType.INPUT, EventType.DELTA, EventType.TOOL_COMPLETE, EventType.TOOL_DELTA])
async def test_a_transform_may_not_make_an_event_larger_than_one_may_be(at):
    def grow(event):
        field = next(name for name in ("text", "result", "data", "run_id") if hasattr(event, name))
        return msgspec.structs.replace(event, **{field: "x" * 2_000_000}) if event.type is at else event

    async with Agent(model=ScriptedModel(*SCRIPT), tools=TOOLS, transforms=[grow]) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    assert "larger than one may be" in log[-1].error.message


async def test_the_text_of_a_transform_is_cleaned():
    def odd(event):
        return msgspec.structs.replace(event, text="a\ud800") if event.type is EventType.DELTA else event

    async with Agent(model=ScriptedModel("hi"), transforms=[odd]) as agent:
        assert (await agent.chat("hello")).text == "a\ufffd"


async def test_what_a_transform_makes_of_data_is_json():
    def odd(event):
        return msgspec.structs.replace(event, data=float("nan")) if event.type is EventType.TOOL_DELTA else event

    async with Agent(model=ScriptedModel([call("count", upto=1)], "x"), tools=TOOLS, transforms=[odd]) as agent:
        log = [event async for event in agent.stream("hello")]
    assert [event.data for event in log if event.type is EventType.TOOL_DELTA] == [None]


class Fatal(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize(
    "fault", [Fatal(), asyncio.CancelledError(), SystemExit(3), GeneratorExit(), StopIteration()], ids=repr
)
@pytest.mark.parametrize("at", [EventType.INPUT, EventType.DELTA, EventType.TOOL_COMPLETE])
async def test_whatever_a_transform_raises_the_run_ends_and_the_session_goes_on(fault, at):
    broken = [True]

    def fragile(event):
        if event.type is at and broken:
            raise fault
        return event

    async with Agent(model=ScriptedModel(*SCRIPT, *SCRIPT), tools=TOOLS, transforms=[fragile]) as agent:
        chain = agent.stream("hello", session_id="s")
        log = [event async for event in chain]
        assert_laws(log)
        assert (log[-1].type, log[-1].error.kind) == (EventType.FAILED, "transform")
        broken.clear()
        assert (await chain).type is EventType.FAILED
        assert (await agent.start("again", session_id="s")).type is EventType.FINAL


@pytest.mark.parametrize(
    "mutate",
    [
        lambda metadata: metadata.update(evil=1),
        lambda metadata: metadata.pop("page"),
        lambda metadata: metadata["page"].append(2),
        lambda metadata: metadata["page"].append(object()),
    ],
)
async def test_metadata_changed_in_place_is_refused_and_never_logged(mutate):
    def meddling(event):
        if event.type is EventType.INPUT:
            mutate(event.metadata)
        return event

    given = {"page": [1]}
    async with Agent(model=ScriptedModel("hi"), transforms=[meddling]) as agent:
        log = [event async for event in agent.stream("hello", metadata=given)]
    assert_laws(log)
    assert "changed more of the input event than its text" in log[-1].error.message
    assert (given, [event.type for event in log]) == ({"page": [1]}, [EventType.STATE, EventType.FAILED])


async def test_data_may_be_changed_in_place_and_the_tools_own_object_stays_as_it_is():
    mine = {"done": 1, "total": 2, "message": "the secret"}

    async def work():
        yield mine

    def hide(event):
        if event.type is EventType.TOOL_DELTA:
            event.data["message"] = "***"
        return event

    async with Agent(model=ScriptedModel([call("work")], "done"), tools=[work], transforms=[hide]) as agent:
        log = [event async for event in agent.stream("hello")]
    (told,) = of(log, EventType.TOOL_DELTA)
    assert (told.data, mine["message"]) == ({"done": 1, "total": 2, "message": "***"}, "the secret")


async def test_what_is_hidden_in_the_result_of_a_failed_call_is_hidden_in_its_error_too():
    def leak() -> str:
        raise ValueError("a secret reason")

    async with Agent(model=ScriptedModel([call("leak")], "sorry"), tools=[leak], transforms=[redact]) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    (error,) = of(log, EventType.TOOL_ERROR)
    assert (error.error.message, error.result.splitlines()[1]) == ("ValueError: a *** reason",) * 2
    assert "secret" not in repr(log)


async def test_the_deltas_of_a_run_may_grow_by_so_much_in_all():
    async def words(request):
        for _ in range(30):
            yield ModelChunk(reasoning="hm")
            yield ModelChunk(text="x")

    def grow(event):
        return msgspec.structs.replace(event, text=event.text * 10_000) if event.type is EventType.DELTA else event

    async with Agent(model=words, transforms=[grow]) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    assert (log[-1].error.kind, "over the bound" in log[-1].error.message) == ("transform", True)
    assert sum(len(encode(event)) for event in log) < MAX_EVENT_BYTES


async def test_each_transform_is_given_what_the_one_before_it_made():
    def then(word):
        def add(event):
            return msgspec.structs.replace(event, text=event.text + word) if event.type is EventType.INPUT else event

        return add

    model = ScriptedModel("hi")
    async with Agent(model=model, transforms=[then(" one"), then(" two")]) as agent:
        await agent.chat("hello")
    assert model.requests[0].messages[0].content == "hello one two"


async def test_a_transform_sees_only_what_it_may_change():
    seen = set()

    def look_on(event):
        seen.add(event.type)
        return event

    async with Agent(model=ScriptedModel(*SCRIPT), tools=TOOLS, transforms=[look_on]) as agent:
        await agent.chat("hello")
    assert seen == {EventType.INPUT, EventType.DELTA, EventType.TOOL_DELTA, EventType.TOOL_COMPLETE}


def test_a_transform_that_would_have_to_be_awaited_is_refused():
    async def later(event):
        return event

    with pytest.raises(ConfigError, match="plain function"):
        Agent(model=ScriptedModel("hi"), transforms=[later])
