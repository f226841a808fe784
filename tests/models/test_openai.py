import socket

import pytest

from agentflow.errors import (
    ModelConnectionError,
    ModelError,
    ModelProtocolError,
    ModelStatusError,
    ModelTruncatedError,
)
from agentflow.messages import Message, ToolCall, ToolSpec, Usage
from agentflow.models.base import CallRequest, ChatModel, ModelChunk, ModelRequest
from agentflow.models.openai import OpenAIModel
from agentflow.settings import Profile
from agentflow.testing.provider import (
    FakeProvider,
    HalfClose,
    Reply,
    Reset,
    Stall,
    recorded,
    status,
    tool_calls,
)
from agentflow.testing.provider import text as answer
from tests.models.exchanges import ASK, DONE, KEY, STOP, WORD, ask, exchange, failure, model_at, text

# Replies


async def test_a_stream_gives_its_text_and_then_its_end():
    chunks = await exchange(answer("four plus ten"))
    assert text(chunks) == "four plus ten"
    assert chunks[-1] == ModelChunk(finish_reason="stop", usage=Usage(input_tokens=10, output_tokens=3), count=0)


async def test_text_comes_before_the_reply_has_ended():
    async with FakeProvider([WORD, Stall()]) as provider:
        model = model_at(provider)
        chunks = model.stream(ASK)
        assert (await anext(chunks)).text == "word "
        await chunks.aclose()
        await provider.idle()
        assert provider.requests[0].ended == "client_left"
        await model.aclose()


async def test_calls_come_with_the_end():
    chunks = await exchange(tool_calls(("add", {"a": 1}), ("add", {"a": 2}), chunk=3))
    assert chunks[-1].calls == (
        CallRequest(id="call_1", name="add", arguments='{"a": 1}'),
        CallRequest(id="call_2", name="add", arguments='{"a": 2}'),
    )


async def test_a_reply_may_be_asked_for_whole():
    async with FakeProvider(answer("four plus ten")) as provider:
        chunks = await ask(model_at(provider, stream=False))
        assert "stream" not in provider.requests[0].body
        assert "stream_options" not in provider.requests[0].body
    assert text(chunks) == "four plus ten"
    assert chunks[-1].usage == Usage(input_tokens=10, output_tokens=3)


async def test_the_content_type_and_not_the_request_says_what_a_body_is():
    whole = b'{"choices":[{"finish_reason":"stop","message":{"content":"whole"}}]}'
    assert text(await exchange(recorded(whole, content_type="application/json"))) == "whole"
    assert text(await exchange(Reply(steps=(WORD, STOP, DONE)), stream=False)) == "word "


async def test_missing_usage_stays_unknown_so_that_the_chain_estimates_it():
    chunks = await exchange([WORD * 4, STOP, DONE])
    assert chunks[-1].usage is None
    whole = b'{"choices":[{"finish_reason":"stop","message":{"content":"%s"}}]}' % (b"word " * 4)
    chunks = await exchange(recorded(whole, content_type="application/json"))
    assert chunks[-1].usage is None


async def test_a_body_in_single_bytes_reads_the_same():
    body = WORD * 3 + STOP + DONE
    assert text(await exchange(recorded(body, 1))) == "word word word "


async def test_it_lists_the_models_of_its_endpoint():
    listed = recorded(
        b'{"object":"list","data":[{"id":"b"},{"id":"a","owned_by":"x"}]}', content_type="application/json"
    )
    no_list = (recorded(body, content_type="application/json") for body in (b"[]", b"{}", b'{"data":[1]}', b"<html>"))
    async with FakeProvider(listed, *no_list, status(401)) as provider:
        model = model_at(provider)
        assert await model.list_models() == ["a", "b"]
        assert (provider.requests[0].method, provider.requests[0].path) == ("GET", "/v1/models")
        for _ in range(4):
            with pytest.raises(ModelProtocolError, match="'acme' sent no list of models"):
                await model.list_models()
        with pytest.raises(ModelStatusError, match="answered 401"):
            await model.list_models()
        assert provider.connections == 1
        await model.aclose()


def test_it_is_a_chat_model():
    assert isinstance(OpenAIModel("m"), ChatModel)
    assert KEY not in repr(OpenAIModel("m", api_key=KEY))


# Requests


async def sent(request: ModelRequest, **options) -> dict:
    async with FakeProvider(answer("ok")) as provider:
        await ask(model_at(provider, **options), request)
        assert provider.requests[0].headers["Authorization"] == f"Bearer {KEY}"
        return provider.requests[0].body


