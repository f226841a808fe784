"""How long a store's operations take, measured at the store that is there.

It changes nothing of what they do, and costs nothing while nobody measures.
"""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from reactivex import abc
from reactivex.disposable import Disposable

from agentflow.stores.base import Store

logger = logging.getLogger(__name__)

Record: TypeAlias = Callable[[str, float], None]  # the operation's name, seconds

# What waits for something to happen, a session to be free or everything to end, says nothing about the store. Reading a
# log says nothing that appending to it does not, and is done by every reader for every batch.
_UNTOLD = ("open_session", "aclose", "read", "last")
OPERATIONS: Final = tuple(
    name
    for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)
    if not name.startswith(("_", "wait")) and name not in _UNTOLD
)


def timed(store: Store, record: Record, *, now: Callable[[], float] = time.perf_counter) -> abc.DisposableBase:
    """Tell `record` of every operation of `store` that ends, however it ends, until the result is disposed.

    The agents that share a store have it already when somebody begins to measure, so that no wrapper could be put
    round it: its own methods are replaced, on this object only. A store that does not allow that is not measured. If
    `record` raises it is logged, and told nothing more: no operation fails for it.
    """
    told = _Told(record)
    replaced = [name for name in OPERATIONS if _replace(store, name, told, now)]

    def restore() -> None:
        for name in replaced:
            vars(store).pop(name, None)

    return Disposable(restore)


class _Told:
    """Tells `record`, as long as it does not raise."""

    def __init__(self, record: Record) -> None:
        self._record: Record | None = record

    def __call__(self, name: str, seconds: float) -> None:
        if self._record is None:
            return
        try:
            self._record(name, seconds)
        except Exception:  # whatever an exporter raises, no operation fails for it
            self._record = None
            logger.exception("the store is measured no more: what records its times has failed")


def _replace(store: Store, name: str, told: Record, now: Callable[[], float]) -> bool:
    operation: Callable[..., Awaitable[Any]] | None = getattr(store, name, None)
    if operation is None or not hasattr(store, "__dict__") or name in vars(store):  # measured already
        return False

    async def measured(*args: Any, **fields: Any) -> Any:
        began = now()
        try:
            return await operation(*args, **fields)
        finally:
            told(name, now() - began)

    setattr(store, name, measured)
    return True
