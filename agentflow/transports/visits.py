"""Readers here of runs that another process works on: as long as they read, the store says that the run is read.

Whether a run ends for want of readers is decided where it is worked on; see `presence`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from agentflow.errors import StoreError
from agentflow.events import TERMINAL_TYPES, AgentEvent, State, StateEvent
from agentflow.stores.base import Store
from agentflow.streams import Clock, TaskOwner, Timer

logger = logging.getLogger(__name__)

_LEAST = 1.0  # seconds between two marks of a run

Saw: TypeAlias = Callable[[Sequence[AgentEvent]], None]


@dataclass(slots=True)
class _Visit:
    readers: int = 0
    seq: int = 0  # of the newest event that was seen
    goes_on: bool = False
    timer: Timer | None = None  # set while the store's mark is fresh


class Visits:
    """Marks runs as read: when the first reader comes, and then three times in the `grace` for all that read it.

    A run that has ended or waits for people is not marked. A mark outlasts the next one by the `grace` in seconds, so
    that whoever is cut off has that long to come back. There is one timer for each run that is marked.
    """

    def __init__(self, store: Store, clock: Clock, grace: float, tasks: TaskOwner) -> None:
        self._store = store
        self._clock = clock
        self._period = max(grace / 3, _LEAST)
        self._lasts = grace + self._period
        self._tasks = tasks
        self._visits: dict[str, _Visit] = {}

    def __len__(self) -> int:
        return len(self._visits)

    @contextmanager
    def reading(self, run_id: str) -> Iterator[Saw]:
        """One more reads the run, for as long as this lasts, and tells which of its events have gone by."""
        visit = self._visits.get(run_id)
        if visit is None:
            visit = self._visits[run_id] = _Visit()
            self._tasks.spawn(self._find(run_id, visit), name=f"agentflow visit to {run_id}")
        visit.readers += 1
        try:
            yield partial(self._saw, run_id, visit)
        finally:
            visit.readers -= 1
            self._drop(run_id, visit)

    async def _find(self, run_id: str, visit: _Visit) -> None:
        """Look where the run stands: its last event says so."""
        try:
            last = await self._store.last(run_id)
            events = await self._store.read(run_id, last - 1, 1) if last is not None else ()
        except StoreError as error:
            logger.warning("run %s is read here, and could not be looked at: %s", run_id, error)
            return
        visit.goes_on = visit.goes_on or bool(events)
        if visit.readers:
            self._saw(run_id, visit, events)

    def _saw(self, run_id: str, visit: _Visit, events: Sequence[AgentEvent]) -> None:
        if not events or events[-1].seq <= visit.seq:
            return
        for event in events:
            if event.type in TERMINAL_TYPES:
                visit.goes_on = False
            elif isinstance(event, StateEvent) and event.chain_id == run_id:
                visit.goes_on = event.current is not State.SUSPENDED
        visit.seq = events[-1].seq
        if visit.goes_on and visit.timer is None:
            self._mark(run_id, visit)

    def _mark(self, run_id: str, visit: _Visit) -> None:
        visit.timer = self._clock.call_later(self._period, lambda: self._elapsed(run_id, visit))
        self._tasks.spawn(self._mark_read(run_id), name=f"agentflow mark of {run_id}")

    async def _mark_read(self, run_id: str) -> None:
        try:
            await self._store.mark_read(run_id, self._lasts)
        except StoreError as error:
            logger.warning("run %s is read here, and could not be marked so: %s", run_id, error)

    def _elapsed(self, run_id: str, visit: _Visit) -> None:
        visit.timer = None
        if visit.readers and visit.goes_on:
            self._mark(run_id, visit)
        self._drop(run_id, visit)

    def _drop(self, run_id: str, visit: _Visit) -> None:
        """Forget a run that nobody reads; one that was marked just now, when the next mark would be due."""
        if not visit.readers and visit.timer is None and self._visits.get(run_id) is visit:
            del self._visits[run_id]

    def close(self) -> None:
        """Mark nothing any more."""
        for visit in self._visits.values():
            if visit.timer is not None:
                visit.timer.cancel()
        self._visits.clear()
