import asyncio
import gzip
import json
import socket

import aiohttp
import pytest
from pydantic import SecretStr

from agentflow.errors import (
    AgentflowError,
    ConfigError,
    ModelConnectionError,
    ModelError,
    ModelProtocolError,
    ModelRateLimitError,
    ModelStatusError,
    ModelTimeoutError,
    ModelTruncatedError,
)
from agentflow.messages import Message, ToolCall, ToolSpec, Usage
from agentflow.models import openai
from agentflow.models.base import CallRequest, ChatModel, ModelChunk, ModelRequest
from agentflow.models.openai import OpenAIModel, Timeouts
from agentflow.testing.provider import (
    Delay,
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

ASK = ModelRequest(messages=(Message(role="user", content="hello"),))
KEY = "sk-secret-0123456789"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def model_at(provider: FakeProvider | str, **options) -> OpenAIModel:
    base_url = provider if isinstance(provider, str) else provider.base_url
    return OpenAIModel("fake", base_url=base_url, api_key=KEY, provider="acme", **options)


async def ask(model: OpenAIModel, request: ModelRequest = ASK) -> list[ModelChunk]:
    try:
        return [chunk async for chunk in model.stream(request)]
    finally:
        await model.aclose()


async def exchange(*scripts, request: ModelRequest = ASK, **options) -> list[ModelChunk]:
    async with FakeProvider(*scripts) as provider:
        return await ask(model_at(provider, **options), request)


async def failure(*scripts, **options) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await exchange(*scripts, **options)
    assert caught.value.provider == "acme"
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def text(chunks: list[ModelChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


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
    assert (await sent(request, max_tokens_field="max_completion_tokens"))["max_completion_tokens"] == 5


async def test_a_history_with_calls_is_one_a_strict_provider_takes():
    details = {"reasoning_details": [{"signature": "s"}], "role": "system", "content": "not this"}
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


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000",
        "ftp://h/v1",
        "http://",
        "http://[::1/v1",
        "http://h:port/v1",
        "http://h:0/",
        "http://a b/",
        "http://a\0b/",
        "http://a..b/",
        "http://" + "a" * 70,
    ],
)
def test_an_address_that_cannot_be_is_refused(base_url):
    with pytest.raises(ConfigError, match="is not an http or https address"):
        OpenAIModel("m", base_url=base_url)


def test_an_address_with_secrets_in_it_is_refused_without_showing_them():
    for base_url in ("http://user:hush@host/v1", "http://host/v1?key=hush", "http://host/v1#hush"):
        with pytest.raises(ConfigError) as caught:
            OpenAIModel("m", base_url=base_url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\0"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("m", api_key=SecretStr(key), provider="acme")
    assert "'acme'" in str(caught.value)
    assert key not in str(caught.value)


async def test_without_a_key_no_authorization_is_sent():
    async with FakeProvider(answer("ok")) as provider:
        await ask(OpenAIModel("fake", base_url=provider.base_url + "/", api_key=" "))
        assert "Authorization" not in provider.requests[0].headers
        assert provider.requests[0].path == "/v1/chat/completions"


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


# Statuses and bodies


async def test_error_statuses_become_our_errors():
    for code, retryable in ((400, False), (401, False), (404, False), (500, True), (503, True), (529, True)):
        error = await failure(status(code, {"error": {"message": f"no luck with {KEY}"}}))
        assert isinstance(error, ModelStatusError)
        assert (error.status, error.retryable) == (code, retryable)
        assert str(error) == f"'acme' answered {code}: no luck with ***"


async def test_a_rate_limit_says_when_to_come_back():
    error = await failure(status(429, headers={"Retry-After": "7"}))
    assert isinstance(error, ModelRateLimitError)
    assert error.retry_after == 7.0


async def test_redirects_are_not_followed():
    error = await failure(status(307, b"", headers={"Location": "http://other/v1?token=hush"}))
    assert isinstance(error, ModelStatusError)
    assert "points to 'http://other/v1'" in str(error)
    assert "hush" not in str(error)


async def test_other_bodies_are_protocol_errors():
    page = Reply(steps=(b"<html>hello</html>",), content_type="text/html")
    assert "answered with 'text/html' instead of a completion" in str(await failure(page))
    for body in (b"{}", b"not json", b"x" * 100):
        assert isinstance(await failure(recorded(body, content_type="application/json")), ModelProtocolError)
    assert isinstance(await failure(Reply(steps=(), status=204)), ModelStatusError)


async def test_an_endless_error_body_is_cut(monkeypatch):
    monkeypatch.setattr(openai, "MAX_ERROR_BYTES", 100)
    error = await failure(Reply(steps=(*[b"x" * 50] * 5, Stall()), status=500, content_type="text/plain"))
    assert isinstance(error, ModelStatusError)
    assert error.status == 500


async def test_a_body_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(openai, "MAX_BODY_BYTES", 100)
    body = Reply(steps=(*[b" " * 50] * 5, Stall()), content_type="application/json")
    assert "more than 100 bytes" in str(await failure(body))


async def test_a_compressed_stream_is_read_and_a_bomb_ends_at_the_limit():
    packed = Reply(steps=(gzip.compress(WORD + STOP + DONE),), headers={"Content-Encoding": "gzip"})
    assert text(await exchange(packed)) == "word "
    bomb = Reply(steps=(gzip.compress(b"data: " + bytes(64 * 1024 * 1024)),), headers={"Content-Encoding": "gzip"})
    assert "event of more than" in str(await failure(bomb))
    broken = Reply(steps=(b"this is not gzip",), headers={"Content-Encoding": "gzip"})
    assert isinstance(await failure(broken), ModelProtocolError)


async def test_a_server_that_speaks_no_http_is_a_protocol_error():
    async def speak(reader, writer):
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelProtocolError) as caught:
            await ask(model_at(f"http://127.0.0.1:{port}/v1"))
    assert "\n" not in str(caught.value)


# Timeouts, in virtual time


LIMITS = Timeouts(connect=5, first_byte=30, idle=20, total=300)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("script", "words", "seconds"),
    [
        ([Stall()], "'acme' sent nothing within 30 s", 30),
        ([b"", Stall()], "'acme' sent nothing within 30 s", 30),
        ([WORD, Stall()], "'acme' fell silent for 20 s within its reply", 20),
        ([WORD, Delay(15), WORD, Stall()], "'acme' fell silent for 20 s within its reply", 35),
        ([b"x", *[Delay(5), b"x"] * 100], "'acme' did not end its reply within 300 s", 300),
        ([*[b": ping\n\n", Delay(5)] * 100], "'acme' did not end its reply within 300 s", 300),
    ],
)
async def test_each_time_limit_has_its_own_words(script, words, seconds):
    loop = asyncio.get_running_loop()
    started = loop.time()
    error = await failure(script, timeouts=LIMITS)
    assert isinstance(error, ModelTimeoutError)
    assert str(error) == words
    assert loop.time() - started == pytest.approx(seconds, abs=0.5)


