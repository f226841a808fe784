"""What is asked of an agent is checked before anything begins."""

import uuid

import pytest

from agentflow import Agent, AgentRequest
from agentflow.errors import RequestError
from agentflow.events import MAX_EVENT_BYTES, encode
from agentflow.testing import ScriptedModel, assert_laws
from tests.builders import log_of


@pytest.mark.parametrize("given", [None, "", "  ", "null", "NULL", " Null "])
async def test_an_absent_session_id_means_a_new_session_told_everywhere(given):
    async with Agent(model=ScriptedModel("hi")) as agent:
        chain = agent.stream("hello", session_id=given)
        reply = await chain.reply()
        assert uuid.UUID(reply.session_id).version == 4
        assert {event.session_id for event in await log_of(agent, reply.run_id)} == {reply.session_id}
        assert chain.session_id == reply.session_id


@pytest.mark.parametrize("bad", ["../x", "a b", "a\n", "x" * 129, "ü", "a/b", 5, b"a", ["a"], "a\x00"])
@pytest.mark.parametrize("field", ["session_id", "user_id"])
def test_an_id_that_is_none_is_refused_by_name_before_anything_begins(field, bad):
    with pytest.raises(RequestError, match=f"^{field} "):
        Agent(model=ScriptedModel("hi")).stream("hello", **{field: bad})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": 5}, "the input must be a text, or a tuple"),
        ({"input": "hi", "metadata": [1]}, "metadata must be a mapping, not list"),
        ({"input": "hi", "sesion_id": "s"}, "sesion_id"),
    ],
)
def test_a_request_that_cannot_be_is_refused(fields, named):
    with pytest.raises(RequestError, match=named):
        Agent(model=ScriptedModel("hi")).stream(**fields)


def test_fields_stand_in_the_request_or_beside_a_text():
    request = AgentRequest("hello", session_id="s", user_id="u", metadata={"a": 1})
    agent = Agent(model=ScriptedModel("hi"))
    assert agent.stream(request).session_id == "s"
    with pytest.raises(RequestError, match="user_id"):
        agent.stream(request, user_id="x")


@pytest.mark.parametrize("character", ["x", "\x00", "字"])
async def test_an_input_event_fits_its_bound_or_the_request_is_refused(character):
    async with Agent(model=ScriptedModel("hi")) as agent:
        per_character = len(character.encode()) if character != "\x00" else 6
        most = (MAX_EVENT_BYTES - 5000) // per_character
        end = await agent.start(character * most)
        log = await log_of(agent, end.run_id)
        assert len(encode(log[0])) <= MAX_EVENT_BYTES
        assert_laws(log)
        for fields in ({"input": character * (most + 1000)}, {"input": "hi", "metadata": {"a": character * most * 2}}):
            with pytest.raises(RequestError, match="over"):
                agent.stream(**fields)


async def test_text_that_is_no_unicode_is_cleaned():
    model = ScriptedModel("hi")
    async with Agent(model=model) as agent:
        await agent.chat("a\ud800b", metadata={"k": "\udfff", "n": float("nan")})
        assert model.requests[0].messages[-1].content == "a\ufffdb"
