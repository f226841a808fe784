"""FailingLog: a store whose n-th append fails. Everything else is the store's it wraps."""

from collections.abc import Sequence

from agentflow.errors import StoreError
from agentflow.events import AgentEvent
from agentflow.stores.base import Session, SessionKey, Store, Turn


class FailingLog:
    """Any `Store`, with one append that fails.

    The `fail_at`-th append (from 1, over all runs) raises `error`, once. With `applied` it was done before it
    raised, as when the reply of a server is lost. `appends` counts them all, so that a test can go through every n.
    """

    def __init__(self, store: Store, *, fail_at: int, error: Exception | None = None, applied: bool = False) -> None:
        self.appends = 0
        self._store = store
        self._fail_at = fail_at
        self._error = error if error is not None else StoreError(f"append {fail_at} failed, as the test asked")
        self._applied = applied

    async def append(self, run_id: str, events: Sequence[AgentEvent]) -> None:
        """As the store's, but for the one that fails."""
        self.appends += 1
        fails = self.appends == self._fail_at
        if not fails or self._applied:
            await self._store.append(run_id, events)
        if fails:
            raise self._error

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """As the store's."""
        return await self._store.read(run_id, after, limit)

    async def wait(self, run_id: str, after: int) -> None:
        """As the store's."""
        await self._store.wait(run_id, after)

    async def last(self, run_id: str) -> int | None:
        """As the store's."""
        return await self._store.last(run_id)

    async def open_session(self, key: SessionKey, run_id: str) -> Session:
        """As the store's."""
        return await self._store.open_session(key, run_id)

    async def close_session(self, key: SessionKey, run_id: str, turn: Turn | None) -> None:
        """As the store's."""
        await self._store.close_session(key, run_id, turn)

    async def aclose(self) -> None:
        """As the store's."""
        await self._store.aclose()
