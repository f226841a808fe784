"""Who reads the runs that were begun here: a run that nobody has read for the grace is cancelled.

It counts within this process only; readers of other processes are not seen here. A run that waits for people is left
alone, as is one that was begun detached, and one that was taken over from a process that died.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentflow.chain import AgentChain
from agentflow.events import TERMINAL_TYPES, AgentEvent, CancelReason, State, StateEvent
from agentflow.streams import Clock, Timer


@dataclass(slots=True)
class _Run:
    chain: AgentChain
    user_id: str | None
    detached: bool
    readers: int = 0
    timer: Timer | None = None


class Presence:
    """The runs begun here that have not ended, and how many read each.

    `grace` is in seconds; `is_alive` says whether a run is still worked on here, since one that could not even begin
    has no end to be seen.
    """

    def __init__(self, clock: Clock, grace: float, is_alive: Callable[[str], bool]) -> None:
        self._clock = clock
        self._grace = grace
        self._is_alive = is_alive
        self._runs: dict[str, _Run] = {}
        self._moved = asyncio.Event()  # a run has ended, or begun to wait

    def __len__(self) -> int:
        return len(self._runs)

    def begun(self, chain: AgentChain, user_id: str | None, *, detached: bool) -> None:
        """A run has begun; its first reader has the grace to come."""
        run = self._runs[chain.run_id] = _Run(chain, user_id, detached)
        self._left(run)

    def user_of(self, run_id: str) -> tuple[str | None] | None:
        """Whose run it is, as the only item, if it was begun here and has not ended."""
        run = self._runs.get(run_id)
        return (run.user_id,) if run is not None else None

    @contextmanager
    def reading(self, run_id: str) -> Iterator[None]:
        """One more reads the run, for as long as this lasts."""
        run = self._runs.get(run_id)
        if run is None:
            yield
            return
        run.readers += 1
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        try:
            yield
        finally:
            run.readers -= 1
            if not run.readers and self._runs.get(run_id) is run:
                self._left(run)

    def _left(self, run: _Run) -> None:
        run.timer = self._clock.call_later(self._grace, lambda: self._lapsed(run))

    def _lapsed(self, run: _Run) -> None:
        run.timer = None
        if not self._is_alive(run.chain.run_id):
            self._runs.pop(run.chain.run_id, None)
        elif not run.detached and self._goes_on(run):
            run.chain.cancel("disconnect")

    def see(self, event: AgentEvent) -> None:
        """An event of any run, from the bus: a run that has ended needs no readers."""
        if event.type in TERMINAL_TYPES:
            run = self._runs.pop(event.run_id, None)
            if run is not None and run.timer is not None:
                run.timer.cancel()
            self._moved.set()
        elif isinstance(event, StateEvent) and event.current is State.SUSPENDED:
            self._moved.set()

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
        """Cancel no run any more."""
        for run in self._runs.values():
            if run.timer is not None:
                run.timer.cancel()
        self._runs.clear()
