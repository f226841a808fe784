"""Bounded pools of daemon threads for tools that are ordinary functions.

A pool runs callables and says how they ended; it knows nothing of tools, time limits or results. It is apart
from the loop's default pool, so hung tools never delay DNS look-ups.
"""

import asyncio
import collections
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from agentflow.errors import ConfigError, ToolFailedError
from agentflow.streams import Inbox, TaskOwner

logger = logging.getLogger(__name__)

_REPLACEABLE = 2  # abandoned threads that are replaced, as a multiple of a pool's size
_MAX_NAMES = 5  # told of the calls that hang


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a call ended: with a value, or with an error of any kind.

    An error stays a value, because raised again it could be lost (StopIteration in a future), stop the loop
    (SystemExit in a task) or look like a cancel of the caller (CancelledError).
    """

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """A pool at one moment, and what it has counted since it was made. Times are seconds.

    Now: `busy` threads run a call that somebody waits for, at most `size`; `abandoned` threads run a call that
    nobody waits for any more; `queued` calls wait for a thread, the first of them for `longest_wait`.
    In all: `calls` taken in, which have waited `waited` together (those that wait now not included); `left` calls
    abandoned; `late` results dropped; `replaced` threads started in the place of an abandoned one.
    """

    name: str
    size: int
    busy: int
    abandoned: int
    queued: int
    longest_wait: float
    calls: int
    waited: float
    left: int
    late: int
    replaced: int


class _Job:
    def __init__(self, call: Callable[[], Any], name: str, deliver: Callable[[Ended], None], since: float) -> None:
        self.call = call
        self.name = name
        self.deliver = deliver
        self.since = since
        self.context = contextvars.copy_context()

    def run(self) -> Ended:
        try:
            return Ended(value=self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would leave its caller waiting
            return Ended(error=error)


class ThreadPool:
    """At most `size` daemon threads at work, started when needed, and at most `queue` calls waiting for one.

    A call that is left while it runs (its task was cancelled) cannot be stopped: its thread is `abandoned`, its
    result is dropped when it comes and counted in `late`. Such a thread takes no place: another is started when a
    call needs it, for up to `2 * size` abandoned ones at once; every further one costs a place until it ends, and
    with no place left calls are refused. A thread that comes back when its place is taken goes away.

    Threads share one interpreter: work that computes for long slows the loop and belongs in a process. `now` is a
    monotonic clock in seconds, read from any thread. Everything but `run` may be used from any thread.
    """

    _open: ClassVar[int] = 0
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, name: str, *, size: int = 64, queue: int = 256, now: Callable[[], float] = time.monotonic
    ) -> None:
        if size < 1 or queue < 0:
            raise ConfigError(f"pool {name!r}: size must be at least 1 and queue at least 0, got {size}, {queue}")
        self.name = name
        self.late = 0
        self.left = 0
        self._size = size
        self._queue = queue
        self._now = now
        self._changed = threading.Condition()
        self._idle: set[threading.Thread] = set()
        self._waiting: collections.deque[_Job] = collections.deque()
        self._running: set[_Job] = set()
        self._hung: set[_Job] = set()
        self._closed = False
        self._started = self._replaced = self._calls = 0
        self._waited = 0.0

    @property
    def abandoned(self) -> int:
        """Threads that run a call which nobody waits for any more."""
        return len(self._hung)

    @property
    def queued(self) -> int:
        """Calls that wait for a thread."""
        return len(self._waiting)

    def stats(self) -> PoolStats:
        """The pool as it is now."""
        with self._changed:
            return PoolStats(
                name=self.name,
                size=self._size,
                busy=len(self._running),
                abandoned=len(self._hung),
                queued=len(self._waiting),
                longest_wait=self._now() - self._waiting[0].since if self._waiting else 0.0,
                calls=self._calls,
                waited=self._waited,
                left=self.left,
                late=self.late,
                replaced=self._replaced,
            )

    @classmethod
    def open_jobs(cls) -> int:
        """Calls, over all pools of the process, that a task waits for: queued, running, or just ended."""
        return cls._open

    @classmethod
    def _count(cls, change: int) -> None:
        with cls._open_lock:
            cls._open += change

    async def run(self, call: Callable[[], Any], *, name: str = "") -> Ended:
        """Run `call` in a thread, with a copy of the current context, and wait for its end.

        Never raises what `call` raises. Raises `ToolFailedError` at once if the pool is saturated or closed; it
        tells by `name` which calls hang. A cancel takes the call out of the queue, or abandons it.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()
        job = _Job(call, name, Inbox(loop, partial(self._receive, ended)).put, self._now())
        self._submit(job)
        self._count(+1)
        try:
            return await ended
        finally:
            self._count(-1)
            self._leave(job)

    def close(self) -> None:
        """Take no more calls and end the threads that run none; wait only for those. Harmless a second time.

        Calls in the queue end with an error. A thread that is running a call ends when the call does.
        """
        with self._changed:
            self._closed = True
            waiting = [self._take() for _ in range(len(self._waiting))]
            free = tuple(self._idle)
            self._changed.notify_all()
        for job in waiting:
            job.deliver(Ended(error=ToolFailedError(f"pool {self.name!r} was closed before the call began")))
        for thread in free:
            thread.join()

    def _submit(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise ToolFailedError(f"pool {self.name!r} is closed")
            places, busy, waiting = self._places(), len(self._running), len(self._waiting)
            # A call that a free thread has not picked up yet counts as waiting, so both are looked at together.
            if places == 0 or busy + waiting >= places + self._queue:
                raise ToolFailedError(
                    f"pool {self.name!r} is saturated: {busy} threads are busy and {waiting} calls wait"
                    f"{self._hanging()}; try again later"
                )
            self._staff(waiting + 1)
            self._waiting.append(job)
            self._calls += 1
            self._changed.notify()

    def _leave(self, job: _Job) -> None:
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._waited += self._now() - job.since
            elif job in self._running:
                self._running.remove(job)
                self._hung.add(job)
                self.left += 1
                try:
                    self._staff(len(self._waiting))
                except ToolFailedError as error:  # those who wait are not told: a thread may come free for them
                    logger.warning("an abandoned thread is not replaced: %s", error)

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._next(thread)) is not None:
            ended = job.run()
            with self._changed:
                is_late = job in self._hung
                (self._hung if is_late else self._running).remove(job)
                is_needed = self._workers() < self._places()
                if is_needed:
                    self._idle.add(thread)  # before the result is known, so that close() waits for this thread
            if is_late:
                self._drop(ended)
            else:
                job.deliver(ended)
            if not is_needed:
                return
            del job, ended  # an idle thread must not keep the last call's values alive

    def _next(self, thread: threading.Thread) -> _Job | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._idle.discard(thread)
            if not self._waiting:
                return None
            job = self._take()
            self._running.add(job)
            return job

    def _receive(self, waiting: "asyncio.Future[Ended]", ended: Ended) -> None:
        if waiting.done():
            self._drop(ended)
        else:
            waiting.set_result(ended)

    def _drop(self, ended: Ended) -> None:
        with self._changed:
            self.late += 1
        if inspect.iscoroutine(ended.value):
            ended.value.close()  # else Python warns that it was never awaited

    # -- with the lock held ------------------------------------------------------------------------------

    def _workers(self) -> int:
        return len(self._idle) + len(self._running)

    def _places(self) -> int:
        """How many workers there may be."""
        return min(self._size, (1 + _REPLACEABLE) * self._size - len(self._hung))

    def _staff(self, calls: int) -> None:
        """Start a thread if there are `calls` to begin, idle threads for fewer, and a place for one more."""
        if calls <= len(self._idle) or self._workers() >= self._places():
            return
        self._started += 1
        thread = threading.Thread(target=self._work, name=f"agentflow-{self.name}-{self._started}", daemon=True)
        self._idle.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._idle.discard(thread)
            raise ToolFailedError(f"pool {self.name!r}: the system gives no more threads{self._hanging()}") from error
        if self._workers() + len(self._hung) > self._size:
            self._replaced += 1

    def _take(self) -> _Job:
        """The call that has waited the longest."""
        job = self._waiting.popleft()
        self._waited += self._now() - job.since
        return job

    def _hanging(self) -> str:
        """What to add to an error: how many threads hang, and in which calls."""
        if not self._hung:
            return ""
        names = collections.Counter(job.name for job in self._hung if job.name).most_common(_MAX_NAMES)
        told = ", ".join(f"{name} ({count})" for name, count in names) or "calls without a name"
        return f"; {len(self._hung)} threads hang in calls that were given up: {told}"


