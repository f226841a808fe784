"""What comes from outside and cannot be: on every route and for every command it is refused, and nothing breaks."""

import asyncio
import gzip
import json
from contextlib import AsyncExitStack
from urllib.parse import quote, quote_from_bytes, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from agentflow import Agent, InMemoryStore, tool
from agentflow.events import State
from agentflow.models.base import CallRequest, ModelChunk
from agentflow.transports import adapter
from tests.transports.every_route import COMMANDS, EXAMPLES, ROUTES, SENT, is_refusal, name_of, path_of, target
from tests.transports.served import HandClock, served
from tests.transports.sockets import connected
from tests.transports.test_bodies import BAD_IDS, BAD_JSON

JSON_TYPE = {"Content-Type": "application/json"}
ABOUT_SOMETHING = [route for route in ROUTES if "{" in route.path]
ASKED = [route for route in ROUTES if route.query is not None]

# What no field takes, or only one that takes anything.
BAD_VALUES = [
    None, True, 0, -1, 10**30, 1.5, "", "\0\x1b[2J\r\n\u2028\u202e", "x" * 300_000, [], [None], {}, {"a": {}}, [[]],
]  # fmt: skip


async def echo(request):
    yield ModelChunk(text=request.messages[-1].text or "nothing", finish_reason="stop")


def talker():
    return Agent(model=echo)


async def sent(here, method, target, **options):
    """The status and, of a refusal, the body; a stream is left after its head."""
    async with here.client.request(method, URL(here.base + target, encoded=True), **options) as response:
        if response.status < 400:
            return response.status, None
        return response.status, await response.json()


async def refused(here, method, target, **options):
    """The status with which a request is refused, which it must be."""
    status, body = await sent(here, method, target, **options)
    assert 400 <= status < 500, (status, method, target[:100], str(options)[:200])
    assert is_refusal(target, body), body
    return status


def needs_a_body(route):
    return any(field.is_required() for field in route.body.model_fields.values())


