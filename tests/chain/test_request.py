"""What is asked of an agent is checked before anything begins."""

import uuid

import msgspec
import pytest

from agentflow import Agent, AgentRequest, InMemoryStore
from agentflow.errors import RequestError
from agentflow.events import MAX_EVENT_BYTES, EventType, encode
from agentflow.messages import ImagePart, TextPart
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, assert_laws, text, tool_calls
from tests.builders import log_of, served


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


# -- pictures --------------------------------------------------------------------------------------------

PNG = ImagePart(data=b"\x89PNG", media_type="image/png")
LINK = ImagePart(url="https://example.org/cat.jpg")
CATS = (TextPart("Which of "), PNG, LINK, TextPart("is mine?"))
ON_THE_WIRE = [
    {"type": "text", "text": "Which of "},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    {"type": "image_url", "image_url": {"url": "https://example.org/cat.jpg"}},
    {"type": "text", "text": "is mine?"},
]


async def test_pictures_reach_the_provider_in_their_order_in_every_round_and_in_the_next_turn():
    look = tool_calls(("look", {"key": "a"}))
    async with served(look, text("The first."), text("Yes.")) as (provider, agent):
        chain = agent.stream(AgentRequest(CATS, session_id="s"))
        await chain
        log = await log_of(agent, chain.run_id)
        assert_laws(log)
        assert log[0].text == "Which of is mine?"
        await agent.chat("Are you sure?", session_id="s")
        said = [request.body["messages"][0]["content"] for request in provider.requests]
        assert said == [ON_THE_WIRE] * 3
        assert provider.refusals == []


async def test_pictures_are_in_no_event_but_count_in_the_estimate():
    picture = ImagePart(data=b"\xab" * 100_000, media_type="image/png")
    async with Agent(model=ScriptedModel("hi", "hi")) as agent:
        logs = [await log_of(agent, (await agent.start(given)).run_id) for given in ((TextPart("a"), picture), "a")]
        assert sum(len(encode(event)) for event in logs[0]) < 10_000
        with_picture, without = (log[2].input_tokens_estimate for log in logs)
        assert with_picture > without + 100


async def test_what_a_transform_hides_of_the_words_does_not_come_back_with_the_pictures():
    def hide(event):
        return msgspec.structs.replace(event, text="[hidden]") if event.type is EventType.INPUT else event

    model, store = ScriptedModel("hi", "hi"), InMemoryStore()
    async with Agent(model=model, transforms=[hide], store=store) as agent:
        for _ in range(2):
            await agent.chat(CATS, session_id="s")
    session = await store.open_session(SessionKey("s"), "r")
    assert model.requests[1].messages[0].content == (TextPart("[hidden]"), PNG, LINK)
    assert "Which of" not in repr((model.requests, session))


async def test_pictures_alone_are_a_request_too():
    model = ScriptedModel("a cat")
    async with Agent(model=model) as agent:
        chain = agent.stream((PNG,))
        await chain
        assert (await log_of(agent, chain.run_id))[0].text == ""
    assert model.requests[0].messages[0].content == (PNG,)


@pytest.mark.parametrize(
    "parts",
    [
        (TextPart("hi"), "text"),
        [b"bytes"],
        (TextPart(5),),
        {"text": "hi"},
        (ImagePart(data=b"x" * 11_000_000, media_type="image/png"),) * 2,
        (ImagePart(url="data:image/png;base64," + "A" * 21_000_000),),
        (TextPart("x" * MAX_EVENT_BYTES),),
    ],
    ids=["a bare text", "bytes", "no text", "a dict", "too large", "too long an address", "too long a text"],
)
def test_parts_that_cannot_be_are_refused(parts):
    with pytest.raises(RequestError, match=r"TextPart and ImagePart|pictures of a message|are over"):
        Agent(model=ScriptedModel("hi")).stream(parts)


async def test_the_text_of_parts_is_cleaned_and_a_list_of_them_is_taken():
    model = ScriptedModel("hi")
    async with Agent(model=model) as agent:
        await agent.chat([TextPart("a\ud800"), PNG])
    assert model.requests[0].messages[0].content == (TextPart("a\ufffd"), PNG)


def test_a_request_says_its_words():
    assert AgentRequest(CATS).text == "Which of is mine?"
    assert AgentRequest("hello").text == "hello"
