"""What transforms may do to a run, and what becomes of one that does more."""

import msgspec
import pytest

from agentflow import Agent, InMemoryStore
from agentflow.events import EventType
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import TOOLS

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
