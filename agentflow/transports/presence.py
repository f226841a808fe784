"""Who reads the runs that were begun here: a run that nobody has read for the grace is cancelled.

Readers here are counted, and when there are none the store is asked for those elsewhere, which `visits` has told it of.
A run that waits for people is left alone, and has the grace again when they have decided. One that was begun detached
is left alone too, and one that was taken over from a process that died.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agentflow.chain import AgentChain
from agentflow.errors import StoreError
from agentflow.events import TERMINAL_TYPES, AgentEvent, CancelReason, State, StateEvent
from agentflow.stores.base import Store
from agentflow.streams import Clock, TaskOwner, Timer
from agentflow.transports.visits import Saw, Visits

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    chain: AgentChain
    user_id: str | None
    detached: bool
    readers: int = 0
    timer: Timer | None = None


class Presence:
    """The runs begun here that have not ended, and how many read each; and who reads others here.

    `grace` is in seconds; `tasks` owns what asks and tells the store; `is_alive` says whether a run is still worked on
    here, since one that could not even begin has no end to be seen.
    """

    def __init__(
        self, store: Store, clock: Clock, grace: float, tasks: TaskOwner, is_alive: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._visits = Visits(store, clock, grace, tasks)
        self._tasks = tasks
        self._clock = clock
        self._grace = grace
        self._is_alive = is_alive
        self._runs: dict[str, _Run] = {}
        self._moved = asyncio.Event()  # a run has ended, or begun to wait

    def __len__(self) -> int:
        return len(self._runs)

    def begun(self, chain: AgentChain, user_id: str | None, *, detached: bool) -> None:
        """A run has begun, or takes a message that it has waited for; its first reader has the grace to come."""
        run = self._runs.setdefault(chain.run_id, _Run(chain, user_id, detached))
        run.detached = run.detached or detached
        self._await_reader(run)

    def user_of(self, run_id: str) -> tuple[str | None] | None:
        """Whose run it is, as the only item, if it was begun here and has not ended."""
        run = self._runs.get(run_id)
        return (run.user_id,) if run is not None else None

    @contextmanager
    def reading(self, run_id: str) -> Iterator[Saw]:
        """One more reads the run, for as long as this lasts; it is to tell which events have gone by."""
        run = self._runs.get(run_id)
        if run is None:
            with self._visits.reading(run_id) as saw:
                yield saw
            return
        run.readers += 1
        self._await_reader(run)
        try:
            yield _seen
        finally:
            run.readers -= 1
            if self._runs.get(run_id) is run:
                self._await_reader(run)

    def _await_reader(self, run: _Run) -> None:
        """If nobody reads it, somebody has the whole grace to come."""
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if not run.readers:
            run.timer = self._clock.call_later(self._grace, lambda: self._lapsed(run))

    def _lapsed(self, run: _Run) -> None:
        run.timer = None
        if not self._is_alive(run.chain.run_id):
            self._runs.pop(run.chain.run_id, None)
        elif not run.detached and self._goes_on(run):
            self._tasks.spawn(self._end_unless_read(run), name=f"agentflow readers of {run.chain.run_id}")

    async def _end_unless_read(self, run: _Run) -> None:
        try:
            seconds = await self._store.read_for(run.chain.run_id)
        except StoreError as error:
            logger.warning("run %s goes on, since it is not known who reads it: %s", run.chain.run_id, error)
            seconds = self._grace
        if run.readers or run.timer is not None or self._runs.get(run.chain.run_id) is not run:
            return  # somebody came meanwhile, or it has ended
        if seconds > 0:
            run.timer = self._clock.call_later(seconds, lambda: self._lapsed(run))
        elif self._goes_on(run):
            run.chain.cancel("disconnect")

    def see(self, event: AgentEvent) -> None:
        """An event of any run, from the bus: one that has ended needs no readers, one that goes on has the grace."""
        if event.type in TERMINAL_TYPES:
            run = self._runs.pop(event.run_id, None)
            if run is not None and run.timer is not None:
                run.timer.cancel()
            self._moved.set()
        elif isinstance(event, StateEvent) and event.chain_id == event.run_id:
            if event.current is State.SUSPENDED:
                self._moved.set()
            elif event.previous is State.SUSPENDED and event.run_id in self._runs:
                self._await_reader(self._runs[event.run_id])

    async def settled(self) -> None:
        """Wait until no run goes on: each has ended or waits for people."""
        while any(map(self._goes_on, self._runs.values())):
            self._moved.clear()
            await self._moved.wait()

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the runs that go on."""
        for run in tuple(self._runs.values()):
            if self._goes_on(run):
                run.chain.cancel(reason)

    def _goes_on(self, run: _Run) -> bool:
        return run.chain.state is not State.SUSPENDED and self._is_alive(run.chain.run_id)

    def close(self) -> None:
        """Cancel no run any more, and tell of no reader."""
        self._visits.close()
        for run in self._runs.values():
            if run.timer is not None:
                run.timer.cancel()
        self._runs.clear()


def _seen(events: Sequence[AgentEvent]) -> None:
    """What a run that was begun here does is seen without its readers."""
