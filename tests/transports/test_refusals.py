import json

import pytest

from agentflow import errors
from agentflow.transports.refusals import Refused, refusal, run_status, unknown_run, unknown_session

EXPECTED = [
    (errors.RequestError("x"), 400),
    (errors.ToolArgumentsError("x"), 400),
    (errors.ConfigError("x"), 400),
    (errors.RunNotFoundError("x"), 404),
    (errors.NotPendingError("x"), 409),
    (errors.SessionBusyError("x"), 409),
    (errors.OutcomePendingError("x"), 409),
    (errors.StoreError("x"), 503),
    (errors.AgentflowError("x"), 503),
    (Refused(413, "too_large", "x", {"Connection": "close"}), 413),
]


@pytest.mark.parametrize(("error", "status"), EXPECTED, ids=lambda value: type(value).__name__)
def test_each_error_has_its_status_and_all_have_one_form(error, status):
    answer = refusal(error)
    assert answer.status == status
    assert json.loads(answer.body) == {"error": {"kind": error.kind, "message": "x"}}
    assert ("Retry-After" in answer.headers) == (status == 503)


@pytest.mark.parametrize(("wait", "told"), [(0.2, "1"), (2.1, "3"), (None, None)])
def test_what_is_over_a_limit_may_be_asked_for_when_there_is_room_again(wait, told):
    answer = refusal(errors.RateLimitedError("x", retry_after=wait))
    assert (answer.status, answer.headers.get("Retry-After")) == (429, told)


def test_no_error_of_ours_is_a_fault_of_the_server():
    pending = [errors.AgentflowError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind not in (errors.RunFailed, errors.RunCancelled, Refused) and kind.__module__ == errors.__name__:
            assert refusal(kind("x")).status != 500


def test_how_a_run_ended_is_told_by_a_status():
    kinds = ("timeout", "shutdown", "user", "rate_limited", "unavailable", "status", "anything")
    assert [run_status(kind) for kind in kinds] == [504, 503, 409, 429, 503, 502, 502]


def test_ids_of_strangers_are_not_repeated_at_length():
    assert len(str(unknown_run("x" * 10_000))) < 300
    assert len(str(unknown_session("x" * 10_000))) < 300