async def test_only_what_is_set_is_sent():
    assert await sent(ASK) == {
        "model": "fake",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_limits_and_temperature_are_sent_if_set():
    request = ModelRequest(messages=ASK.messages, temperature=0.0, max_tokens=5)
    body = await sent(request)
    assert (body["temperature"], body["max_tokens"]) == (0.0, 5)
    assert (await sent(request, profile=Profile(max_tokens_field="max_completion_tokens")))[
        "max_completion_tokens"
    ] == 5


async def test_a_history_with_calls_is_one_a_strict_provider_takes():
    details = {"reasoning_details": [{"signature": "s"}], "role": "system", "content": "not this", "provider": "acme"}
    calls = (
        ToolCall(call_id="c1", name="add", raw_arguments='{"a": 1}'),
        ToolCall(call_id="c2", name="now", raw_arguments=" \n"),
        ToolCall(call_id="c3", name="bad näme " + "x" * 80, raw_arguments="{cut"),
    )
    messages = (
        Message(role="system", content=""),
        Message(role="user", content="lone \ud83d half"),
        Message(role="assistant", tool_calls=calls, reasoning="never sent", provider_data=details),
        *(Message(role="tool", content="[success]", call_id=call.call_id, name=call.name) for call in calls),
        Message(role="assistant", content=""),
        Message(role="user", content="go on"),
    )
    body = await sent(ModelRequest(messages=messages))
    system, user, assistant, result, _, _, empty, _ = body["messages"]
    assert system == {"role": "system", "content": ""}
    assert user["content"] == "lone \ufffd half"
    assert (assistant["role"], assistant["content"]) == ("assistant", None)
    assert assistant["reasoning_details"] == [{"signature": "s"}]
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == ['{"a": 1}', "{}", "{}"]
    assert assistant["tool_calls"][2]["function"]["name"] == "bad_n_me_" + "x" * 55
    assert result == {"role": "tool", "content": "[success]", "tool_call_id": "c1"}
    assert empty == {"role": "assistant", "content": ""}


async def test_what_a_provider_wants_to_see_again_says_whose_it_is():
    details = b'data: {"choices":[{"index":0,"delta":{"reasoning_details":[{"signature":"s"}]}}]}\n\n'
    end = (await exchange(recorded(details + STOP + DONE)))[-1]
    assert end.provider_data == {"reasoning_details": [{"signature": "s"}], "provider": "acme"}
    assert (await exchange(recorded(WORD + STOP + DONE)))[-1].provider_data is None


async def test_tools_are_sent_as_functions():
    tool = ToolSpec(name="a b", description="Adds.", parameters={"type": "object"}, examples=({"a": 1},))
    body = await sent(ModelRequest(messages=ASK.messages, tools=(tool,)))
    function = {"name": "a_b", "description": "Adds.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]


async def test_an_unpaired_history_is_not_sent():
    call = ToolCall(call_id="c1", name="add", raw_arguments="{}")
    async with FakeProvider() as provider:
        with pytest.raises(ModelError, match=r"not paired and was not sent.*c1"):
            await ask(model_at(provider), ModelRequest(messages=(Message(role="assistant", tool_calls=(call,)),)))
        assert provider.requests == []


async def test_without_a_key_no_authorization_is_sent():
    async with FakeProvider(answer("ok")) as provider:
        await ask(OpenAIModel("fake", base_url=provider.base_url + "/", api_key=" "))
        assert "Authorization" not in provider.requests[0].headers
        assert provider.requests[0].path == "/v1/chat/completions"


async def test_the_body_is_json_whatever_the_text():
    messages = (Message(role="user", content='"\\\u2028\x00😀'),)
    body = await sent(ModelRequest(messages=messages))
    assert body["messages"][0]["content"] == '"\\\u2028\x00😀'


# How replies end


async def test_a_reply_is_whole_with_a_finish_reason_or_an_end_mark_however_the_connection_ends():
    for ending in ([STOP, DONE], [STOP], [DONE], [STOP, Reset()], [STOP, HalfClose()], [DONE, HalfClose()]):
        assert text(await exchange([WORD, *ending])) == "word "


async def test_a_reply_without_either_is_truncated_however_the_connection_ends():
    for ending in ([], [Reset()], [HalfClose()], [b'data: {"choi', HalfClose()]):
        assert isinstance(await failure([WORD, *ending]), ModelTruncatedError)


async def test_every_frame_of_a_recorded_stream_is_a_possible_end():
    body = WORD * 3 + STOP + DONE
    frames = [at + 2 for at in range(len(body)) if body[at : at + 2] == b"\n\n"]
    for at in frames:
        script = [body[:at], HalfClose()]
        if at <= len(WORD * 3):
            assert isinstance(await failure(script), ModelTruncatedError)
        else:
            assert text(await exchange(script)) == "word word word "


async def test_an_error_object_in_a_stream_ends_the_call_after_its_text():
    async with FakeProvider([WORD, b'data: {"error":{"message":"no luck","code":502}}\n\n', Stall()]) as provider:
        model = model_at(provider)
        chunks = model.stream(ASK)
        assert (await anext(chunks)).text == "word "
        with pytest.raises(ModelStatusError, match="no luck"):
            await anext(chunks)
        await provider.idle()
        await model.aclose()


async def test_nobody_there_is_a_connection_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ModelConnectionError, match=f"'acme' failed.*{port}"):
        await ask(model_at(f"http://127.0.0.1:{port}/v1"))
    assert isinstance(await failure([Reset()]), ModelConnectionError)
