"""The store of a single process that keeps nothing when it ends: the library's default.

Bounded: sessions are dropped least recently used first, finished runs oldest first. A run that is still open and
a session that is held are never dropped.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentflow.errors import RunNotFoundError, SessionBusyError, StoreError
from agentflow.events import TERMINAL_TYPES, AgentEvent
from agentflow.stores.base import Session, SessionKey, Turn

MAX_WAITING = 8  # runs that may wait for a busy session


@dataclass(slots=True)
class _Run:
    events: list[AgentEvent] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    ended_at: float | None = None


@dataclass(slots=True)
class _Session:
    turns: list[Turn] = field(default_factory=list)
    active_run: str | None = None
    waiting: deque[tuple[str, asyncio.Future[None]]] = field(default_factory=deque)
    used_at: float = 0.0


class InMemoryStore:
    """Runs and sessions in dictionaries. For one event loop at a time; nothing here blocks.

    `max_sessions` and `max_runs` bound what is kept, `ttl` seconds how long after its last use; time is read
    from `now`. Expiry happens when something is added, so an idle store has no timer.
    """

    def __init__(
        self,
        *,
        max_sessions: int = 10_000,
        max_runs: int = 10_000,
        ttl: float = 3600.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_runs = max_runs
        self._ttl = ttl
        self._now = now
        self._runs: dict[str, _Run] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()  # finished runs, oldest first
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()  # least recently used first

    # -- the event log -----------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[AgentEvent]) -> None:
        """See `EventLog.append`."""
        run = self._runs.get(run_id)
        expected = len(run.events) if run is not None else 0
        for event in events:
            expected += 1
            if event.seq != expected:
                raise StoreError(f"run {run_id!r}: event {event.seq} cannot follow {expected - 1}; nothing was added")
        if run is None:
            self._expire()
            run = self._runs[run_id] = _Run()
        run.events.extend(events)
        if run.events and run.events[-1].type in TERMINAL_TYPES:
            run.ended_at = self._now()
            self._ended[run_id] = None
        waiters, run.waiters = run.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """See `EventLog.read`."""
        run = self._runs.get(run_id)
        after = max(after, 0)
        return run.events[after : after + limit] if run is not None else ()

    async def wait(self, run_id: str, after: int) -> None:
        """See `EventLog.wait`."""
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFoundError(f"run {run_id!r} is not in this store any more")
        if len(run.events) > after:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run.waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in run.waiters:
                run.waiters.remove(waiter)

    async def last(self, run_id: str) -> int | None:
        """See `EventLog.last`."""
        run = self._runs.get(run_id)
        return len(run.events) if run is not None else None

    # -- the sessions ------------------------------------------------------------------------------------

    async def open_session(self, key: SessionKey, run_id: str) -> Session:
        """See `SessionStore.open_session`."""
        session = self._sessions.get(key)
        if session is None:
            self._expire()
            session = self._sessions[key] = _Session()
        session.used_at = self._now()
        self._sessions.move_to_end(key)
        if session.active_run not in (None, run_id):
            await self._wait_for_turn(key, session, run_id)
        session.active_run = run_id
        return Session(key=key, version=len(session.turns), turns=tuple(session.turns))

    async def close_session(self, key: SessionKey, run_id: str, turn: Turn | None) -> None:
        """See `SessionStore.close_session`."""
        session = self._sessions.get(key)
        if session is None or session.active_run != run_id:
            return
        if turn is not None and all(kept.run_id != run_id for kept in session.turns):
            session.turns.append(turn)
        session.used_at = self._now()
        self._pass_on(session)

    async def aclose(self) -> None:
        """Nothing is open; what is kept stays readable."""

    async def _wait_for_turn(self, key: SessionKey, session: _Session, run_id: str) -> None:
        if len(session.waiting) >= MAX_WAITING:
            raise SessionBusyError(
                f"session {key.session_id!r} is busy with run {session.active_run!r} and {MAX_WAITING} more wait; "
                "send the message again when one of them has ended"
            )
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.waiting.append((run_id, ours))
        try:
            await ours
        except asyncio.CancelledError:
            if session.active_run == run_id:  # the session came to us in the same moment: give it on
                self._pass_on(session)
            elif (run_id, ours) in session.waiting:  # else it was passed over already
                session.waiting.remove((run_id, ours))
            raise

    def _pass_on(self, session: _Session) -> None:
        """Free the session, or hand it to the first run that waits."""
        session.active_run = None
        while session.waiting:
            run_id, waiter = session.waiting.popleft()
            if not waiter.done():
                session.active_run = run_id
                waiter.set_result(None)
                return

    def _expire(self) -> None:
        """Make room for one more run and one more session."""
        oldest = self._now() - self._ttl
        while self._ended:
            run_id = next(iter(self._ended))
            if len(self._runs) < self._max_runs and (self._runs[run_id].ended_at or 0.0) > oldest:
                break
            del self._ended[run_id], self._runs[run_id]
        for key in self._idle_sessions(oldest):
            del self._sessions[key]

    def _idle_sessions(self, oldest: float) -> list[SessionKey]:
        """The sessions to drop: looks no further than the first that may stay."""
        found: list[SessionKey] = []
        for key, session in self._sessions.items():
            if len(self._sessions) - len(found) < self._max_sessions and session.used_at > oldest:
                break
            if session.active_run is None:
                found.append(key)
        return found
