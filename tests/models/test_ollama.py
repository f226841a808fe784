import json

import pytest

from agentflow.errors import ModelError, ModelProtocolError, ModelStatusError, ModelTimeoutError, ModelTruncatedError
from agentflow.messages import ImagePart, Message, TextPart, ToolCall, ToolSpec, Usage
from agentflow.models.base import CallRequest, ChatModel, ModelRequest
from agentflow.models.http import Timeouts
from agentflow.models.ollama import OllamaModel
from agentflow.testing.provider import FakeProvider, HalfClose, Reply, Reset, Stall, status
from tests.models.exchanges import ASK, KEY, ask, text

NDJSON = "application/x-ndjson"
WORD = b'{"model":"m","message":{"role":"assistant","content":"word "},"done":false}\n'
CALL = b'{"message":{"content":"","tool_calls":[{"function":{"name":"add","arguments":{"a":1}}}]},"done":false}\n'
DONE = b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":3,"eval_count":4}\n'


def lines(*steps, **fields) -> Reply:
    return Reply(steps=steps, content_type=NDJSON, **fields)


def model_at(provider: FakeProvider, **options) -> OllamaModel:
    base_url = provider.base_url.removesuffix("/v1")
    return OllamaModel("qwen3", base_url=base_url, api_key=KEY, provider="acme", **options)


async def exchange(*scripts, request=ASK, **options):
    async with FakeProvider(*scripts) as provider:
        return await ask(model_at(provider, **options), request)


async def failure(*scripts, **options) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await exchange(*scripts, **options)
    assert caught.value.provider == "acme"
    assert KEY not in str(caught.value)
    return caught.value


async def sent(request, **options) -> dict:
    async with FakeProvider(lines(WORD, DONE)) as provider:
        await ask(model_at(provider, **options), request)
        assert provider.requests[0].path == "/api/chat"
        return provider.requests[0].body


def test_it_is_a_chat_model():
    model = OllamaModel("m", api_key=KEY)
    assert isinstance(model, ChatModel)
    assert (model.provider, KEY in repr(model)) == ("ollama", False)


async def test_a_stream_gives_its_text_its_calls_and_its_end():
    chunks = await exchange(lines(WORD, WORD, CALL, DONE))
    assert text(chunks) == "word word "
    assert chunks[-1].calls == (CallRequest(name="add", arguments='{"a":1}'),)
    assert chunks[-1].usage == Usage(input_tokens=3, output_tokens=4)
    assert chunks[-1].provider_data == {"provider": "acme"}, "who may see the thinking beside the calls again"


async def test_text_comes_before_the_reply_has_ended():
    async with FakeProvider(lines(WORD, Stall())) as provider:
        model = model_at(provider)
        chunks = model.stream(ASK)
        assert (await anext(chunks)).text == "word "
        await chunks.aclose()
        await provider.idle()
        assert provider.requests[0].ended == "client_left"
        await model.aclose()


async def test_a_reply_may_be_asked_for_whole():
    whole = json.dumps({"message": {"content": "whole"}, "done": True, "done_reason": "stop"}).encode()
    reply = Reply(steps=(whole,), content_type="application/json")
    assert text(await exchange(reply, stream=False)) == "whole"
    assert (await sent(ASK, stream=False))["stream"] is False


async def test_only_what_is_set_is_sent():
    assert await sent(ASK) == {
        "model": "qwen3",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "options": {},
    }


async def test_every_field_of_a_request_has_its_place():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = ModelRequest(
        messages=ASK.messages,
        temperature=0.0,
        max_tokens=5,
        seed=7,
        stop=("END",),
        response_format=schema,
        extra_body={"think": True, "options": {"num_ctx": 8192}},
    )
    body = await sent(request)
    assert body["options"] == {"temperature": 0.0, "num_predict": 5, "seed": 7, "stop": ["END"], "num_ctx": 8192}
    assert (body["format"], body["think"]) == (schema, True)


