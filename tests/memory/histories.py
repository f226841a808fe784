"""Histories for the tests of memory: right ones, broken ones, and what a strict provider says to them."""

import json

from hypothesis import strategies as st

from agentflow.messages import ImagePart, Message, TextPart, ToolCall, unpaired
from agentflow.models.base import ModelRequest, estimate_message_tokens
from agentflow.models.requests import chat_body
from agentflow.settings import Profile
from agentflow.stores.base import Session, SessionKey, Summary, Turn
from agentflow.testing.wire import refusal

KEY = SessionKey("s", "u")
count = estimate_message_tokens


def user(text="hello"):
    return Message(role="user", content=text)


def says(text="hi", *calls):
    return Message(role="assistant", content=text, tool_calls=calls)


def call(call_id, arguments="{}", name="look"):
    return ToolCall(call_id=call_id, name=name, raw_arguments=arguments)


def result(call_id, content="[success]\nok"):
    return Message(role="tool", content=content, call_id=call_id, name="look")


def turn(*messages, number=1, outcome="final"):
    return Turn(run_id=f"run{number}", outcome=outcome, messages=messages)


def session(*turns, summaries=(), version=None):
    return Session(key=KEY, version=len(turns) if version is None else version, turns=turns, summaries=summaries)


def summary(first, last, *lines, confidence=1.0, pinned=()):
    text = "\n".join(f"- {line}" for line in (*pinned, *lines))
    return Summary(first=first, last=last, text=text, confidence=confidence, facts=lines, pinned=tuple(pinned))


def tokens(messages):
    return sum(map(count, messages))


def strict_refusal(messages):
    """Why a strict provider refuses a request of these messages after a system message, or None."""
    request = ModelRequest(messages=(Message(role="system", content="Be kind."), *messages))
    body = chat_body(request, Profile(), model="m", provider="p", stream=True, strict={})
    return refusal(json.loads(json.dumps(body)))


def assert_sendable(messages):
    assert unpaired(messages) is None
    assert strict_refusal(messages) is None


# -- random ones -----------------------------------------------------------------------------------------

IDS = st.sampled_from(["", " ", "a", "b", "call_1", "call_1-2", "call"])
TEXTS = st.sampled_from(
    [
        "",
        "hello",
        "x" * 400,
        "订单" * 90,
        "word " * 300,
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
)
CALLS = st.builds(call, IDS, st.sampled_from(["", "null", " ", "{}", '{"a": 1}', '{"a', "[]"]))
CONTENTS = TEXTS | st.just((TextPart("look"), ImagePart(url="https://example.org/a.png")))
MESSAGES = st.one_of(
    st.builds(user, CONTENTS),
    st.builds(lambda text, calls: says(text, *calls), TEXTS, st.lists(CALLS, max_size=4)),
    st.builds(result, IDS, TEXTS),
    st.builds(lambda calls: Message(role="user", content="odd", tool_calls=tuple(calls)), st.lists(CALLS, max_size=1)),
    st.builds(lambda text: Message(role="system", content=text), TEXTS),
)


@st.composite
def paired_turns(draw):
    """The messages of one turn as the chain keeps it."""
    messages = [user(draw(TEXTS))]
    for number in range(draw(st.integers(0, 3))):
        ids = [f"c{number}-{position}" for position in range(draw(st.integers(1, 3)))]
        messages.append(says(draw(TEXTS), *(call(one) for one in ids)))
        messages += [result(one, draw(TEXTS)) for one in ids]
    return (*messages, says(draw(TEXTS)))


BROKEN = st.lists(MESSAGES, max_size=12).map(tuple)
TURNS = st.lists(paired_turns() | BROKEN, max_size=24).map(
    lambda found: tuple(turn(*messages, number=number) for number, messages in enumerate(found, 1))
)
