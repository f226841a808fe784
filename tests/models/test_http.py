import asyncio
import contextlib
import gzip
import logging
import random
import socket
import traceback

import aiohttp
import pytest
from pydantic import SecretStr

from agentflow import Agent
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
from agentflow.messages import Usage
from agentflow.models import http
from agentflow.models.http import Timeouts
from agentflow.models.openai import OpenAIModel
from agentflow.testing.provider import (
    Delay,
    FakeProvider,
    Reply,
    Reset,
    Stall,
    recorded,
    status,
)
from agentflow.testing.provider import text as answer
from tests.models.exchanges import ASK, DONE, KEY, STOP, WORD, ask, exchange, failure, model_at, text

# Addresses and keys


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
    good = ("http://user:hush@host/v1", "http://host/v1?key=hush", "http://host/v1#hush")
    bad = ("http://user:hush@h:port/v1", "ftp://u:hush@h", "user:hush@h", "http://u:p/hush@h", "ftp://h?k=hush")
    for base_url in good + bad:
        with pytest.raises(ConfigError) as caught:
            OpenAIModel("m", base_url=base_url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\0"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("m", api_key=SecretStr(key), provider="acme")
    assert "'acme'" in str(caught.value)
    assert key not in str(caught.value)


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
    for target in (f"http://u:{KEY}@other/", f"http://other/#{KEY}", f"http://other/{KEY[:12]}"):
        assert KEY[:12] not in str(await failure(status(307, b"", headers={"Location": target})))


async def test_no_error_for_a_body_shows_the_key():
    for content_type in ("application/json", "text/event-stream", f"text/{KEY}"):
        for body in (f'{{"choices":"{KEY}"}}', f"garbage {KEY[:12]}", f'{{"x":"{KEY}"}}'):
            error = await failure(recorded(f"data: {body}\n\n".encode(), content_type=content_type))
            assert isinstance(error, ModelError)
            assert KEY[:12] not in str(error)


async def test_other_bodies_are_protocol_errors():
    page = Reply(steps=(b"<html>hello</html>",), content_type="text/html")
    assert "answered with 'text/html' instead of a completion" in str(await failure(page))
    for body in (b"{}", b"not json", b"x" * 100):
        assert isinstance(await failure(recorded(body, content_type="application/json")), ModelProtocolError)
    assert isinstance(await failure(Reply(steps=(), status=204)), ModelStatusError)


async def test_an_endless_error_body_is_cut(monkeypatch):
    monkeypatch.setattr(http, "MAX_ERROR_BYTES", 100)
    error = await failure(Reply(steps=(*[b"x" * 50] * 5, Stall()), status=500, content_type="text/plain"))
    assert isinstance(error, ModelStatusError)
    assert error.status == 500


async def test_a_body_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 100)
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


async def test_a_server_without_tls_spoken_to_with_tls_is_a_connection_error():
    async with FakeProvider() as provider:
        with pytest.raises(ModelConnectionError, match="'acme' failed"):
            await ask(model_at(provider.base_url.replace("http://", "https://")))


@pytest.mark.abandons_threads  # names are looked up in one
async def test_an_address_under_no_name_is_named_by_errors_as_it_stands():
    async with FakeProvider(status(500), [WORD]) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, provider="custom")
        for words in ("answered 500: ", "ended the reply without a finish reason"):
            with pytest.raises(ModelError) as caught:
                await ask(model)
            assert str(caught.value).startswith(f"{provider.base_url!r} {words}")
    with pytest.raises(ModelConnectionError) as caught:
        await ask(model)
    assert "Cannot connect to host 127.0.0.1" in str(caught.value)
    assert "ssl" not in str(caught.value)


