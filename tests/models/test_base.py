import pytest

from agentflow.messages import ImagePart, Message, TextPart, ToolCall, ToolSpec
from agentflow.models.base import (
    ChatModel,
    FunctionModel,
    ModelChunk,
    ModelRequest,
    estimate_message_tokens,
    estimate_request_tokens,
    estimate_tokens,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("a" * 400, 100), ("中", 1), ("中文字", 2), ("中" * 150, 100)],
)
def test_a_token_is_four_latin_or_one_and_a_half_chinese_characters(text, tokens):
    assert estimate_tokens(text) == tokens


def test_mixed_text_counts_both():
    assert estimate_tokens("a" * 40 + "中" * 15) == 20


def test_a_message_counts_its_calls_and_its_frame():
    call = ToolCall(call_id="c", name="abcd", raw_arguments="abcdefgh")
    assert estimate_message_tokens(Message(role="assistant", content="abcd", tool_calls=(call,))) == 4 + 1 + 1 + 2


def test_a_request_counts_messages_and_tools():
    tool = ToolSpec(name="abcd", description="abcd", parameters={})
    messages = (Message(role="user", content="abcd"),)
    assert estimate_request_tokens(ModelRequest(messages=messages)) == 5
    assert estimate_request_tokens(ModelRequest(messages=messages, tools=(tool,))) == 5 + 3


def test_a_picture_counts_and_says_nothing():
    picture = ImagePart(url="http://h/x")
    parts = Message(role="user", content=(TextPart("abcd"), picture))
    assert estimate_message_tokens(parts) == 4 + 1 + 800


def test_any_tokenizer_can_count():
    tool = ToolSpec(name="abcd", description="ab", parameters={})
    request = ModelRequest(messages=(Message(role="user", content="abcd"),), tools=(tool,))
    assert estimate_request_tokens(request, len) == 4 + 4 + 4 + 2 + 2


async def test_a_function_is_a_model():
    async def echo(request):
        yield ModelChunk(text=request.messages[-1].content)

    model = FunctionModel(echo)
    assert isinstance(model, ChatModel)
    assert (model.provider, model.name) == ("function", "echo")
    request = ModelRequest(messages=(Message(role="user", content="hello"),))
    assert [chunk.text async for chunk in model.stream(request)] == ["hello"]
