"""What a failure means: known from values, from exceptions of any library, and from what they were raised from."""

import asyncio
import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import aiohttp
import pytest

from agentflow.errors import (
    AgentflowError,
    ModelConnectionError,
    ModelRateLimitError,
    ModelStatusError,
    StoreError,
    ToolArgumentsError,
    ToolError,
    ToolFailedError,
    ToolTimeoutError,
)
from agentflow.testing import FakeProvider
from agentflow.testing.provider import Reply, Reset, status
from agentflow.tools.execution import ToolContext, execute
from agentflow.tools.failures import described, judge
from agentflow.tools.honesty import ReportedFailureError, check
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry, tool

CONTEXT = ToolContext(run_id="r", session_id="s", user_id=None, call_id="c", tool="weather")


def made(function=None, **options):
    (found,) = ToolRegistry([tool(name="weather", **options)(function or (lambda: None))])
    return found


WEATHER = made()


def judged(error):
    found = judge(error, WEATHER)
    return found.cause, found.status, found.error.kind


def with_fields(**fields):
    error = Exception("told")
    vars(error).update(fields)
    return error


def of_class(name, base=Exception):
    return type(name, (base,), {})("told")


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def raised_while(error, handled):
    error.__context__ = handled
    return error


def raised_from_none(error, handled):
    error.__context__, error.__suppress_context__ = handled, True
    return error


def value(data):
    with pytest.raises(ReportedFailureError) as caught:
        check(data, data, None)
    return caught.value


class Stubborn(Exception):
    @property
    def status(self):
        raise RuntimeError("not yet")

    status_code = 429


class Down(ToolError):
    status = 503


class Quota(ToolError):
    kind = "quota"
    retryable = True


RATE_LIMIT = ("rate_limit", "rate_limited", "rate_limited")
UPSTREAM = ("upstream", "degraded", "upstream")
TIMEOUT = ("timeout", "error", "failed")
TRANSIENT = ("transient", "error", "failed")
NOTHING = ("", "error", "failed")

CAUSES = [
    # values
    (value({"status": 429}), RATE_LIMIT),
    (value({"error": {"code": "TOO_MANY_REQUESTS"}}), RATE_LIMIT),
    (value({"status": 503, "code": "RATE_LIMIT_EXCEEDED"}), RATE_LIMIT),
    (value({"status": 500}), UPSTREAM),
    (value({"status_code": "503"}), UPSTREAM),
    (value({"statusCode": 599}), UPSTREAM),
    (value({"code": 502, "error": "bad gateway"}), UPSTREAM),
    (value({"error": {"code": 503, "message": "down"}}), UPSTREAM),
    (value({"ok": False, "error": {"status": 500}}), UPSTREAM),
    (value({"status": 404}), NOTHING),
    (value({"error": "no such order"}), NOTHING),
    (value({"error": "x", "errno": 503}), NOTHING),
    (value({"ok": False, "code": 500}), NOTHING),  # a code beside no message may be the code of anything
    # exceptions with a status, their own or their response's
    (with_fields(status=429), RATE_LIMIT),
    (with_fields(status_code=429), RATE_LIMIT),
    (with_fields(code=429), RATE_LIMIT),
    (with_fields(code="rate_limit_exceeded"), RATE_LIMIT),
    (with_fields(response=SimpleNamespace(status=429)), RATE_LIMIT),
    (with_fields(response=SimpleNamespace(status_code=429)), RATE_LIMIT),
    (with_fields(status=500), UPSTREAM),
    (with_fields(status_code=529), UPSTREAM),
    (with_fields(code=503), UPSTREAM),
    (with_fields(response=SimpleNamespace(status=502)), UPSTREAM),
    (with_fields(response=SimpleNamespace(status_code=599)), UPSTREAM),
    (with_fields(status=404, code=503), UPSTREAM),
    (with_fields(status=404), NOTHING),
    (with_fields(errno=503), NOTHING),
    (with_fields(response=None), NOTHING),
    (with_fields(response={"status": 503}), NOTHING),
    (with_fields(code=lambda: 503), NOTHING),
    (OSError(503, "told"), NOTHING),
    (Stubborn(), RATE_LIMIT),
    (Down("told"), UPSTREAM),
    (SystemExit(429), NOTHING),
    (SystemExit(500), NOTHING),
    # names of classes
    (of_class("RateLimitError"), RATE_LIMIT),
    (of_class("TooManyRequests"), RATE_LIMIT),
    (of_class("ThrottlingException"), RATE_LIMIT),
    (of_class("ShopLimit", type("TooManyRequestsException", (Exception,), {})), RATE_LIMIT),
    (of_class("LimitInfo"), NOTHING),
    # time
    (ToolTimeoutError("told"), ("timeout", "timeout", "timeout")),
    (TimeoutError("told"), TIMEOUT),
    (raised_from(OSError("told"), TimeoutError()), TIMEOUT),
    (raised_while(ValueError("told"), TimeoutError()), TIMEOUT),
    # connections
    (ConnectionRefusedError("told"), TRANSIENT),
    (ConnectionResetError("told"), TRANSIENT),
    (ConnectionAbortedError("told"), TRANSIENT),
    (BrokenPipeError("told"), TRANSIENT),
    (socket.gaierror(-2, "told"), TRANSIENT),
    (raised_from(ValueError("told"), raised_while(OSError(), ConnectionResetError())), TRANSIENT),
    (raised_while(raised_from(ValueError("told"), KeyError()), ConnectionResetError()), NOTHING),
    (raised_from_none(ValueError("told"), ConnectionResetError()), NOTHING),
    (OSError("told"), NOTHING),
    (FileNotFoundError("told"), NOTHING),
    # our own
    (ModelConnectionError("told"), TRANSIENT),
    (ModelRateLimitError("told"), RATE_LIMIT),
    (ModelStatusError("told", status=503), UPSTREAM),
    (ModelStatusError("told", status=400), NOTHING),
    (StoreError("told"), TRANSIENT),
    (Quota("told"), ("transient", "error", "quota")),
    (AgentflowError("told"), NOTHING),
    (ToolFailedError("told"), NOTHING),
    (ToolError("told"), ("", "error", "tool")),
    (raised_from(ToolArgumentsError("told"), TimeoutError()), ("", "invalid_arguments", "arguments")),
    # groups
    (ExceptionGroup("g", [ExceptionGroup("h", [with_fields(status=429)])]), RATE_LIMIT),
    (BaseExceptionGroup("g", [TimeoutError()]), TIMEOUT),
    (ExceptionGroup("g", [with_fields(status=429), ValueError("told")]), NOTHING),
    # what says nothing about time or services
    (ValueError("429 Too Many Requests: 503"), NOTHING),
    (raised_from(ValueError("told"), with_fields(status=429)), NOTHING),
    (raised_from(ValueError("told"), with_fields(status=503)), NOTHING),
    (asyncio.CancelledError(), NOTHING),
    (KeyboardInterrupt(), NOTHING),
]


