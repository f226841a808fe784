"""The only bridge between asyncio and Rx, and the only owner of tasks and clocks.

Here tasks are started and ended, threads hand over to the loop, and an async iterator becomes an Observable or
the other way round. Nothing here knows what an event means.
"""

import asyncio
import collections
import contextvars
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any, Generic, Protocol, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)

CANCEL_GRACE = 1.0  # seconds a cancelled task may use to clean up before it is left alone and counted


class Timer(Protocol):
    """What `Clock.call_later` gives: the way to take it back."""

    def cancel(self) -> None:
        """Do not call. Harmless after the call, and a second time."""
        ...


class Clock(Protocol):
    """Time as the chain sees it, so that tests can move it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point, never backwards: for durations and time limits."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC: for time stamps only."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the loop's thread after `delay` seconds."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    def monotonic(self) -> float:
        """The loop's own time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """The system's time; a loop with a time of its own (`agentflow.testing`) offers `wall()`."""
        own = getattr(asyncio.get_running_loop(), "wall", None)
        return own() if own is not None else time.time()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """The loop's own timer."""
        return asyncio.get_running_loop().call_later(delay, callback)


class TaskOwner:
    """Owns tasks: each is kept until it has ended, and ended when its owner closes.

    A task that ends with an exception is reported to the loop's exception handler, never lost: code whose
    failures matter catches them itself.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: set[asyncio.Task[Any]] = set()
        self.abandoned = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self, coroutine: Coroutine[Any, Any, T], *, name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """Start `coroutine` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._asked.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            task.get_loop().call_exception_handler(
                {"message": f"task {task.get_name()!r} failed", "exception": error, "task": task}
            )

    def cancel(self, only: AbstractSet[asyncio.Task[Any]] | None = None) -> None:
        """Ask every task, or `only` those, to end, once, but not the one that is calling.

        Asked again, a task that cleans up after the first time would be torn out of it.
        """
        asked = self._tasks if only is None else self._tasks & only
        for task in asked - self._asked - {asyncio.current_task()}:
            self._asked.add(task)
            task.cancel()

    async def drain(self, patience: float) -> None:
        """Wait until every task has ended of itself, those started meanwhile too, up to `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                while waiting := self._tasks - {asyncio.current_task()}:
                    await asyncio.wait(waiting)
        except TimeoutError:
            logger.warning("%d tasks did not end by themselves within %.1f s", len(self._tasks), patience)

    async def aclose(self, grace: float = CANCEL_GRACE) -> int:
        """Cancel all tasks and wait for them up to `grace` seconds; how many are then still running.

        Those are left alone, stay referenced until they end, and are added to `abandoned`.
        """
        self.cancel()
        waiting = self._tasks - {asyncio.current_task()}
        if not waiting:
            return 0
        _, pending = await asyncio.wait(waiting, timeout=grace)
        for task in pending:
            logger.warning("task %r did not end within %.1f s of its cancel", task.get_name(), grace)
        self.abandoned += len(pending)
        return len(pending)


def is_cancelled() -> bool:
    """Whether a `CancelledError` in the current task is a cancel of this task, and no error that code raised itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Inbox(Generic[T]):
    """Items handed from any thread to one loop, in order, with one wake-up per burst.

    `receive` is called on the loop's thread with each item. An item put on the loop's own thread is received at
    once unless earlier ones still wait. Items put after the loop has closed are dropped and counted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[T], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._items: collections.deque[T] = collections.deque()
        self._woken = False
        self.dropped = 0

    def put(self, item: T) -> None:
        """Hand over one item. Thread-safe; never blocks."""
        self._items.append(item)
        if self._woken:
            return
        self._woken = True
        if _running_loop() is self._loop:
            self._drain()
            return
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:  # the loop is closed: nobody is left to receive
            self.dropped += len(self._items)
            self._items.clear()
            self._woken = False

    def _drain(self) -> None:
        # Cleared before the items are taken: an item put from now on by another thread wakes us again.
        self._woken = False
        while self._items:
            self._receive(self._items.popleft())


def is_running() -> bool:
    """Whether an event loop is running in this thread."""
    return _running_loop() is not None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Sink(Protocol[T_in]):
    """Who is driven by a `pump`: an Rx observer, or anything with its three methods."""

    def on_next(self, value: T_in, /) -> None:
        """One item."""
        ...

    def on_error(self, error: Exception, /) -> None:
        """The end, by an error."""
        ...

    def on_completed(self) -> None:
        """The end."""
        ...


class _Pump(Generic[T]):
    """Drives one async iterator into one observer; its task lives as long as the subscription."""

    def __init__(self, iterator: AsyncIterator[T], observer: Sink[T]) -> None:
        self._iterator = iterator
        self._observer = observer
        self._stopped = False
        self._calling = False
        self._task: asyncio.Task[None] | None = None

    def start(self, owner: TaskOwner, name: str) -> None:
        self._task = owner.spawn(self._run(), name=name, context=contextvars.copy_context())

    def dispose(self) -> None:
        if self._stopped:  # on its way out: a cancel would tear the iterator out of its clean-up
            return
        self._stopped = True
        # Disposed from within its own on_next (take, first): `_next` tells the loop below to leave.
        # A task that cancelled itself there would run on until its next await.
        if self._task is None or self._calling:
            return
        loop = self._task.get_loop()
        if _running_loop() is loop:
            self._task.cancel()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._task.cancel)

    async def _run(self) -> None:
        try:
            async for item in self._iterator:
                if not self._next(item):
                    return
            self._last(self._observer.on_completed)
        except Exception as error:  # noqa: BLE001  whatever ends the iterator is the stream's error
            self._last(self._observer.on_error, error)
        finally:
            aclose = getattr(self._iterator, "aclose", None)
            if aclose is not None:
                await aclose()

    def _next(self, item: T) -> bool:
        """Hand over one item; whether to go on."""
        if self._stopped:
            return False
        self._calling = True
        try:
            self._observer.on_next(item)
        finally:
            self._calling = False
        return not self._stopped

    def _last(self, signal: Callable[..., None], *error: Exception) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            signal(*error)
        except Exception as raised:  # noqa: BLE001  nobody stands above a raising on_error or on_completed
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an observer raised in its last call", "exception": raised}
            )


def pump(iterator: AsyncIterator[T], observer: Sink[T], owner: TaskOwner, *, name: str) -> abc.DisposableBase:
    """Drive `iterator` into `observer` by a task of `owner`; disposing cancels it and closes the iterator.

    Needs the running loop. An exception of the iterator is on_error; an observer that raises gets on_error and
    nothing more.
    """
    driver = _Pump(iterator, observer)
    driver.start(owner, name)
    return Disposable(driver.dispose)


def observe(make: Callable[[], AsyncIterator[T]], owner: TaskOwner, *, name: str = "observe") -> Observable[T]:
    """A cold Observable of what `make()` yields: one new iterator, and one `pump`, per subscription."""

    def subscribe(observer: abc.ObserverBase[T], _: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return pump(make(), observer, owner, name=name)

    return Observable(subscribe)


async def iterate(source: Observable[T], *, capacity: int = 1024) -> AsyncGenerator[T, None]:
    """The items of an Observable, as they come; closing the generator disposes the subscription.

    Rx cannot be slowed, so what comes while the consumer is busy waits here: over `capacity` waiting items the
    subscription is disposed and `OverflowError` raised. Items may be pushed from any thread.
    """
    loop = asyncio.get_running_loop()
    items: collections.deque[T] = collections.deque()
    wake = asyncio.Event()
    end: list[Exception | None] = []

    def receive(signal: tuple[str, Any]) -> None:
        kind, value = signal
        if end:
            return
        if kind != "next":
            end.append(value)
        elif len(items) >= capacity:
            end.append(OverflowError(f"an Observable ran {capacity} items ahead of its reader"))
        else:
            items.append(value)
        wake.set()

    inbox: Inbox[tuple[str, Any]] = Inbox(loop, receive)
    subscription = source.subscribe(
        lambda item: inbox.put(("next", item)),
        lambda error: inbox.put(("error", error)),
        lambda: inbox.put(("completed", None)),
    )
    try:
        while True:
            while items:
                yield items.popleft()
            if end:
                if end[0] is not None:
                    raise end[0]
                return
            wake.clear()
            await wake.wait()
    finally:
        subscription.dispose()
