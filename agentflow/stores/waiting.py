"""Waiters: who waits in this process for something to happen to a key, such as a run's id.

It knows nothing of what happened: who was woken looks for himself.
"""

import asyncio
from collections.abc import Iterable


class Waiters:
    """Futures by key, of any one loop at a time."""

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def keys(self) -> Iterable[str]:
        """The keys somebody waits for now."""
        return tuple(self._futures)

    async def wait(self, key: str) -> None:
        """Return when `key` is next woken. What happened before the call is not noticed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._futures.setdefault(key, set())
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting and self._futures.get(key) is waiting:
                del self._futures[key]

    def wake(self, key: str) -> None:
        """Wake all who wait for `key`."""
        for future in self._futures.pop(key, ()):
            if not future.done():
                future.set_result(None)