@pytest.mark.parametrize(("error", "meaning"), CAUSES, ids=lambda item: type(item).__name__)
def test_a_failure_has_a_meaning(error, meaning):
    assert judged(error) == meaning


def test_a_chain_of_exceptions_without_an_end_is_not_followed_for_ever():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert judged(first) == NOTHING


LATER = {"Retry-After": "7"}
WAITS = [
    (value({"status": 429, "retry_after": 7}), 7.0),
    (value({"status": 429, "retryAfter": "7"}), 7.0),
    (value({"status": 429, "Retry-After": 7.0}), 7.0),
    (value({"status": 429, "headers": LATER}), 7.0),
    (value({"error": {"code": 429, "retry_after": 7}}), 7.0),
    (value({"error": {"code": 429, "headers": LATER}}), 7.0),
    (value({"status": 503, "retry_after": 7}), 7.0),
    (value({"status": 429, "retry_after": "soon", "headers": LATER}), 7.0),
    (
        value(
            {
                "status": 429,
                "headers": {"Retry-After": "Mon, 30 Nov 2026 10:00:07 GMT", "Date": "Mon, 30 Nov 2026 10:00:00 GMT"},
            }
        ),
        7.0,
    ),
    (value({"status": 429}), None),
    (value({"status": 429, "retry_after": "soon"}), None),
    (value({"status": 429, "retry_after": -7}), None),
    (value({"status": 404, "retry_after": 7}), None),
    (with_fields(status=429, retry_after=7), 7.0),
    (with_fields(status=429, retry_after="7"), 7.0),
    (with_fields(status=429, headers=LATER), 7.0),
    (with_fields(response=SimpleNamespace(status_code=429, headers=LATER)), 7.0),
    (with_fields(status=503, headers=LATER), 7.0),
    (with_fields(status=429, retry_after=lambda: 7, headers=LATER), 7.0),
    (with_fields(status=429, headers=None), None),
    (with_fields(status=429, headers=["Retry-After"]), None),
    (with_fields(status=429, retry_after="soon"), None),
    (with_fields(status=404, retry_after=7), None),
    (with_fields(retry_after=7), None),
    (ModelRateLimitError("told", retry_after=7.0), 7.0),
    (ExceptionGroup("g", [with_fields(status=429, retry_after=7)]), 7.0),
]


