"""A loop whose time is virtual: hours pass at once, in the right order, with real sockets inside it.

It does not replace the clock of the process (`time.monotonic`, `time.time`) and does not see other processes:
what waits for a child process needs a real loop.
"""

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from agentflow.tools.pools import ThreadPool

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1767225600.0  # 2026-01-01T00:00:00Z, where the wall clock of every virtual loop begins

_Events: TypeAlias = list[tuple[selectors.SelectorKey, int]]

_SETTLE = 0.001  # real seconds in which what was sent over the loopback may still arrive before time moves
_POLL = 0.05  # real seconds between two looks at work outside the loop, should it end without a wake-up


class DeadlockError(RuntimeError):
    """The loop waits for something that can never come."""


class _VirtualSelector(selectors.DefaultSelector):
    """Owns the virtual time: where a real loop would sleep until its next timer, time moves there instead."""

    def __init__(self, outside: Callable[[], int], patience: float, describe: Callable[[], str]) -> None:
        super().__init__()
        self.now = 0.0
        self.forced_until = 0.0
        self.settle = _SETTLE
        self._outside = outside
        self._patience = patience
        self._describe = describe

    def select(self, timeout: float | None = None) -> _Events:
        # Asked before the look at the sockets: work that ended in between has woken the loop, which is seen there.
        working = self._outside() > 0
        events = super().select(0)
        if events or timeout == 0:
            return events
        due = None if timeout is None else round(self.now + timeout, 9)  # half a nanosecond: timers still fire
        if due is None or (working and due > self.forced_until):
            return self._really_wait()
        if len(self.get_map()) > 1:  # more than the loop's own wake-up pipe
            events = super().select(self.settle)
        if not events:
            self.now = due
        return events

    def _really_wait(self) -> _Events:
        """Wait in real time, in short looks while work outside is under way."""
        waited = 0.0
        while waited < self._patience:
            working = self._outside() > 0
            step = _POLL if working else self._patience - waited
            events = super().select(step)
            waited += step
            if events or (working and not self._outside()):
                return events
        raise DeadlockError(
            f"nothing happened for {self._patience:g} real seconds: no timer is due, no socket is ready, "
            f"{self._outside()} jobs in threads are open. A job that never ends holds time still: move it with "
            f"`await loop.advance(seconds)`. Tasks:\n{self._describe()}"
        )


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps: with nothing ready and no I/O, its time jumps to the next timer.

    Time stands still while a job in a thread is open: a tool's in our pools, or one of `run_in_executor`; use
    `advance` to make it pass nevertheless. If for `patience` real seconds nothing happens and no timer can help,
    `DeadlockError` names the tasks and where they wait.
    """

    def __init__(self, *, patience: float = 10.0) -> None:
        self._executor_jobs: set[asyncio.Future[Any]] = set()
        self._virtual = _VirtualSelector(self._open_jobs, patience, self._describe_tasks)
        super().__init__(self._virtual)

    def settle(self, seconds: float) -> None:
        """Let time move only when nothing has come over any socket for so many real seconds, at first 0.001.

        What a system tells both ends of a full connection takes it up to 0.05.
        """
        self._virtual.settle = seconds

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now

    def wall(self) -> float:
        """The virtual wall clock, in seconds since 1970-01-01 UTC; `streams.LoopClock` reads it."""
        return START + self._virtual.now

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, timer by timer, even while jobs in threads are open."""
        target = self.time() + seconds
        self._virtual.forced_until = max(self._virtual.forced_until, round(target, 9))
        await asyncio.sleep(seconds)

    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; time stands still until the job has ended."""
        future = super().run_in_executor(executor, func, *args)
        self._executor_jobs.add(future)
        future.add_done_callback(self._executor_jobs.discard)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  asyncio's signature
        """As in asyncio, but without its `timeout`, which would pass at once here."""
        await super().shutdown_default_executor()

    def _open_jobs(self) -> int:
        return len(self._executor_jobs) + ThreadPool.open_jobs()

    def _describe_tasks(self) -> str:
        return "\n".join(_describe(task) for task in asyncio.all_tasks(self)) or "(none)"


def _describe(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    place = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "(not started or built in)"
    return f"  {task.get_name()!r} at {place}"


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