class Pools:
    """The thread pools of one agent by name, and the owner of the tasks in which tools run on the loop.

    `sizes` maps a name to (threads, waiting calls); "default" is always there, "encoding" is the framework's own and
    cannot be named. Pools are made when first used.
    """

    DEFAULT: ClassVar[tuple[int, int]] = (64, 256)  # of "default", unless it is configured

    def __init__(self, sizes: Mapping[str, tuple[int, int]] | None = None) -> None:
        if "encoding" in (sizes or {}):
            raise ConfigError("the pool 'encoding' is the framework's own: give yours another name")
        self._sizes = {"default": self.DEFAULT} | dict(sizes or {})
        self._pools: dict[str, ThreadPool] = {}
        self._encoding = ThreadPool("encoding", size=2, queue=1024)
        self.tasks = TaskOwner()

    @property
    def encoding(self) -> ThreadPool:
        """The framework's own pool, for results too large to be encoded on the loop."""
        return self._encoding

    @property
    def abandoned(self) -> int:
        """Calls that did not end when they were asked to: running threads, and tasks ever left."""
        return self.tasks.abandoned + sum(pool.abandoned for pool in self._pools.values())

    @property
    def left(self) -> int:
        """Calls that were ever left behind, also those that have ended since."""
        return self.tasks.abandoned + sum(pool.left for pool in self._pools.values())

    def stats(self) -> tuple[PoolStats, ...]:
        """Every pool that has been used, in the order of their first use, and at last "encoding"."""
        return tuple(pool.stats() for pool in (*self._pools.values(), self._encoding))

    def get(self, name: str) -> ThreadPool:
        """The pool of this name. Raises `ConfigError` for a name that was not configured."""
        if name not in self._sizes:
            raise ConfigError(f"unknown thread pool {name!r}; configured are {', '.join(self._sizes)}")
        if name not in self._pools:
            size, queue = self._sizes[name]
            self._pools[name] = ThreadPool(name, size=size, queue=queue)
        return self._pools[name]

    def close(self) -> None:
        """Close every pool; hung threads are not waited for."""
        for pool in (*self._pools.values(), self._encoding):
            pool.close()
