"""Bounded pools of daemon threads for tools that are ordinary functions.

A pool runs callables and says how they ended; it knows nothing of tools, time limits or results. It is apart
from the loop's default pool, so hung tools never delay DNS look-ups.
"""

import asyncio
import collections
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from agentflow.errors import ConfigError, ToolFailedError
from agentflow.streams import Inbox, TaskOwner


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a call ended: with a value, or with an error of any kind.

    An error stays a value, because raised again it could be lost (StopIteration in a future), stop the loop
    (SystemExit in a task) or look like a cancel of the caller (CancelledError).
    """

    value: Any = None
    error: BaseException | None = None


class _Job:
    def __init__(self, call: Callable[[], Any], deliver: Callable[[Ended], None]) -> None:
        self.call = call
        self.deliver = deliver
        self.context = contextvars.copy_context()
        self.left = False

    def run(self) -> Ended:
        try:
            return Ended(value=self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would leave its caller waiting
            return Ended(error=error)


class ThreadPool:
    """At most `size` daemon threads, started when needed, and at most `queue` calls waiting for one.

    A call that is left while it runs (its task was cancelled) keeps its thread, and so its place, until it ends: it
    is `abandoned`, counted for good in `left`, and its result is then dropped and counted in `late`. Threads share
    one interpreter: work that computes for long slows the loop and belongs in a process.
    """

    _open: ClassVar[int] = 0
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str, *, size: int = 64, queue: int = 256) -> None:
        if size < 1 or queue < 0:
            raise ConfigError(f"pool {name!r}: size must be at least 1 and queue at least 0, got {size}, {queue}")
        self.name = name
        self.late = 0
        self.left = 0
        self._size = size
        self._queue = queue
        self._changed = threading.Condition()
        self._threads: dict[threading.Thread, _Job | None] = {}
        self._waiting: collections.deque[_Job] = collections.deque()
        self._closed = False

    @property
    def busy(self) -> int:
        """Threads that run a call now, abandoned ones included."""
        return sum(job is not None for job in tuple(self._threads.values()))

    @property
    def abandoned(self) -> int:
        """Threads that run a call which nobody waits for any more."""
        return sum(job is not None and job.left for job in tuple(self._threads.values()))

    @property
    def queued(self) -> int:
        """Calls that wait for a thread."""
        return len(self._waiting)

    @classmethod
    def open_jobs(cls) -> int:
        """Calls, over all pools of the process, that a task waits for: queued, running, or just ended."""
        return cls._open

    @classmethod
    def _count(cls, change: int) -> None:
        with cls._open_lock:
            cls._open += change

    async def run(self, call: Callable[[], Any]) -> Ended:
        """Run `call` in a thread, with a copy of the current context, and wait for its end.

        Never raises what `call` raises. Raises `ToolFailedError` at once if the pool is saturated or closed. A
        cancel takes the call out of the queue, or abandons it.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()
        job = _Job(call, Inbox(loop, partial(self._receive, ended)).put)
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
            waiting, self._waiting = self._waiting, collections.deque()
            free = [thread for thread, job in self._threads.items() if job is None]
            self._changed.notify_all()
        for job in waiting:
            job.deliver(Ended(error=ToolFailedError(f"pool {self.name!r} was closed before the call began")))
        for thread in free:
            thread.join()

    def _submit(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise ToolFailedError(f"pool {self.name!r} is closed")
            # A call that a free thread has not picked up yet counts as waiting, so both are looked at together.
            if self.busy + len(self._waiting) >= self._size + self._queue:
                raise ToolFailedError(
                    f"pool {self.name!r} is saturated: {self.busy} threads are busy and {self.queued} calls wait;"
                    " try again later"
                )
            if len(self._threads) - self.busy <= len(self._waiting) and len(self._threads) < self._size:
                self._start_thread()
            self._waiting.append(job)
            self._changed.notify()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"agentflow-{self.name}-{len(self._threads)}", daemon=True)
        self._threads[thread] = None
        try:
            thread.start()
        except RuntimeError as error:
            del self._threads[thread]
            raise ToolFailedError(f"pool {self.name!r}: the system gives no more threads") from error

    def _leave(self, job: _Job) -> None:
        with self._changed:
            job.left = True
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._threads.values():
                self.left += 1

    def _work(self) -> None:
        thread = threading.current_thread()
        while True:
            job = self._next(thread)
            if job is None:
                return
            ended = job.run()
            with self._changed:
                self._threads[thread] = None  # before the result is known, so that close() waits for this thread
                left = job.left
            if left:
                self._drop(ended)
            else:
                job.deliver(ended)
            del job, ended  # an idle thread must not keep the last call's values alive

    def _next(self, thread: threading.Thread) -> _Job | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    del self._threads[thread]
                    return None
                self._changed.wait()
            self._threads[thread] = job = self._waiting.popleft()
            return job

    def _receive(self, waiting: "asyncio.Future[Ended]", ended: Ended) -> None:
        if waiting.done():
            self._drop(ended)
        else:
            waiting.set_result(ended)

    def _drop(self, ended: Ended) -> None:
        self.late += 1
        if inspect.iscoroutine(ended.value):
            ended.value.close()  # else Python warns that it was never awaited


class Pools:
    """The thread pools of one agent by name, and the owner of the tasks in which tools run on the loop.

    `sizes` maps a name to (threads, waiting calls); "default" is always there. Pools are made when first used.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, int]] | None = None) -> None:
        self._sizes = {"default": (64, 256)} | dict(sizes or {})
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
