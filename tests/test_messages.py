import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.messages import ImagePart, Message, TextPart, ToolCall, Usage, clean_text, unpaired


def user(text="hello"):
    return Message(role="user", content=text)


def asks(*ids):
    return Message(role="assistant", tool_calls=tuple(ToolCall(call_id=i, name="t", raw_arguments="{}") for i in ids))


def result(call_id):
    return Message(role="tool", content="ok", call_id=call_id)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user()],
        [user(), Message(role="assistant", content="hi"), user()],
        [user(), asks("a"), result("a"), Message(role="assistant", content="hi")],
        [user(), asks("a", "b"), result("b"), result("a"), asks("a"), result("a")],
    ],
)
def test_a_paired_history_is_in_order(messages):
    assert unpaired(messages) is None


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([user(), asks("a")], "the end: calls without a result: ['a']"),
        ([user(), asks("a"), user()], "message 2: calls without a result"),
        ([user(), result("a")], "message 1: a tool result for 'a'"),
        ([user(), asks("a"), result("a"), result("a")], "message 3: a tool result for 'a'"),
        ([user(), asks("a", "a"), result("a"), result("a")], "message 1: the same call id twice"),
        ([user(), asks("a"), result("b")], "message 2: a tool result for 'b'"),
        ([user(), asks("a"), Message(role="tool", content="x")], "message 2: a tool result for None"),
    ],
)
def test_an_unpaired_history_is_named(messages, fault):
    assert unpaired(messages).startswith(fault)


def test_usage_adds_up_and_stays_marked():
    total = Usage(input_tokens=1, output_tokens=2) + Usage(input_tokens=3, output_tokens=4, estimated=True)
    assert total == Usage(input_tokens=4, output_tokens=6, estimated=True)


def test_clean_text_joins_pairs_and_replaces_lone_halves():
    assert clean_text("a\ud83d\ude00b\ud800c\udc00") == "a😀b\ufffdc\ufffd"


@given(st.text())
def test_text_that_is_clean_is_the_same_object(text):
    assert clean_text(text) is text


@given(st.text(st.characters(exclude_categories=())))
def test_clean_text_can_always_be_encoded(text):
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned


def test_a_message_of_parts_has_the_text_of_its_text_parts():
    image = ImagePart(data=b"\x89PNG", media_type="image/png")
    message = Message(role="user", content=(TextPart("What "), image, TextPart("is this?")))
    assert message.text == "What is this?"
    assert Message(role="user", content="plain").text == "plain"
    assert unpaired([message]) is None
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


@pytest.mark.parametrize(
    "fields", [{}, {"url": "u", "data": b"d", "media_type": "m"}, {"data": b"d"}, {"media_type": "m", "url": "u"}]
)
def test_an_image_is_a_url_or_data_of_a_known_type(fields):
    with pytest.raises(ValueError, match="either a url, or data"):
        ImagePart(**fields)
