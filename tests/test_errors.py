import inspect
import weakref

import pytest

from agentflow import errors
from agentflow.errors import AgentflowError, ModelStatusError, RateLimitedError, RunCancelled, RunFailed, again

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, AgentflowError)]


def test_all_errors_are_in_one_tree_and_say_what_they_are():
    for cls in CLASSES:
        assert cls is AgentflowError or cls.__mro__[1] in CLASSES
        assert cls.__doc__


def test_the_kinds_of_the_contract_are_there_and_leaves_of_a_branch_differ():
    kinds = {cls.__name__: cls.kind for cls in CLASSES}
    assert kinds == {
        "AgentflowError": "error",
        "ConfigError": "config",
        "ModelError": "model",
        "ModelConnectionError": "connection",
        "ModelTimeoutError": "timeout",
        "ModelRateLimitError": "rate_limit",
        "ModelStatusError": "status",
        "ModelProtocolError": "protocol",
        "ModelOutputError": "output",
        "ModelTruncatedError": "truncated",
        "ModelUnavailableError": "unavailable",
        "ToolError": "tool",
        "ToolNotFoundError": "not_found",
        "ToolArgumentsError": "arguments",
        "ToolFailedError": "failed",
        "ToolTimeoutError": "timeout",
        "ToolUnavailableError": "unavailable",
        "RequestError": "request",
        "StoreError": "store",
        "RunNotFoundError": "run_not_found",
        "StoreFormatError": "store_format",
        "LeaseLostError": "lease_lost",
        "OutcomePendingError": "outcome_pending",
        "SessionBusyError": "busy",
        "NotPendingError": "not_pending",
        "InvalidTransition": "transition",
        "LimitError": "limit",
        "RateLimitedError": "rate_limited",
        "TransformError": "transform",
        "RunFailed": "error",
        "RunCancelled": "cancelled",
    }
    for branch in CLASSES:
        leaves = [cls.kind for cls in CLASSES if branch in cls.__mro__[1:2]]
        assert len(leaves) - (branch is AgentflowError) * leaves.count("error") == len(set(leaves) - {"error"})


def test_the_docstrings_tree_is_the_tree():
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__


def test_a_status_says_whether_to_try_again():
    assert [ModelStatusError("x", status=status).retryable for status in (None, 400, 404, 500, 503)] == [
        False, False, False, True, True,
    ]  # fmt: skip


def test_the_ends_of_a_run_carry_what_its_event_said():
    failed = RunFailed("no", kind="status", run_id="r", retryable=True)
    assert (str(failed), failed.kind, failed.run_id, failed.retryable) == ("no", "status", "r", True)
    stopped = RunCancelled("stopped", reason="timeout", run_id="r")
    assert (stopped.kind, stopped.reason, stopped.run_id) == ("cancelled", "timeout", "r")


def test_an_error_that_is_raised_again_keeps_nothing_alive_that_it_went_through():
    class Local:
        pass

    def one_more(error):
        local = Local()
        gone.append(weakref.ref(local))
        raise again(error)

    first, gone = RateLimitedError("full", retry_after=2.0), []
    first.__cause__ = OSError("why")
    for _ in range(2):
        with pytest.raises(RateLimitedError, match="full") as caught:
            one_more(first)
        assert (caught.value.retry_after, caught.value.__cause__) == (2.0, first.__cause__)
        del caught
    assert [ref() for ref in gone] == [None, None]


def test_a_foreign_error_that_cannot_be_copied_is_given_as_it_is():
    class Odd(Exception):
        def __init__(self, *, needed):
            super().__init__("odd")

    odd = Odd(needed=1)
    assert again(odd) is odd
