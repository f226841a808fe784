import asyncio
import json

import aiohttp
import pytest

from agentflow.testing.provider import (
    Delay,
    FakeProvider,
    HalfClose,
    Reply,
    Reset,
    Stall,
    recorded,
    status,
    text,
    tool_calls,
)

ASK = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


def ask(session, provider, body=ASK):
    return session.post(f"{provider.base_url}/chat/completions", json=body)


async def post(session, provider, body=ASK):
    async with ask(session, provider, body) as response:
        return response.status, await response.read()


def deltas(body):
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_an_answer_is_streamed_word_by_word_with_finish_usage_and_end_mark():
    async with FakeProvider(text("four plus ten")) as provider, aiohttp.ClientSession() as session:
        code, body = await post(session, provider)
        chunks = deltas(body)
    assert code == 200
    assert [c["choices"][0]["delta"].get("content") for c in chunks[:3]] == ["four ", "plus ", "ten"]
    assert chunks[3]["choices"][0]["finish_reason"] == "stop"
    assert chunks[4]["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    assert provider.requests[0].ended == "complete"
    assert provider.requests[0].body == ASK


async def test_tool_calls_are_whole_or_in_pieces():
    async with (
        FakeProvider(tool_calls(("add", {"a": 1}), ("raw", "{")), tool_calls(("add", {"a": 1}), chunk=4)) as provider,
        aiohttp.ClientSession() as session,
    ):
        whole = deltas((await post(session, provider))[1])
        pieces = deltas((await post(session, provider))[1])
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in whole[:2]]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("call_1", {"name": "add", "arguments": '{"a": 1}'}),
        ("call_2", {"name": "raw", "arguments": "{"}),
    ]
    assert [chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for chunk in pieces[:2]] == [
        '{"a"',
        ": 1}",
    ]


async def test_a_request_without_stream_gets_one_json_completion():
    async with FakeProvider(tool_calls(("add", {"a": 1}))) as provider, aiohttp.ClientSession() as session:
        body = json.loads((await post(session, provider, ASK | {"stream": False}))[1])
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


async def test_a_status_script_has_its_body_and_headers():
    script = status(429, headers={"Retry-After": "7"})
    async with (
        FakeProvider(script) as provider,
        aiohttp.ClientSession() as session,
        ask(session, provider) as response,
    ):
        assert response.status == 429
        assert response.headers["Retry-After"] == "7"
        assert (await response.json())["error"]["message"] == "scripted status 429"


async def test_a_reset_comes_before_the_headers_or_after_them():
    async with FakeProvider([Reset()], [b"data: x", Reset()]) as provider, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(session, provider)
        async with ask(session, provider) as response:
            assert response.status == 200
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await response.read()
        await provider.idle()
    assert [request.ended for request in provider.requests] == ["reset", "reset"]


async def test_a_half_close_cuts_the_body():
    async with FakeProvider([b"data: x", HalfClose()]) as provider, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(session, provider)
        await provider.idle()
    assert provider.requests[0].ended == "client_left"


async def test_a_stall_ends_when_the_client_leaves():
    async with FakeProvider([b"data: x", Stall()]) as provider, aiohttp.ClientSession() as session:
        async with ask(session, provider) as response:
            assert await response.content.readany() == b"data: x"
            assert (provider.active, provider.connections) == (1, 1)
            response.close()
        await provider.idle()
        assert (provider.active, provider.connections) == (0, 0)
    assert provider.requests[0].ended == "client_left"


async def test_leaving_the_context_breaks_what_is_open():
    async with aiohttp.ClientSession() as session:
        async with FakeProvider([Stall()]) as provider:
            asking = asyncio.gather(post(session, provider), return_exceptions=True)
            await provider.received()
        (error,) = await asking
    assert isinstance(error, aiohttp.ClientConnectionError)
    assert provider.requests[0].ended == "closed"


@pytest.mark.virtual_time
async def test_a_delay_is_in_the_time_of_the_loop():
    loop = asyncio.get_running_loop()
    async with FakeProvider([Delay(30), b"late"]) as provider, aiohttp.ClientSession() as session:
        begin = loop.time()
        assert await post(session, provider) == (200, b"late")
        assert 30 <= loop.time() - begin < 31


@pytest.mark.parametrize("cuts", [None, 1, 7, [2, 3]])
async def test_a_recording_is_played_byte_for_byte(cuts, tmp_path):
    path = tmp_path / "body.sse"
    path.write_bytes(b"data: 1\r\n\r\ndata: 2")
    reply = recorded(path, cuts)
    assert reply.body == path.read_bytes()
    async with FakeProvider(reply) as provider, aiohttp.ClientSession() as session:
        assert (await post(session, provider))[1] == path.read_bytes()


async def test_a_client_in_the_same_loop_sees_the_cuts():
    async with (
        FakeProvider(recorded(b"abcdef", [1, 3])) as provider,
        aiohttp.ClientSession() as session,
        ask(session, provider) as response,
    ):
        pieces = [data async for data in response.content.iter_any()]
    assert pieces == [b"a", b"bcd", b"ef"]


def test_the_pieces_of_a_recording_are_the_cuts_and_the_rest():
    assert recorded(b"abcdef", [1, 3]).steps == (b"a", b"bcd", b"ef")
    assert recorded(b"abc", 2).steps == (b"ab", b"c")
    assert recorded(b"").steps == ()


async def test_scripts_come_first_and_then_the_callable_answers():
    def respond(request):
        return [request.body["messages"][0]["content"].encode()]

    async with FakeProvider(status(500), respond=respond) as provider, aiohttp.ClientSession() as session:
        assert (await post(session, provider))[0] == 500
        assert await post(session, provider) == (200, b"hello")


async def test_a_request_without_a_script_is_refused_by_name():
    async with FakeProvider() as provider, aiohttp.ClientSession() as session:
        code, body = await post(session, provider)
    assert (code, json.loads(body)["error"]["message"]) == (400, "no script is left for request 1")
    assert provider.requests[0].ended == "refused"


async def test_another_route_is_not_found():
    async with (
        FakeProvider(text("a")) as provider,
        aiohttp.ClientSession() as session,
        session.get(f"{provider.base_url}/embeddings") as response,
    ):
        assert response.status == 404
    assert len(provider.scripts) == 1


async def test_a_strict_provider_refuses_and_keeps_its_script():
    bad = ASK | {"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]}
    async with FakeProvider(text("fine")) as provider, aiohttp.ClientSession() as session:
        code, body = await post(session, provider, bad)
        assert code == 400
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert "not an open call" in provider.refusals[0]
        assert (await post(session, provider))[0] == 200


async def test_a_lenient_provider_takes_anything():
    async with (
        FakeProvider([b"x"], strict=False) as provider,
        aiohttp.ClientSession() as session,
        session.post(f"{provider.base_url}/chat/completions", data=b"not json") as response,
    ):
        assert await response.read() == b"x"
    assert (provider.requests[0].raw, provider.requests[0].body) == (b"not json", None)


async def test_empty_bytes_send_the_headers_alone():
    script = Reply([b"", Stall()], content_type="text/html")
    async with (
        FakeProvider(script) as provider,
        aiohttp.ClientSession() as session,
        ask(session, provider) as response,
    ):
        assert (response.status, response.content_type) == (200, "text/html")
        response.close()