@pytest.mark.virtual_time
async def test_a_slow_reply_within_its_limits_is_whole():
    assert (
        text(await exchange([Delay(29), WORD, Delay(19), WORD, Delay(19), STOP, DONE], timeouts=LIMITS)) == "word " * 2
    )


@pytest.mark.virtual_time
async def test_a_reply_with_its_finish_reason_waits_a_little_for_the_rest_and_no_longer():
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    loop = asyncio.get_running_loop()
    chunks = await exchange([WORD, STOP, Delay(4), usage, DONE], timeouts=LIMITS)
    assert chunks[-1].usage == Usage(input_tokens=1, output_tokens=2)
    for ending in ([STOP, Stall()], [STOP, DONE, Stall()]):
        started = loop.time()
        assert text(await exchange([WORD, *ending], timeouts=LIMITS)) == "word "
        assert loop.time() - started < 6


@pytest.mark.virtual_time
async def test_a_connection_that_does_not_come_about_has_its_own_limit():
    # A full backlog: the kernel leaves further connections waiting.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        callers = []
        for _ in range(4):
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(address)
            callers.append(caller)
        try:
            with pytest.raises(ModelTimeoutError, match="did not accept a connection within 5 s"):
                await ask(model_at(f"http://127.0.0.1:{address[1]}/v1", timeouts=LIMITS))
        finally:
            for caller in callers:
                caller.close()