async def test_a_history_with_calls_has_objects_as_arguments_and_results_by_name():
    calls = (
        ToolCall(call_id="c1", name="add", raw_arguments='{"a": 1}'),
        ToolCall(call_id="c2", name="now", raw_arguments=" "),
    )
    messages = (
        Message(role="developer", content="Be brief."),
        Message(
            role="user", content=(TextPart("What is "), TextPart("this?"), ImagePart(data=b"\x89P", media_type="i"))
        ),
        Message(role="assistant", tool_calls=calls, reasoning="hm", provider_data={"provider": "acme"}),
        Message(role="tool", content="[success]", call_id="c1", name="add"),
        Message(role="tool", content="[success]", call_id="c2"),
    )
    body = await sent(ModelRequest(messages=messages))
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is this?", "images": ["iVA="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [
                {"function": {"name": "add", "arguments": {"a": 1}}},
                {"function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "[success]", "tool_name": "add"},
        {"role": "tool", "content": "[success]", "tool_name": "now"},
    ]


async def test_a_picture_by_its_url_is_refused_before_anything_is_sent():
    picture = Message(role="user", content=(ImagePart(url="http://h/x.png"),))
    async with FakeProvider() as provider:
        with pytest.raises(ModelError, match=r"no picture by its url, and 'http://h/x\.png' is one: give its data"):
            await ask(model_at(provider), ModelRequest(messages=(picture,)))
        assert provider.requests == []


@pytest.mark.parametrize(
    ("choice", "told"), [(None, ["a", "b"]), ("required", ["a", "b"]), ("none", None), ("b", ["b"])]
)
async def test_a_choice_of_tools_is_a_choice_of_what_is_told(choice, told):
    tools = tuple(ToolSpec(name=name, description="", parameters={"type": "object"}) for name in ("a", "b"))
    body = await sent(ModelRequest(messages=ASK.messages, tools=tools, tool_choice=choice))
    assert (body.get("tools") and [tool["function"]["name"] for tool in body["tools"]] == told) or told is None


async def test_an_error_body_and_an_error_line_become_our_errors():
    error = await failure(status(404, {"error": "model 'x' not found"}))
    assert (str(error), error.status) == ("'acme' answered 404: model 'x' not found", 404)
    error = await failure(lines(WORD, b'{"error":"out of memory"}\n'))
    assert isinstance(error, ModelStatusError)
    assert "out of memory" in str(error)


async def test_a_reply_that_does_not_say_that_it_is_done_is_truncated_however_it_ends():
    for ending in ([], [Reset()], [HalfClose()], [DONE[:-10], HalfClose()]):
        assert isinstance(await failure(lines(WORD, *ending)), ModelTruncatedError)
    for ending in ([DONE, Reset()], [DONE.strip(), HalfClose()]):
        assert text(await exchange(lines(WORD, *ending))) == "word "


async def test_another_server_is_told_by_its_content_type():
    error = await failure(Reply(steps=(b"data: [DONE]\n\n",), content_type="text/event-stream"))
    assert isinstance(error, ModelProtocolError)
    assert "'text/event-stream' instead of a completion: check that 'http://127.0.0.1:" in str(error)


@pytest.mark.virtual_time
async def test_its_time_limits_are_those_of_every_client():
    error = await failure(lines(WORD, Stall()), timeouts=Timeouts(idle=20))
    assert isinstance(error, ModelTimeoutError)
    assert str(error) == "'acme' fell silent for 20 s within its reply"


async def test_it_lists_the_models_of_its_server():
    tags = Reply(steps=(b'{"models":[{"name":"b:1"},{"name":"a:2"}]}',), content_type="application/json")
    async with FakeProvider(tags, Reply(steps=(b"[]",), content_type="application/json")) as provider:
        model = model_at(provider)
        assert await model.list_models() == ["a:2", "b:1"]
        assert provider.requests[0].path == "/api/tags"
        with pytest.raises(ModelProtocolError, match="'acme' sent no list of models"):
            await model.list_models()
        await model.aclose()
