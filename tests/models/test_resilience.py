import random

import pytest

from agentflow.errors import (
    ModelConnectionError,
    ModelError,
    ModelProtocolError,
    ModelRateLimitError,
    ModelStatusError,
    ModelTimeoutError,
    ModelTruncatedError,
)
from agentflow.models.failures import error_from_body
from agentflow.models.resilience import RetryPolicy
from agentflow.settings import Settings

POLICY = RetryPolicy()
PASSING = [
    ModelConnectionError("x"),
    ModelTimeoutError("x"),
    ModelTruncatedError("x"),
    ModelRateLimitError("x"),
    *(ModelStatusError("x", status=code) for code in (500, 502, 503, 504, 529)),
]
LASTING = [
    ModelError("x"),
    ModelProtocolError("x"),
    ModelStatusError("x"),
    *(ModelStatusError("x", status=code) for code in (400, 401, 403, 404, 422)),
]


def middle():
    return 0.5


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_passes_by_itself_is_tried_again_until_the_attempts_are_used_up(error):
    assert [POLICY.decide(error, attempt, random=middle) for attempt in (1, 2, 3, 4)] == [0.25, 0.5, None, None]


@pytest.mark.parametrize("error", LASTING, ids=lambda error: f"{type(error).__name__} {error.status}")
def test_what_does_not_pass_by_itself_is_never_tried_again(error):
    assert POLICY.decide(error, 1, random=middle) is None


def test_waits_are_random_from_nothing_up_to_a_bound_that_doubles_to_the_cap():
    policy = RetryPolicy(attempts=10, base=1.0, cap=5.0)
    bounds = [policy.decide(PASSING[0], attempt, random=lambda: 1.0) for attempt in range(1, 6)]
    assert bounds == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert policy.decide(PASSING[0], 4, random=lambda: 0.0) == 0.0
    waits = [policy.decide(PASSING[0], 4, random=random.Random(1).random) for _ in range(50)]
    assert all(wait is not None and 0 <= wait <= 5 for wait in waits)


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("1", 1.0),
        ("30", 30.0),
        ("3600", None),
        ("Mon, 30 Nov 2026 12:00:07 GMT", 7.0),
        ("Mon, 30 Nov 2026 13:00:00 GMT", None),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.25),
        ("soon", 0.25),
        ("-1", 0.25),
        ("0", 0.25),
        (None, 0.25),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_a_provider_that_says_when_to_come_back_is_taken_at_its_word(code, header, wait):
    headers = {"Date": "Mon, 30 Nov 2026 12:00:00 GMT"} | ({"Retry-After": header} if header else {})
    error = error_from_body(code, "application/json", b"{}", provider="acme", headers=headers)
    assert POLICY.decide(error, 1, random=middle) == wait


def test_the_settings_have_the_policys_fields_and_defaults():
    assert RetryPolicy(**dict(Settings().model.retries)) == POLICY
    assert RetryPolicy(**dict(Settings(model={"retries": {"base": "250ms"}}).model.retries)).base == 0.25


def test_no_number_of_attempts_overflows():
    assert RetryPolicy(attempts=10**6).decide(PASSING[0], 1000, random=middle) == 4.0
