import pytest

from agentflow import InMemoryStore
from agentflow.errors import StoreError
from agentflow.events import decode, encode
from agentflow.messages import unpaired
from agentflow.testing import store_probe


def test_an_expectation_that_is_not_met_says_what_was_found():
    store_probe.same([1], [1], "the list")
    store_probe.true([1], "there is one")
    with pytest.raises(AssertionError, match=r"the list: expected \[1\], but found \[2\]"):
        store_probe.same([2], [1], "the list")
    with pytest.raises(AssertionError, match="not so: there is one"):
        store_probe.true([], "there is one")


async def test_a_call_must_be_refused_with_the_error_that_was_said():
    async def call(error):
        if error is not None:
            raise error
        return "done"

    await store_probe.refused(call(StoreError("x")), StoreError, "the call")
    with pytest.raises(AssertionError, match="the call: expected StoreError, but it gave 'done'"):
        await store_probe.refused(call(None), StoreError, "the call")
    with pytest.raises(OSError, match="another"):
        await store_probe.refused(call(OSError("another")), StoreError, "the call")


@pytest.mark.virtual_time
async def test_what_never_happens_is_given_up(monkeypatch):
    monkeypatch.setattr(store_probe, "PATIENCE", 0.0)

    async def never():
        return False

    with pytest.raises(AssertionError, match="the thing: it did not happen"):
        await store_probe.until(never, "the thing")


async def test_stores_are_closed_also_when_a_check_fails():
    closed = []

    class Store(InMemoryStore):
        async def aclose(self):
            closed.append(self)

    with pytest.raises(ZeroDivisionError):
        async with store_probe.clients(Store, 3):
            raise ZeroDivisionError
    assert len(closed) == 3


def test_its_records_are_such_as_a_store_gets():
    events = [*store_probe.log("r", count=3), store_probe.end("r", 4)]
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert [decode(encode(event)) for event in events] == events
    assert unpaired(store_probe.turn("r").messages) is None