async def test_a_name_that_nobody_knows_is_a_connection_error(monkeypatch):
    def unknown(host, *_, **__):
        raise socket.gaierror(socket.EAI_NONAME, f"{host}: name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ModelConnectionError, match=r"'acme' failed.*nowhere\.invalid"):
        await ask(model_at("http://nowhere.invalid/v1"))


async def test_an_error_page_is_told_in_one_line():
    page = b"<!doctype html><html><head><title>502 Bad\nGateway</title></head><body>" + b"x" * 5000
    error = await failure(Reply(steps=(page,), status=502, content_type="text/html"))
    assert str(error) == "'acme' answered 502: an HTML page ('502 Bad Gateway')"
    assert error.retryable


async def test_garbage_is_an_error_of_ours_and_never_an_answer():
    pick = random.Random(20261130)
    for size in (1, 100, 10_000):
        error = await failure([pick.randbytes(size)])
        assert isinstance(error, ModelProtocolError | ModelTruncatedError)


async def test_an_event_that_is_too_large_ends_the_call_while_it_comes():
    async with FakeProvider([b"data: ", *[b"x" * 1024 * 1024] * 20, Stall()]) as provider:
        with pytest.raises(ModelProtocolError, match="event of more than"):
            await ask(model_at(provider))
        await provider.idle()


async def test_every_form_of_retry_after_is_read_or_read_over():
    date = {"Date": "Mon, 30 Nov 2026 12:00:00 GMT"}
    forms = [("1", 1.0), ("3600", 3600.0), ("soon", None), ("Mon, 30 Nov 2026 12:00:09 GMT", 9.0), (None, None)]
    for code in (429, 503):
        for header, seconds in forms:
            headers = date | ({"Retry-After": header} if header else {})
            assert (await failure(status(code, headers=headers))).retry_after == seconds


async def test_the_key_is_nowhere_to_be_seen_however_a_call_fails(caplog):
    caplog.set_level(logging.DEBUG)
    told = f'{{"error": {{"message": "wrong key {KEY} (Bearer {KEY})", "code": 401}}}}'.encode()
    scripts = [
        Reply(steps=(told,), status=401, content_type="application/json", headers={"X-Key": KEY}),
        Reply(steps=(KEY.encode(),), status=500, content_type="text/plain"),
        Reply(steps=(told,), content_type="application/json"),
        [WORD, b"data: " + told + b"\n\n"],
        status(302, headers={"Location": f"http://h/{KEY}?key={KEY}"}),
        [WORD, Reset()],
        [Reset()],
        recorded(b"{}", content_type="application/json"),
    ]
    seen = []
    async with FakeProvider(*scripts) as provider:
        model = model_at(provider)
        for _ in scripts:
            with pytest.raises(ModelError) as caught:
                await consume(model)
            seen += [repr(caught.value), *traceback.format_exception(caught.value)]
        seen += [repr(model), str(model), repr(vars(model)), repr(model.endpoint.__dict__)]
        await model.aclose()
    assert KEY not in "\n".join((*seen, caplog.text))
    assert "wrong key ***" in seen[0]


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


@pytest.fixture
def many_files():
    """Room for both ends of a thousand connections, where the machine allows it."""
    resource = pytest.importorskip("resource", reason="this system has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if wanted < 2500:
        pytest.skip("too few open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_calls_at_once_all_connect_and_run_beside_each_other(many_files):
    async with FakeProvider(respond=lambda _: Reply(steps=(WORD, Stall()))) as provider:
        model = model_at(provider)
        calls = [model.stream(ASK) for _ in range(1000)]
        first = await asyncio.gather(*(anext(call) for call in calls))
        assert {chunk.text for chunk in first} == {"word "}
        assert provider.active == 1000
        await asyncio.gather(*(call.aclose() for call in calls))
        await provider.idle()
        await model.aclose()


async def test_a_thousand_runs_at_once_have_their_answer(many_files):
    async with FakeProvider(respond=lambda _: answer("ok")) as provider:
        model = model_at(provider)
        async with Agent(model=model) as agent:
            replies = await asyncio.gather(*(agent.chat("hello") for _ in range(1000)))
        await model.aclose()
    assert {reply.text for reply in replies} == {"ok"}


@pytest.mark.virtual_time
async def test_over_its_bound_of_connections_a_call_waits_and_no_limit_of_time_counts_that():
    async with FakeProvider(respond=lambda _: Reply(steps=(Delay(25), WORD, STOP, DONE))) as provider:
        model = model_at(provider, timeouts=LIMITS, connections=2)
        replies = await asyncio.gather(*(consume(model) for _ in range(30)))
        assert len(replies) == 30
        assert provider.connections == 2
        assert asyncio.get_running_loop().time() >= 30 / 2 * 25, "two at a time"
        await model.aclose()


async def test_every_end_of_a_call_gives_its_place_to_the_next():
    endings = ([Reset()], [WORD, Reset()], status(500), status(302), recorded(b"{}"), [WORD, STOP, DONE])
    async with FakeProvider(*endings, [WORD, Stall()], [Stall()], answer("ok")) as provider:
        model = model_at(provider, connections=1)
        for _ in endings:
            with contextlib.suppress(ModelError):
                await consume(model)
        left = model.stream(ASK)
        await anext(left)
        await left.aclose()
        async with asyncio.TaskGroup() as group:
            cancelled = group.create_task(consume(model))
            await provider.received(len(endings) + 2)
            cancelled.cancel()
        assert text(await ask(model)) == "ok"


async def test_only_a_few_connections_are_opened_at_a_time(monkeypatch):
    opening, most = 0, 0
    create = asyncio.get_running_loop().create_connection

    async def counted(*args, **options):
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        try:
            return await create(*args, **options)
        finally:
            opening -= 1

    monkeypatch.setattr(http, "MAX_ATTEMPTS", 5)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", counted)
    async with FakeProvider(respond=lambda _: answer("ok")) as provider:
        model = model_at(provider)
        await asyncio.gather(*(consume(model) for _ in range(40)))
        await model.aclose()
    assert most == 5


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
            model.endpoint.base_url = provider.base_url
            try:
                return text([chunk async for chunk in model.stream(ASK)])
            finally:
                await model.aclose()

    assert [asyncio.run(once()), asyncio.run(once())] == ["ok", "ok"]
    assert model.endpoint._pools == {}


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
        ours = next(ours for theirs, ours in http._TRANSLATION if issubclass(kind, theirs))
        assert issubclass(ours, AgentflowError)
    reached = {ours for _, ours in http._TRANSLATION}
    assert reached == {ModelTimeoutError, ModelTruncatedError, ModelConnectionError, ModelProtocolError}


async def test_requests_carry_the_headers_of_their_task_besides_the_endpoints_own():
    async with FakeProvider(answer("one"), answer("two")) as provider:
        model = model_at(provider)
        token = http.REQUEST_HEADERS.set({"traceparent": "of this task"})
        await ask(model)
        http.REQUEST_HEADERS.reset(token)
        await ask(model)
        await model.aclose()
        first, second = (request.headers for request in provider.requests)
        assert first["traceparent"] == "of this task"
        assert first["Authorization"] == second["Authorization"]
        assert "traceparent" not in second
