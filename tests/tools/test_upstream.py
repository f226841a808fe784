"""The codes and headers in which services say that they are down, or when to come back."""

import email.message
import enum
import http
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from multidict import CIMultiDict

from agentflow.tools.upstream import is_rate_limit, retry_after, server_error

NOW = "Mon, 30 Nov 2026 10:00:00 GMT"
IN_TWO_SECONDS = "Mon, 30 Nov 2026 10:00:02 GMT"


def kind(value):
    return type(value).__name__  # some numbers here have no text


class Code(enum.StrEnum):
    BUSY = "RATE_LIMITED"


@pytest.mark.parametrize(
    "code",
    [
        429, "429", " 429 ", http.HTTPStatus.TOO_MANY_REQUESTS, Code.BUSY, "TOO_MANY_REQUESTS", "Too Many Requests",
        "TooManyRequests", "TooManyRequestsException", "rate_limit", "rate-limited", "RateLimitError",
        "RateLimitExceeded", "rate_limit_exceeded", "RateLimitExceededError", "ThrottlingException", "Throttling",
        "Throttled", "RESOURCE_EXHAUSTED", "ResourceExhausted", "RequestLimitExceeded",
    ],
)  # fmt: skip
def test_a_rate_limit_is_known_however_it_is_written(code):
    assert is_rate_limit(code)


@pytest.mark.parametrize(
    "code",
    [
        None, True, 428, 503, 4290, -429, 429.0, 10**6000, -(10**6000), "", "4290", "4 2 9 0", "error", "Exception",
        "the rate limit is 5 per second", "RateLimitInfo", "no_rate_limit", b"429", ["429"], {"429": 1},
        "429" + " " * 200, "_" * 100_000,
    ],
    ids=kind,
)  # fmt: skip
def test_nothing_else_is_a_rate_limit(code):
    assert not is_rate_limit(code)


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ([500], 500),
        ([599], 599),
        (["503"], 503),
        ([" 503 "], 503),
        ([http.HTTPStatus.BAD_GATEWAY], 502),
        ([None, "E_DOWN", 404, 529, 500], 529),
        ([], None),
        ([499], None),
        ([600], None),
        ([True], None),
        ([5030], None),
        ([10**6000], None),
        ([-503], None),
        ([503.0], None),
        (["5x3", "50", "5030", "٥٠٣", "error 503", b"503", ["503"]], None),
    ],
    ids=kind,
)
def test_a_service_that_is_down_is_known_by_a_status_of_500_to_599(codes, status):
    assert server_error(codes) == status


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (7, 7.0),
        (0, 0.0),
        (0.5, 0.5),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0.5", 0.5),
        ("3600", 3600.0),
        (IN_TWO_SECONDS, 2.0),
        ("Mon, 30 Nov 2026 09:00:00 GMT", 0.0),
        ("Mon, 30 Nov 2026 11:00:02 +0100", 2.0),
        (None, None),
        ("", None),
        ("soon", None),
        (-1, None),
        ("-1", None),
        ("1e3", None),
        ("٧", None),
        ("²", None),
        ("9" * 5000, None),
        (10**6000, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        (b"7", None),
        ([7], None),
        ("Mon, 30 Nov 2026 99:00:00 GMT", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 30 Nov 2026 10:00:02 +99999999999999", None),
        ("Mon, 30 Nov 2026 10:00:02", None),
        ("Mon, 30 Nov 2026 10:00:02 GMT" + " x" * 100, None),
    ],
    ids=kind,
)
def test_the_wait_is_seconds_or_a_date_and_anything_else_is_no_wait_that_was_asked_for(value, seconds):
    assert retry_after({"Retry-After": value, "Date": NOW}) == seconds


@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER", "retry_after", "retryAfter"])
def test_the_name_may_be_written_as_in_headers_or_as_in_json(name):
    assert retry_after({"other": 1, 5: 2, name: 7}) == 7.0


def test_headers_of_every_library_are_read():
    message = email.message.Message()
    message["Retry-After"] = "7"

    assert retry_after(message) == 7.0
    assert retry_after(CIMultiDict({"retry-after": "7"})) == 7.0


def test_a_date_alone_is_taken_relative_to_now():
    day = timedelta(days=1)
    tomorrow = format_datetime(datetime.now(UTC) + day, usegmt=True)

    assert 0 < retry_after({"Retry-After": tomorrow}) <= day.total_seconds()
    assert retry_after({"Retry-After": "Mon, 30 Nov 1998 10:00:00 GMT"}) == 0.0


def test_a_date_beside_one_that_cannot_be_is_none():
    assert retry_after({"Retry-After": IN_TWO_SECONDS, "Date": "today"}) is None
    assert retry_after({"Retry-After": IN_TWO_SECONDS, "Date": "Mon, 30 Nov 2026 10:00:00"}) is None


class Hostile:
    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("fields", [None, 5, "Retry-After", [("Retry-After", 7)], {}, Hostile(), object(), dict])
def test_what_is_no_header_says_nothing(fields):
    assert retry_after(fields) is None