# Connections


async def test_connections_are_kept_after_replies_and_errors():
    async with FakeProvider(answer("a"), status(429), status(500), answer("b"), answer("c")) as provider:
        model = model_at(provider)
        for _ in range(5):
            try:
                async for _ in model.stream(ASK):
                    pass
            except ModelError:
                continue
        assert len(provider.requests) == 5
        assert provider.connections == 1
        await model.aclose()


async def test_many_failing_calls_use_up_no_pool():
    async with FakeProvider(respond=lambda _: status(429)) as provider:
        model = model_at(provider)
        for _ in range(120):
            with pytest.raises(ModelRateLimitError):
                await anext(model.stream(ASK))
        assert provider.connections == 1
        await model.aclose()


async def test_calls_run_beside_each_other_without_a_bound():
    async with FakeProvider(respond=lambda _: Reply(steps=(WORD, Stall()))) as provider:
        model = model_at(provider)
        calls = [model.stream(ASK) for _ in range(120)]
        for call in calls:
            assert (await anext(call)).text == "word "
        assert provider.active == 120
        for call in calls:
            await call.aclose()
        await provider.idle()
        await model.aclose()


async def test_leaving_or_cancelling_at_any_chunk_closes_the_connection():
    for leave_at in range(4):
        async with FakeProvider([*[WORD] * 4, Stall()]) as provider:
            model = model_at(provider)
            chunks = model.stream(ASK)
            for _ in range(leave_at):
                await anext(chunks)
            await chunks.aclose()
            await provider.idle()
            await model.aclose()


async def test_a_cancelled_call_leaves_no_connection():
    async with FakeProvider([Stall()], [WORD, Stall()]) as provider:
        model = model_at(provider)
        for _ in range(2):
            count = len(provider.requests)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(consume(model))
                await provider.received(count + 1)
                task.cancel()
            await provider.idle()
        await model.aclose()


async def consume(model: OpenAIModel) -> None:
    async for _ in model.stream(ASK):
        pass


def test_a_model_works_under_one_loop_after_another():
    model = OpenAIModel("fake", base_url="http://127.0.0.1:1/v1")

    async def once() -> str:
        async with FakeProvider(answer("ok")) as provider:
            model._url = f"{provider.base_url}/chat/completions"
            try:
                return text([chunk async for chunk in model.stream(ASK)])
            finally:
                await model.aclose()

    assert [asyncio.run(once()), asyncio.run(once())] == ["ok", "ok"]
    assert model._sessions == {}


async def test_a_closed_model_can_be_used_again():
    async with FakeProvider(answer("a"), answer("b")) as provider:
        model = model_at(provider)
        assert text(await ask(model)) == "a"
        assert text(await ask(model)) == "b"
        await model.aclose()


# The seam


def every_subclass(kind: type) -> set[type]:
    return {kind}.union(*(every_subclass(child) for child in kind.__subclasses__()))


def test_every_exception_of_the_http_client_becomes_one_of_ours():
    kinds = {kind for kind in every_subclass(aiohttp.ClientError) if kind.__module__.startswith("aiohttp")}
    assert len(kinds) > 20
    for kind in kinds:
        ours = next(ours for theirs, ours in openai._TRANSLATION if issubclass(kind, theirs))
        assert issubclass(ours, AgentflowError)
    reached = {ours for _, ours in openai._TRANSLATION}
    assert reached == {ModelTimeoutError, ModelTruncatedError, ModelConnectionError, ModelProtocolError}


def test_the_body_is_json_whatever_the_text():
    messages = (Message(role="user", content='"\\\u2028\x00😀'),)
    body = json.loads(OpenAIModel("m")._body(ModelRequest(messages=messages)))
    assert body["messages"][0]["content"] == '"\\\u2028\x00😀'
