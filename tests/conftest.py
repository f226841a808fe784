"""What holds for every test: the loop it runs in, that an async test leaves nothing behind, and that what sessions keep
is what the logs of their runs say.
"""

import asyncio
import gc
import inspect

import pytest

from agentflow import Agent
from agentflow.testing.clock import VirtualTimeLoop
from agentflow.testing.leaks import LeakCheck
from agentflow.testing.stores import FailingLog
from tests.kept_history import assert_kept


def pytest_configure(config):
    config.addinivalue_line("markers", "virtual_time: run this async test in agentflow.testing's virtual time")
    config.addinivalue_line("markers", "abandons_threads: this test leaves threads behind on purpose")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    # What was logged goes to another process, and that is no place for halves of characters.
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True, scope="module")
def what_other_modules_have_left_is_not_looked_at_again():
    """Collections, one per async test, need not go through what was imported and what caches hold."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(config, item):
    virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if virtual else {"real": asyncio.new_event_loop}


@pytest.fixture
async def leak_check(request):
    async with LeakCheck(threads=request.node.get_closest_marker("abandons_threads") is None):
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("leak_check")


@pytest.fixture(autouse=True)
def history_is_what_the_logs_say(monkeypatch):
    """Looked at whenever an agent has been closed, in the store itself where the test made it fail."""
    close = Agent.aclose

    async def aclose(agent):
        await close(agent)
        store = agent._store
        while isinstance(store, FailingLog):
            store = store._store
        if agent._runtime is not None:
            await assert_kept(store, agent._runtime.limits)

    monkeypatch.setattr(Agent, "aclose", aclose)
