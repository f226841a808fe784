import asyncio
import io
import json
from contextlib import AsyncExitStack
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentflow import Agent, ModelChunk
from agentflow.errors import RequestError
from agentflow.transports.bodies import MAX_BODY, AskBody, parse_json
from agentflow.transports.refusals import Refused
from tests.transports.served import served

BAD_JSON = {
    "nothing": b"",
    "broken": b'{"input": ',
    "more after it": b'{"input": "x"} {}',
    "a key twice": b'{"input": "x", "input": "y"}',
    "a key twice inside": b'{"input": "x", "metadata": {"a": {"b": 1, "b": 2}}}',
    "NaN": b'{"input": NaN}',
    "Infinity": b'{"input": "x", "metadata": {"a": -Infinity}}',
    "too large for a float": b'{"input": "x", "metadata": {"a": 1e999}}',
    "a number of 5,000 digits": b'{"input": "x", "metadata": {"a": ' + b"9" * 5000 + b"}}",
    "200,000 levels": b"[" * 200_000,
    "65 levels": b'{"input": "x", "metadata": {"a": ' + b"[" * 64 + b"]" * 64 + b"}}",
    "1,001 keys": json.dumps({"input": "x", "metadata": {str(n): n for n in range(1001)}}).encode(),
    "a BOM": b'\xef\xbb\xbf{"input": "x"}',
    "no UTF-8": b'{"input": "\xff\xfe"}',
    "overlong": b'{"input": "\xc0\xaf"}',
    "UTF-16": '{"input": "x"}'.encode("utf-16"),
    "a list": b"[]",
    "a text": b'"input"',
    "null": b"null",
}

BAD_IDS = [
    ".", "..", "../x", "%2e%2e", "/", "\\", "\0", "a" * 129, "x" * 10_240, "\u0430", "a:b", "*", "'", '"', "a\n",
    5, True, {},
]  # fmt: skip
BAD_FIELDS = [
    {},
    {"input": ""},
    {"input": None},
    {"input": 5},
    {"input": True},
    {"input": ["x"]},
    {"input": "x" * (256 * 1024 + 1)},
    {"input": "x", "message": "y"},
    {"input": "x", "session_id": "a", "sessionId": "b"},
    {"input": "x", "role": "system"},
    {"input": "x", "messages": [{"role": "tool", "content": "x"}]},
    {"input": "x", "metadata": None},
    {"input": "x", "metadata": []},
    {"input": "x", "detached": 1},
    {"input": "x", "detached": "true"},
    {"input": "x", "agent": "nobody"},
    {"input": "x", "agent": 1},
    {"input": "x", "model": 5},
    {"input": "x", "model": "nobody/knows"},
    {"input": "x", "model": "a\nb"},
    {"input": "x", "model": "x" * 10_000},
    *({"input": "x", name: bad} for name in ("session_id", "user_id", "request_id") for bad in BAD_IDS),
    {"input": "x", "user_id": ""},
    {"input": "x", "request_id": ""},
]  # fmt: skip


def is_error(body):
    return (
        set(body) == {"error"} and set(body["error"]) == {"kind", "message"} and all(map(str, body["error"].values()))
    )


@pytest.fixture(scope="module")
def big():
    return b'{"input": "' + b"x" * MAX_BODY + b'"}'


@pytest.mark.parametrize("name", BAD_JSON)
async def test_what_is_no_json_object_is_refused(name):
    async with served() as here:
        for path in ("/api/agent/chat", "/api/agent/stream", "/api/runs/r/answer"):
            status, body = await here.posted(path, data=BAD_JSON[name], headers={"Content-Type": "application/json"})
            assert (status, is_error(body)) == (400, True)


async def test_fields_that_cannot_be_are_refused_and_named():
    async with served() as here:
        for fields in BAD_FIELDS:
            for path in ("/api/agent/chat", "/api/agent/stream"):
                status, body = await here.posted(path, fields)
                assert (status, is_error(body)) == (400, True), (str(fields)[:80], status, body)
                assert len(body["error"]["message"]) < 1000
        assert len(here.server.presence) == 0


async def test_an_unknown_field_is_told_with_those_that_are_known():
    async with served() as here:
        _, body = await here.posted("/api/agent/chat", {"input": "x", "temprature": 1})
        assert "'temprature'" in body["error"]["message"]
        assert "session_id" in body["error"]["message"]


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "application/json; charset=bogus",
        "",
        "*/*",
    ],
)
async def test_a_body_of_another_type_is_refused(kind):
    async with served() as here:
        status, body = await here.posted("/api/agent/chat", data=b'{"input": "x"}', headers={"Content-Type": kind})
        assert (status, body["error"]["kind"]) == (415, "media_type")


async def test_a_body_is_read_no_further_than_its_bound(big):
    head = "POST /api/agent/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    async with served() as here:
        answer = await here.raw(f"{head}Content-Length: 999999999999\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = await here.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 17 + b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        status, body = await here.posted(
            "/api/agent/chat", data=io.BytesIO(big), headers={"Content-Type": "application/json"}
        )
        assert (status, body["error"]["kind"]) == (413, "too_large")


WHOLE = {
    "/v1/chat/completions": {"model": "agent"},
    "/agui": {"threadId": "t", "runId": "r"},
}  # what clients send that keep the conversation themselves


