import itertools

import pytest

from agentflow import InMemoryStore
from agentflow.errors import RequestError
from agentflow.messages import ImagePart, Message, TextPart
from agentflow.stores.base import SessionKey
from agentflow.transports.bodies import validated
from agentflow.transports.openai_messages import ChatCompletion, ChatMessage, Unfit, conversation, keep

PNG = "data:image/png;base64,iVBORw0KGgo="


def read(*messages):
    return conversation([ChatMessage.model_validate(message) for message in messages])


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def checked(**fields):
    validated(ChatCompletion, {"model": "m", "messages": [user("x")], **fields}, strict=True).check()


def test_every_turn_begins_with_what_the_user_said():
    turns, now = read(user("a"), assistant("b"), assistant("c"), user("d"), user("e"), assistant("f"), user("g"))
    assert [[message.text for message in turn] for turn in turns] == [["a", "b", "c"], ["d\n\ne", "f"]]
    assert now == "g"


def test_instructions_of_the_client_are_what_its_user_says():
    turns, now = read(
        {"role": "system", "content": "s"}, user("a"), assistant("b"), {"role": "developer", "content": "d"}, user("e")
    )
    assert ([message.role for message in turns[0]], turns[0][0].text, now) == (
        ["user", "assistant"],
        "s\n\na",
        "d\n\ne",
    )
    assert read({"role": "system", "content": "s"}) == ([], "s")


def test_a_conversation_that_the_assistant_began_is_taken_as_it_is():
    turns, now = read(assistant("Hi!"), user("a"))
    assert ([[message.text for message in turn] for turn in turns], now) == ([["Hi!"]], "a")


def test_pictures_stand_where_they_were():
    link = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
    data = {"type": "image_url", "image_url": {"url": PNG}}
    _, now = read(user("look"), user([link, {"type": "text", "text": "and"}, data]))
    text, first, word, second = now
    assert (text, word) == (TextPart("look"), TextPart("and"))
    assert first == ImagePart(url="https://example.org/a.png")
    assert (second.media_type, second.data) == ("image/png", b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    "messages",
    [
        [assistant("a")],
        [user("a"), {"role": "tool", "tool_call_id": "c", "content": "x"}],
        [user([{"type": "file", "file": {}}])],
        [user([{"type": "image_url"}])],
        [user([{"type": "image_url", "image_url": {"url": "data:image/png,plain"}}])],
        [user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])],
    ],
)
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(RequestError):
        read(*messages)


@pytest.mark.parametrize("fields", [{"tools": [{}]}, {"functions": [{}]}, {"tool_choice": "required"}, {"foo": 1}])
def test_parameters_that_cannot_be_served_are_named(fields):
    with pytest.raises(Unfit) as refused:
        checked(**fields)
    (name,) = fields
    assert refused.value.param == name
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "fields", [{}, {"foo": None}, {"tools": []}, {"tools": [{}], "tool_choice": "none"}, {"seed": 1, "n": 1}]
)
def test_parameters_that_change_nothing_are_accepted(fields):
    checked(**fields)


@pytest.mark.parametrize(("count", "most"), [*itertools.product((0, 1, 2, 5, 12), (None, 1, 2, 3, 11))])
async def test_turns_are_kept_in_order_in_as_many_as_there_may_be(count, most):
    store, key = InMemoryStore(), SessionKey("s")
    turns = [(Message(role="user", content=f"q{n}"), Message(role="assistant", content=f"a{n}")) for n in range(count)]
    await keep(store, key, turns, most)
    kept = await store.read_turns(key, 0, 100)
    assert [message for turn in kept for message in turn.messages] == [message for turn in turns for message in turn]
    assert len(kept) == min(count, most or count)
    session = await store.open_session(key, "run")
    assert session.version == len(kept)
