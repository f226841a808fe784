import pytest

from agentflow.errors import StoreError
from agentflow.events import WarningEvent
from agentflow.stores.base import SessionKey, Turn
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing.stores import FailingLog


def event(seq):
    return WarningEvent(
        run_id="r", chain_id="r", session_id="s", path=("a",), trace_id="0" * 32, seq=seq, code="x", message=""
    )


async def test_only_the_nth_append_fails_and_is_not_done():
    log = FailingLog(InMemoryStore(), fail_at=2)
    await log.append("r", [event(1)])
    with pytest.raises(StoreError, match="append 2 failed"):
        await log.append("r", [event(2)])
    assert await log.last("r") == 1
    await log.append("r", [event(2)])
    assert (log.appends, [e.seq for e in await log.read("r", 0, 10)]) == (3, [1, 2])


async def test_the_append_may_be_done_although_it_fails():
    log = FailingLog(InMemoryStore(), fail_at=1, applied=True, error=StoreError("no reply"))
    with pytest.raises(StoreError, match="no reply"):
        await log.append("r", [event(1)])
    assert await log.last("r") == 1


async def test_everything_else_is_the_stores():
    store = InMemoryStore()
    log = FailingLog(store, fail_at=99)
    key = SessionKey("s")
    await log.append("r", [event(1)])
    await log.wait("r", 0)
    assert (await log.open_session(key, "r")).version == 0
    await log.close_session(key, "r", Turn(run_id="r", outcome="final", messages=()))
    assert (await store.open_session(key, "q")).version == 1
    await store.close_session(key, "q", None)
    await log.aclose()
