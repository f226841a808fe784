"""The suite passes a right store, wrapped here; that it refuses wrong ones is in the tests of its checks."""

import inspect

import pytest

from agentflow import InMemoryStore
from agentflow.testing import store_letter_checks, store_log_checks, store_session_checks, store_suite
from agentflow.testing.stores import FailingLog


@pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
async def test_a_wrapped_store_keeps_the_contract(check):
    store = FailingLog(InMemoryStore(), fail_at=10**9)
    await check(lambda: store)


def test_no_check_is_left_out():
    written = {
        name
        for module in (store_letter_checks, store_log_checks, store_session_checks)
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert written == {store_suite.name_of(check) for check in store_suite.CHECKS}
