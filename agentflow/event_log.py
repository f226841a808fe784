"""follow(): the one way to read a run.

Read after a cursor; if nothing is there, wait; go on. Every reader uses it, on every store: subscribers,
iterators, the command line, transports, tests. Nothing is buffered for a slow reader: it re-reads the log at its
own pace.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable

from agentflow.errors import RunNotFoundError
from agentflow.events import TERMINAL_TYPES, AgentEvent
from agentflow.stores.base import EventLog

PAGE = 256  # events read at a time

Wait = Callable[[int], Awaitable[None]]


async def follow(
    log: EventLog, run_id: str, after: int = 0, *, wait: Wait | None = None
) -> AsyncGenerator[AgentEvent, None]:
    """The events of `run_id` with `seq > after`, in order, without gap or repeat, to the terminal one.

    A cursor beyond the log's end waits for the run to get there, or ends with the run. Raises `RunNotFoundError`
    for an unknown run, unless `wait` is given: `wait(after)` then replaces the log's own waiting (a chain's
    consumers wait for its writer, which also tells them when it had to stop), and a run that has no event yet is
    waited for. Raises `StoreError` when the log cannot be read. Closing it leaves the run alone.
    """
    if wait is None and await log.last(run_id) is None:
        raise RunNotFoundError(
            f"no run {run_id!r} is known here: it may have expired, or belongs to another store; "
            "check the id and that both sides use the same store"
        )
    while True:
        events = await log.read(run_id, after, PAGE)
        for event in events:
            after = event.seq
            yield event
            if event.type in TERMINAL_TYPES:
                return
        if not events:
            if await _has_ended(log, run_id):
                return
            await (log.wait(run_id, after) if wait is None else wait(after))


async def _has_ended(log: EventLog, run_id: str) -> bool:
    """Whether the log is whole, so that a cursor at or beyond its end has nothing to wait for."""
    last = await log.last(run_id)
    if last is None:
        return False
    events = await log.read(run_id, last - 1, 1)
    return bool(events) and events[-1].type in TERMINAL_TYPES