@pytest.mark.parametrize(("error", "seconds"), WAITS, ids=lambda item: type(item).__name__)
def test_when_the_service_wants_to_be_called_again_is_read_wherever_it_stands(error, seconds):
    assert judge(error, WEATHER).retry_after == seconds


def test_a_service_that_is_down_is_told_in_words_that_leave_nothing_to_invent():
    found = judge(with_fields(status=503), WEATHER)

    assert found.result == (
        "[degraded]\nThe service behind weather answered with an error (status 503), so there is no result."
        " Do not invent one; say that this is not available now."
    )
    assert found.error.message == "Exception: told"


def test_a_tool_has_its_own_words_for_a_service_that_is_down_and_for_nothing_else():
    own = made(degraded="The weather is not known now.")

    assert judge(value({"status": 500}), own).result == "[degraded]\nThe weather is not known now."
    assert judge(with_fields(status=429), own).result == "[error: rate_limited]\nException: told"
    assert judge(TimeoutError("told"), own).result == "[error: failed]\nTimeoutError: told"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (with_fields(status=429), "[error: rate_limited]"),
        (ToolTimeoutError("told"), "[timeout]"),
        (TimeoutError("told"), "[error: failed]"),
        (ToolArgumentsError("told"), "[error: arguments]"),
        (Quota("told"), "[error: quota]"),
        (KeyError("told"), "[error: failed]"),
    ],
)
def test_the_first_line_is_the_status_and_the_second_what_happened(error, line):
    found = judge(error, WEATHER)
    assert found.result == f"{line}\n{described(error)}"
    assert found.error.message == described(error)


def test_what_is_told_is_one_line_of_at_most_500_characters_without_keys():
    told = described(ValueError("one\ntwo \x1b[31m token=abcdef123 " + "x" * 10_000))

    assert told.startswith("ValueError: one two [31m token=*** xxx")
    assert len(told) == 500


def test_of_a_group_the_first_exceptions_are_told():
    group = ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b")]), OSError("c"), OSError("d")])

    assert described(group) == "ValueError: a; KeyError: 'b'; OSError: c"


# Real clients of a real server


@pytest.fixture
def pools():
    made = Pools()
    yield made
    made.close()


def urllib_tool(address):
    def weather():
        try:
            with urllib.request.urlopen(urllib.request.Request(address, data=b"{}")) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    return made(weather)


def aiohttp_tool(address):
    async def weather():
        async with aiohttp.ClientSession() as session, session.post(address, json={}) as response:
            response.raise_for_status()
            return await response.text()

    return made(weather)


def returning_tool(address):
    async def weather():
        async with aiohttp.ClientSession() as session, session.post(address, json={}) as response:
            return {"status": response.status, "headers": dict(response.headers), "body": await response.json()}

    return made(weather)


async def call(found, pools):
    return await execute(found, {}, CONTEXT, on_delta=lambda data: None, pools=pools)


@pytest.mark.parametrize("client", [urllib_tool, aiohttp_tool, returning_tool])
async def test_what_real_clients_meet_is_known(client, pools):
    replies = [status(429, headers=LATER), status(429), status(503, headers=LATER), status(404)]
    async with FakeProvider(*replies, strict=False) as server:
        found = client(f"{server.base_url}/chat/completions")
        outcomes = [await call(found, pools) for _ in replies]

    assert [(outcome.cause, outcome.retry_after, outcome.status) for outcome in outcomes] == [
        ("rate_limit", 7.0, "rate_limited"),
        ("rate_limit", None, "rate_limited"),
        ("upstream", 7.0, "degraded"),
        ("", None, "error"),
    ]


@pytest.mark.parametrize("client", [urllib_tool, aiohttp_tool])
async def test_a_connection_that_is_refused_may_pass(client, pools):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # held but not listened on: nobody answers there
        outcome = await call(client(f"http://127.0.0.1:{held.getsockname()[1]}/x"), pools)

    assert (outcome.cause, outcome.status) == ("transient", "error")


@pytest.mark.parametrize("client", [urllib_tool, aiohttp_tool])
async def test_a_connection_that_breaks_may_pass(client, pools):
    async with FakeProvider(Reply(steps=(Reset(),)), strict=False) as server:
        outcome = await call(client(f"{server.base_url}/chat/completions"), pools)

    assert (outcome.cause, outcome.status) == ("transient", "error")
