"""Waiters and listeners: who wants to know in this process that something happened to a key, such as a run's id.

They know nothing of what happened: who was woken looks for himself.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K")


class Waiters(Generic[K]):
    """Futures by key, of any one loop at a time. Who came first is woken first."""

    def __init__(self) -> None:
        self._futures: dict[K, dict[asyncio.Future[None], None]] = {}

    @property
    def keys(self) -> Sequence[K]:
        """The keys somebody waits for now."""
        return tuple(self._futures)

    @contextmanager
    def join(self, key: K) -> Iterator[asyncio.Future[None]]:
        """A future that is done when `key` is next woken; who joins before he looks misses nothing."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._futures.setdefault(key, {})
        waiting[future] = None
        try:
            yield future
        finally:
            waiting.pop(future, None)
            if not waiting and self._futures.get(key) is waiting:
                del self._futures[key]

    def wake(self, key: K) -> None:
        """Wake all who wait for `key`."""
        for future in self._futures.pop(key, ()):
            if not future.done():
                future.set_result(None)


class Listeners(Generic[K]):
    """Callbacks by key, called whenever the key is woken."""

    def __init__(self) -> None:
        self._heard: dict[K, list[Callable[[], None]]] = {}

    @property
    def keys(self) -> Sequence[K]:
        """The keys somebody listens to now."""
        return tuple(self._heard)

    def join(self, key: K, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` from now on, until what is given back is called; to call that again is allowed."""
        listening = self._heard.setdefault(key, [])
        listening.append(heard)

        def leave() -> None:
            if heard in listening:
                listening.remove(heard)
            if not listening and self._heard.get(key) is listening:
                del self._heard[key]

        return leave

    def wake(self, key: K) -> None:
        """Tell all who listen to `key`."""
        for heard in tuple(self._heard.get(key, ())):
            heard()
