"""What is told of a store's operations, and that it stays the store it is."""

import pytest

from agentflow import InMemoryStore
from agentflow.errors import RunNotFoundError
from agentflow.events import stamp
from agentflow.observability.store_timing import OPERATIONS, timed
from tests.builders import begin


def test_what_waits_for_something_to_happen_is_not_measured():
    assert {"append", "read_turns", "close_session", "list_facts"} <= set(OPERATIONS)
    assert not {"wait", "open_session", "aclose"} & set(OPERATIONS)
    assert not {"read", "last"} & set(OPERATIONS)  # done for every batch by every reader


async def test_each_operation_is_told_with_its_time_also_one_that_fails():
    store, told, clock = InMemoryStore(), [], iter(range(100))
    measuring = timed(store, lambda name, seconds: told.append((name, seconds)), now=lambda: next(clock))
    event = begin()
    stamp(event, 1, "2026-01-01T00:00:00.000000Z")
    await store.append("r1", [event])
    assert await store.find_run("r2") is None
    with pytest.raises(TypeError):
        await store.find_run()
    assert told == [("append", 1), ("find_run", 1), ("find_run", 1)]
    measuring.dispose()
    await store.find_run("r1")
    assert len(told) == 3
    assert store.find_run.__func__ is InMemoryStore.find_run


async def test_a_store_is_measured_once_and_one_that_cannot_be_is_left():
    class Closed:
        __slots__ = ()

        async def find_run(self, run_id):
            raise RunNotFoundError("none")

    store, told = InMemoryStore(), []
    first = timed(store, lambda name, _: told.append(name))
    second = timed(store, lambda name, _: told.append(name))
    await store.find_run("r1")
    assert told == ["find_run"]
    second.dispose()
    await store.find_run("r1")
    assert told == ["find_run", "find_run"]
    first.dispose()
    timed(Closed(), lambda name, _: told.append(name)).dispose()


async def test_what_fails_to_record_fails_no_operation_and_is_told_nothing_more(caplog):
    def record(name, seconds):
        raise OSError("no exporter")

    store = InMemoryStore()
    measuring = timed(store, record)
    assert [await store.find_run("r1"), await store.find_run("r1")] == [None, None]
    assert caplog.text.count("measured no more") == 1
    measuring.dispose()