@pytest.mark.parametrize("path", WHOLE)
async def test_a_whole_conversation_may_be_longer_but_not_without_bound(path):
    said = {"id": "1", "role": "assistant", "content": "x" * 1024}
    messages = [said] * 1500 + [said | {"role": "user", "content": "so?"}]
    headers = {"Content-Type": "application/json"}
    async with served(max_body=2 * 1024 * 1024) as here:
        for times, expected in ((1, 200), (2, 413)):
            data = io.BytesIO(json.dumps(WHOLE[path] | {"messages": messages * times}).encode())
            async with here.post(path, data=data, headers=headers) as response:
                assert response.status == expected
                assert ("over 2097152 bytes" in await response.text()) == (expected == 413)


async def test_a_compressed_body_is_refused_before_it_is_unpacked():
    async with served() as here:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        status, body = await here.posted("/api/agent/chat", data=b"\x1f\x8b" + b"0" * 100, headers=headers)
        assert (status, body["error"]["kind"]) == (415, "media_type")


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("agentflow.transports.bodies.BODY_SECONDS", 0.01)
    head = b"POST /api/agent/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with served() as here:
        answer = await here.raw(head + b"Content-Length: 100\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"Connection: close" in answer


@pytest.mark.parametrize(
    "rest", [b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n"]
)
async def test_a_body_that_is_not_what_its_headers_say_is_refused(rest):
    head = (
        b"POST /api/agent/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    async with served() as here:
        assert (await here.raw(head + rest))[9:12] == b"400"


async def test_a_client_that_leaves_in_the_middle_of_its_body_begins_nothing():
    head = b"POST /api/agent/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with served() as here:
        _, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(head + b"Content-Length: 99\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await here.ask()
        assert len(await here.server.store.list_runs()) == 1


async def test_both_names_of_a_field_and_no_session_are_taken():
    async with served() as here:
        _, first = await here.posted("/api/agent/chat", {"message": "x", "sessionId": "s1", "userId": "u"})
        assert first["session_id"] == "s1"
        for absent in (None, "", " ", "null"):
            body = await here.ask(session_id=absent)
            assert len(body["session_id"]) == 36


async def test_half_a_character_is_replaced():
    async with served() as here:
        data = b'{"input": "a\\ud800b", "metadata": {"\\udfff": "\\ud83c\\udf88"}}'
        status, body = await here.posted("/api/agent/chat", data=data, headers={"Content-Type": "application/json"})
        assert status == 200
        (event, *_) = await here.server.store.read(body["run_id"], 0, 1)
        assert (event.text, event.metadata) == ("a\ufffdb", {"\ufffd": "🎈"})


async def test_a_query_is_read_as_strictly():
    async with served() as here:
        for query in (
            "",
            "message=",
            "message=a&message=b",
            "message=a&input=b",
            "message=a&x=1",
            "message=a&format=html",
            "message=a&detached=maybe",
            "message=a&session_id=%00",
            "message=a&model=%0a",
            "message=a&metadata=%7B%7D",
        ):
            status, body = await here.json(f"/api/agent/stream?{query}")
            assert (status, is_error(body)) == (400, True), query
        for query in ("after=-1", "after=x", "after=1e3", "after=99999999999999999999", "after=", "format=x"):
            status, _ = await here.json(f"/api/runs/r/events?{query}")
            assert status == 400, query
        assert (await here.json("/api/sessions?limit=101"))[0] == 400
        assert (await here.json("/api/sessions?before=-1"))[0] == 400
        assert (await here.json("/api/agents?x=1"))[0] == 400


async def test_bytes_that_are_no_text_in_an_address_do_no_harm():
    async with served() as here:
        for target in (
            "/api/agent/stream?message=%FF%FE&format=%ZZ",
            "/api/runs/%FF",
            "/api/runs/%00",
            "/api/runs/..%2f..",
            "/api/sessions/%2e%2e",
            "/api/sessions/" + "x" * 5000,
            "/%",
        ):
            answer = await here.raw(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert answer[9:10] == b"4", (target, answer[:60])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PATHS = [
    "/api/agent/chat",
    "/api/tickets",
    *(f"/api/runs/{{}}/{verb}" for verb in ("cancel", "answer", "approve", "reject", "amend")),
]
FIELDS = st.dictionaries(
    st.sampled_from(
        ["input", "message", "session_id", "user_id", "model", "agent", "metadata", "detached", "request_id"]
    )
    | st.text(max_size=4),
    JSON,
    max_size=6,
)


@given(FIELDS)
@settings(max_examples=100, deadline=None)
def test_whatever_is_sent_is_taken_or_refused(fields):
    try:
        value = parse_json(json.dumps(fields).encode("utf-8", "surrogatepass"))
        AskBody.model_validate(value, strict=True).request(None).checked()
    except (Refused, RequestError, ValidationError) as error:
        assert str(error)


def test_no_body_and_no_path_makes_the_server_fail():
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        here = runner.run(stack.enter_async_context(served(Agent(model=echo))))

        @given(FIELDS, st.sampled_from(PATHS), st.text(max_size=6))
        @settings(max_examples=150, deadline=None)
        def check(fields, path, run_id):
            target = path.format(quote(run_id, safe=""))
            status, body = runner.run(here.posted(target, fields))
            assert status < 500
            assert status < 300 or is_error(body)

        try:
            check()
        finally:
            runner.run(stack.aclose())


async def echo(request):
    yield ModelChunk(text=request.messages[-1].text or "nothing", finish_reason="stop")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_whatever_bytes_are_sent_are_read_or_refused(data):
    try:
        parse_json(data)
    except Refused as error:
        assert error.status == 400
