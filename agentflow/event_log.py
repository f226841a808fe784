"""follow(): the one way to read a run.

Read after a cursor; if nothing is there, wait; go on. Every reader uses it, on every store: subscribers,
iterators, the command line, transports, tests. Nothing is buffered for a slow reader: it re-reads the log at its
own pace.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.errors import RequestError, RunNotFoundError
from agentflow.events import TERMINAL_TYPES, AgentEvent
from agentflow.stores.base import EventLog

PAGE = 256  # events read at a time

Wait: TypeAlias = Callable[[int], Awaitable[None]]


class Reader:
    """A cursor in one run's log; `follow` as pages, for readers that cannot be a generator.

    `after` is the number of an event, else `RequestError` is raised.

    `wait(after)` replaces the log's own waiting: a chain's consumers wait for its writer, which also tells them
    when it had to stop. A run without an event is then waited for instead of refused, and no event is given before the
    writer knows that it is in the log: whoever sees it may act on it.
    """

    def __init__(self, log: EventLog, run_id: str, after: int = 0, wait: Wait | None = None) -> None:
        if type(after) is not int:
            raise RequestError(f"after must be the number of an event, not {after!r}")
        self._log = log
        self._run_id = run_id
        self._wait = wait
        self._known = wait is not None
        self._ended = False
        self._drained = False  # the last page had all that there was, so that more has to be waited for
        self.after = after

    async def page(self) -> Sequence[AgentEvent]:
        """The next events, at least one; none only when the run has ended and all of it was read."""
        if not self._known:
            await self._check_known()
        while not self._ended:
            waited = self._drained
            if waited:
                await self._wait_for_more()
            events = await self._log.read(self._run_id, self.after, PAGE)
            if events:
                if self._wait is not None:
                    await self._wait(events[-1].seq - 1)
                self.after = events[-1].seq
                self._ended = events[-1].type in TERMINAL_TYPES
                self._drained = len(events) < PAGE
                return events
            self._ended = await self._has_ended()
            if waited and self._wait is not None and not self._ended:  # the writer says that there is more
                raise RunNotFoundError(f"the log of run {self._run_id!r} is not in its store any more")
            self._drained = True
        return ()

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """The events one by one; see `follow`."""
        while events := await self.page():
            for event in events:
                yield event

    async def _check_known(self) -> None:
        if await self._log.last(self._run_id) is None:
            raise RunNotFoundError(
                f"no run {self._run_id!r} is known here: it may have expired, or belongs to another store; "
                "check the id and that both sides use the same store"
            )
        self._known = True

    async def _wait_for_more(self) -> None:
        if self._wait is not None:
            await self._wait(self.after)
        else:
            await self._log.wait(self._run_id, self.after)

    async def _has_ended(self) -> bool:
        """Whether the log is whole, so that a cursor at or beyond its end has nothing to wait for."""
        last = await self._log.last(self._run_id)
        if last is None or last > self.after:  # it went on since we read
            return False
        events = await self._log.read(self._run_id, last - 1, 1)
        return bool(events) and events[-1].type in TERMINAL_TYPES


def follow(log: EventLog, run_id: str, after: int = 0, *, wait: Wait | None = None) -> AsyncGenerator[AgentEvent, None]:
    """The events of `run_id` with `seq > after`, in order, without gap or repeat, to the terminal one.

    A cursor beyond the log's end waits for the run to get there, or ends with the run. Raises `RunNotFoundError`
    for an unknown run and `StoreError` when the log cannot be read; for `wait` see `Reader`. Closing it leaves the
    run alone.
    """
    return Reader(log, run_id, after, wait).events()