@pytest.mark.parametrize("route", SENT, ids=name_of)
async def test_a_body_that_is_no_json_object_is_refused(route):
    async with served(talker()) as here:
        for name, data in BAD_JSON.items():
            if data or needs_a_body(route):
                status = await refused(here, "POST", target(route), data=data, headers=JSON_TYPE)
                assert status == 400, name
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", "*/*"):
            status = await refused(here, "POST", target(route), data=b'{"a": 1}', headers={"Content-Type": kind})
            assert status == 415, kind
        bomb = gzip.compress(bytes(64 * 2**20), compresslevel=1)
        headers = JSON_TYPE | {"Content-Encoding": "gzip"}
        assert await refused(here, "POST", target(route), data=bomb, headers=headers) == 415
        assert len(here.server.presence) == 0


@pytest.mark.parametrize("route", SENT, ids=name_of)
async def test_a_body_that_is_too_large_or_does_not_end_is_refused(route, monkeypatch):
    def head(line):
        lines = (f"POST {target(route)} HTTP/1.1", "Host: localhost", "Content-Type: application/json", line, "", "")
        return "\r\n".join(lines).encode()

    async def status(data):
        answer = await here.raw(data)
        assert is_refusal(route.path, json.loads(answer.partition(b"\r\n\r\n")[2]))
        return int(answer[9:12])

    async with served(talker(), max_body=2**20) as here:
        for length in (10 * 2**20, 10**17):
            assert await status(head(f"Content-Length: {length}") + b"{") == 413
        piece = b"%x\r\n%s\r\n" % (2**17, b" " * 2**17)
        assert await status(head("Transfer-Encoding: chunked") + piece * 9) == 413
        monkeypatch.setattr("agentflow.transports.bodies.BODY_SECONDS", 0.01)
        assert await status(head("Content-Length: 100") + b"{") == 408
        assert await status(head("Transfer-Encoding: chunked") + b"1\r\n{\r\n") == 408


def fields_of(model):
    """The names that a field of a body may have."""
    for name, field in model.model_fields.items():
        yield from (choice for choice in getattr(field.validation_alias, "choices", (field.alias or name,)))


@pytest.mark.parametrize("route", SENT, ids=name_of)
async def test_a_field_of_a_body_that_cannot_be_is_refused_and_nothing_fails(route):
    async with served(talker()) as here:
        for name in (*fields_of(route.body), "surplus", "__class__"):
            for value in BAD_VALUES:
                body = EXAMPLES[route.body] | {name: value}
                status, told = await sent(here, "POST", target(route), json=body)
                assert status < 500, (name, str(value)[:80])
                assert status < 400 or is_refusal(route.path, told), told
            without = {other: value for other, value in EXAMPLES[route.body].items() if other != name}
            assert (await sent(here, "POST", target(route), json=without))[0] < 500
        assert (await here.json("/healthz"))[0] == 200


@pytest.mark.parametrize("route", ASKED, ids=name_of)
async def test_a_field_of_a_query_that_cannot_be_is_refused_and_nothing_fails(route):
    body = {"json": EXAMPLES[route.body]} if route.body else {}
    async with served(talker()) as here:
        for name in fields_of(route.query):
            for value in ("", "-1", "1e3", "9" * 5000, "null", "\0", "\r\nSet-Cookie: a=b", "\ud800", "*", "🎈"):
                status, told = await sent(here, route.method, target(route, **{name: value}), **body)
                assert status < 500, (name, value)
                assert status < 400 or is_refusal(route.path, told), told
        assert await refused(here, route.method, target(route, surplus=1), **body) == 400
        twice = target(route, user_id="a") + "&user_id=b"
        assert await refused(here, route.method, twice, **body) == 400


@pytest.mark.parametrize("route", ABOUT_SOMETHING, ids=name_of)
async def test_ids_that_cannot_be_are_unknown(route):
    body = {"json": EXAMPLES[route.body]} if route.body else {}
    async with served(talker()) as here:
        for given_id in (*(str(one) for one in BAD_IDS if len(str(one)) < 5000), "x" * 5000):
            for about in {quote(given_id, safe=""), quote(given_id, safe="/%")}:
                if about not in (".", "..", "../x", "/"):  # which clients leave out of an address
                    assert await refused(here, route.method, target(route, about), **body) in (400, 404)
        for about in ("%FF%FE", "%C0%AF", "%ED%A0%80", "%E2%80%A8", "x" * 10_240):  # the last aiohttp does not read
            text = f"{route.method} {target(route, about)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
            answer = await here.raw(f"{text}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode())
            assert answer[9:10] == b"4", answer[:60]


@pytest.mark.parametrize(
    "name", ["Last-Event-ID", "Idempotency-Key", "Authorization", "Origin", "Sec-Fetch-Site", "traceparent"]
)
async def test_headers_that_cannot_be_are_refused_or_left_alone(name):
    async with served(talker()) as here:
        for value in ("", " ", "\xff\xfe", "x" * 4000, "a:b", "%00", "null", "00-" + "0" * 32 + "-x-01"):
            for route in ROUTES:
                options = {"json": EXAMPLES[route.body]} if route.body else {}
                status, told = await sent(here, route.method, target(route), headers={name: value}, **options)
                assert status < 500, (route.path, value)
                assert status < 400 or is_refusal(route.path, told), (route.path, value, told)


# -- whatever is sent --------------------------------------------------------------------------------------

WAITING = "waiting"  # stands for the run that waits for a decision on call "c"
WORDS = st.sampled_from(["r", "c", "t", "agent", "payer", "user", "hello", WAITING])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | WORDS
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def fitting(schema, definitions):
    """Values that a JSON Schema of pydantic's allows, more or less."""
    if "$ref" in schema:
        return st.deferred(lambda: fitting(definitions[schema["$ref"].rpartition("/")[2]], definitions))
    if "anyOf" in schema:
        return st.one_of(*(fitting(choice, definitions) for choice in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if "properties" in schema:
        return objects(schema, definitions)
    if schema.get("type") == "array":
        return st.lists(fitting(schema["items"], definitions), min_size=schema.get("minItems", 0), max_size=3)
    return BY_TYPE.get(schema.get("type"), ANYTHING)


BY_TYPE = {
    "null": st.none(),
    "boolean": st.booleans(),
    "integer": st.integers(0, 100),
    "string": WORDS | st.text(max_size=20),
    "object": st.dictionaries(st.text(max_size=8), ANYTHING, max_size=3),
}


def objects(schema, definitions):
    each = {name: fitting(its, definitions) for name, its in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: its for name, its in each.items() if name in required},
        optional={name: its for name, its in each.items() if name not in required},
    )


def of_model(model):
    """Objects that a model takes, or nearly."""
    schema = model.model_json_schema()
    return st.just(EXAMPLES[model]) | fitting(schema, schema.get("$defs", {})) if model in EXAMPLES else st.just({})


@st.composite
def mutated(draw, values):
    """An object of which a part may be another, missing, or new."""
    value = json.loads(json.dumps(draw(values)))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = value
        while isinstance(place, dict) and place:
            name = draw(st.sampled_from(sorted(place)))
            if not isinstance(place[name], dict) or draw(st.booleans()):
                break
            place = place[name]
        else:
            name = draw(st.text(max_size=6))
        if isinstance(place, dict):
            if name in place and draw(st.booleans()):
                del place[name]
            else:
                place[name] = draw(ANYTHING)
    return value


@st.composite
def texts(draw, values):
    """The bytes of an object as it is sent, or of something that was one."""
    data = json.dumps(draw(mutated(values))).encode()
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    return data


IDS = st.sampled_from([WAITING, WAITING, "t", "..", "%00", "x" * 129]) | st.binary(min_size=1, max_size=6).map(
    quote_from_bytes
)
HEADERS = st.dictionaries(
    st.sampled_from(["Last-Event-ID", "Idempotency-Key", "Accept", "traceparent"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=12)
    | st.sampled_from([f"{WAITING}:1", f"{WAITING}:99", "r"]),
    max_size=1,
)


@st.composite
def requests(draw):
    """A request to any route: its method, its address, and what goes with it."""
    route = draw(st.sampled_from(ROUTES))
    address = path_of(route, draw(IDS))
    options = {"headers": draw(HEADERS)}
    if route.query is not None:
        query = draw(mutated(of_model(route.query)))
        address += "?" + urlencode({name: in_a_query(query[name]) for name in query}, errors="surrogatepass")
    if route.body is not None:
        options["data"] = draw(st.one_of(*[texts(of_model(route.body))] * 4, st.binary(max_size=40)))
        options["headers"] |= JSON_TYPE
    return route.method, address, options


def in_a_query(value):
    return value if isinstance(value, str) else json.dumps(value)


@st.composite
def commands(draw):
    """A message of a WebSocket's client: a command, or nearly."""
    kind = draw(st.sampled_from(sorted(COMMANDS)))
    schema = adapter.COMMANDS[kind].model_json_schema()
    usual = COMMANDS[kind] | ({"run_id": WAITING} if "run_id" in COMMANDS[kind] else {})
    fields = draw(mutated(st.just(usual) | fitting(schema, schema.get("$defs", {}))))
    return draw(st.just(json.dumps({"type": kind, **fields})) | st.text(max_size=20).filter(is_text))


def is_text(text):
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


@tool(approval=True)
def pay(amount: int = 5) -> str:
    """Pay."""
    return f"paid {amount}"


async def payer(request):
    """Asks to pay, and says so when it is decided."""
    if request.messages[-1].role == "user":
        yield ModelChunk(calls=(CallRequest(id="c", name="pay", arguments="{}"),), finish_reason="tool_calls")
    else:
        yield ModelChunk(text="Well.", finish_reason="stop")


async def waiting(here, run_id):
    """The run that waits: a new one, if it does not any more."""
    chain = here.server.chain(run_id)
    if chain is not None and chain.state is State.SUSPENDED:
        return run_id
    status, body = await here.posted("/api/agent/chat", {"input": "x", "agent": "payer"})
    assert status == 202
    return body["run_id"]


def checking(caplog, examples, step, strategy):
    """Let `step(here, run_id, drawn)` do so many examples on one server, which must fail in none and be well after all.

    The run waits for a decision each time.
    """
    store, clock, run_id = InMemoryStore(), HandClock(), ""
    agents = Agent(model=echo, store=store), Agent(name="payer", model=payer, tools=[pay], store=store)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        here = runner.run(stack.enter_async_context(served(*agents, clock=clock)))

        @given(strategy)
        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        def check(drawn):
            runner.run(one(drawn))

        async def one(drawn):
            nonlocal run_id
            clock.advance(1)
            run_id = await waiting(here, run_id)
            await step(here, run_id, drawn)

        try:
            check()
            assert runner.run(here.json("/healthz"))[0] == 200
        finally:
            runner.run(stack.aclose())
            runner.run(store.aclose())
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@pytest.mark.timeout(300)
def test_whatever_is_sent_to_any_route_is_served_or_refused(caplog):
    async def step(here, run_id, request):
        method, address, options = request
        headers = {name: value.replace(WAITING, run_id) for name, value in options["headers"].items()}
        status, body = await sent(here, method, address.replace(WAITING, run_id), **options | {"headers": headers})
        assert status < 500
        assert status < 400 or is_refusal(address, body)

    checking(caplog, 1700, step, requests())


@pytest.mark.timeout(300)
def test_whatever_is_told_to_a_socket_is_done_or_refused(caplog):
    async def step(here, run_id, text):
        async with connected(here) as client:
            await client.socket.send_str(text.replace(f'"{WAITING}"', f'"{run_id}"'))
            told = await client.until("ack", "refused")
            if told["type"] == "refused":
                assert is_refusal("", told)
                assert told["error"]["kind"] != "internal"

    checking(caplog, 300, step, commands())
