"""The store of a single process that keeps nothing when it ends: the library's default.

Bounded: sessions are dropped least recently used first, finished runs and outcomes oldest first. A run that is still
open and a session that is held are never dropped.
"""

import asyncio
import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentflow.events import TERMINAL_TYPES, AgentEvent, CancelReason
from agentflow.stores import letters, refusals
from agentflow.stores.base import (
    MAX_WAITING,
    BusyPolicy,
    Fact,
    Letter,
    Outcome,
    OutcomeKey,
    RunRecord,
    Session,
    SessionInfo,
    SessionKey,
    Summary,
    Turn,
    cancel_letter,
)
from agentflow.stores.in_memory_index import Facts, Outcomes
from agentflow.stores.waiting import Listeners, Waiters


@dataclass(slots=True)
class _Run:
    number: int
    events: list[AgentEvent] = field(default_factory=list)
    closing: tuple[AgentEvent, ...] = ()
    session: SessionKey | None = None
    waiting: bool = False
    inbox: dict[str, Letter] = field(default_factory=dict)  # by id, in order
    read_until: float = 0.0
    owner: str | None = None
    owned_until: float = 0.0
    token: int = 0
    ended_at: float | None = None


@dataclass(slots=True)
class _Session:
    number: int
    turns: dict[str, Turn] = field(default_factory=dict)  # by run id, in order
    summaries: dict[tuple[int, int], Summary] = field(default_factory=dict)
    active_run: str | None = None
    deleted: bool = False  # while its active run held it: what that run stores is not kept
    waiting: deque[tuple[str, asyncio.Future[None]]] = field(default_factory=deque)
    used_at: float = 0.0
    used_wall: float = 0.0


class InMemoryStore:
    """Runs, sessions, outcomes and facts in dictionaries. For one event loop at a time; nothing here blocks.

    `max_sessions`, `max_runs` and `max_outcomes` bound what is kept, `ttl` seconds how long sessions and runs stay
    after their last use, `outcome_ttl` how long an outcome does; of users with facts there are at most as many as of
    sessions. Time is read from `now`. Expiry happens when something is added, so an idle store has no timer.
    """

    def __init__(
        self,
        *,
        max_sessions: int = 10_000,
        max_runs: int = 10_000,
        max_outcomes: int = 100_000,
        ttl: float = 3600.0,
        outcome_ttl: float = 24 * 3600.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_runs = max_runs
        self._ttl = ttl
        self._now = now
        self._numbers = itertools.count(1)
        self._runs: dict[str, _Run] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()  # finished runs, oldest first
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()  # least recently used first
        self._outcomes = Outcomes(max_outcomes, outcome_ttl, now)
        self._facts = Facts(max_sessions)
        self._appends: Waiters[str] = Waiters()
        self._inboxes: Listeners[str] = Listeners()

    # -- the event log -----------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[AgentEvent], *, token: int | None = None) -> None:
        """See `EventLog.append`."""
        run = self._runs.get(run_id)
        if token is not None:
            self._leased(run_id, token)
        expected = len(run.events) if run is not None else 0
        for event in events:
            expected += 1
            if event.seq != expected:
                raise refusals.does_not_follow(run_id, event.seq, expected - 1)
        if not events:
            return
        if run is None:
            run = self._new_run(run_id)
        run.events.extend(events)
        if events[-1].type in TERMINAL_TYPES:
            run.closing, run.ended_at = (), self._now()
            run.inbox.clear()
            self._ended[run_id] = None
        self._appends.wake(run_id)

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """See `EventLog.read`."""
        run = self._runs.get(run_id)
        after = max(after, 0)
        return run.events[after : after + limit] if run is not None else ()

    async def wait(self, run_id: str, after: int) -> None:
        """See `EventLog.wait`."""
        run = self._runs.get(run_id)
        if run is None or not run.events:
            raise refusals.unknown_run(run_id)
        if len(run.events) <= after:
            with self._appends.join(run_id) as appended:
                await appended

    async def last(self, run_id: str) -> int | None:
        """See `EventLog.last`."""
        run = self._runs.get(run_id)
        return len(run.events) or None if run is not None else None

    # -- the runs ----------------------------------------------------------------------------------------

    async def find_run(self, run_id: str) -> RunRecord | None:
        """See `RunStore.find_run`."""
        run = self._runs.get(run_id)
        return _record(run_id, run) if run is not None else None

    async def list_runs(
        self, *, before: int | None = None, limit: int = 100, open_only: bool = False
    ) -> Sequence[RunRecord]:
        """See `RunStore.list_runs`."""
        found = (
            _record(run_id, run)
            for run_id, run in reversed(self._runs.items())
            if (before is None or run.number < before) and not (open_only and run.ended_at is not None)
        )
        return tuple(itertools.islice(found, limit))

    async def acquire_lease(self, run_id: str, owner: str, ttl: float) -> int | None:
        """See `RunStore.acquire_lease`."""
        run = self._runs.get(run_id) or self._new_run(run_id)
        if run.owner != owner:
            if run.owner is not None and run.owned_until > self._now():
                return None
            run.owner = owner
            run.token = next(self._numbers)  # of all runs: also higher than that of a run which was forgotten
        run.owned_until = self._now() + ttl
        return run.token

    async def renew_lease(self, run_id: str, token: int, ttl: float) -> bool:
        """See `RunStore.renew_lease`."""
        run = self._leased(run_id, token)
        run.owned_until = self._now() + ttl
        return bool(run.inbox)

    async def release_lease(self, run_id: str, token: int) -> None:
        """See `RunStore.release_lease`."""
        run = self._runs.get(run_id)
        if run is not None and run.token == token:
            run.owner = None
            self._drop_if_empty(run_id)

    async def send_letter(self, run_id: str, letter: Letter) -> None:
        """See `RunStore.send_letter`."""
        run = self._going_on(run_id)
        if run is None or letter.id in run.inbox:
            return
        if not letters.has_room(letter, [len(letters.encode(kept)) for kept in run.inbox.values()]):
            raise letters.no_room(run_id)
        run.inbox[letter.id] = letter
        self._inboxes.wake(run_id)

    async def list_letters(self, run_id: str) -> Sequence[Letter]:
        """See `RunStore.list_letters`."""
        run = self._runs.get(run_id)
        return tuple(run.inbox.values()) if run is not None else ()

    async def delete_letters(self, run_id: str, ids: Sequence[str]) -> None:
        """See `RunStore.delete_letters`."""
        inbox = self._runs[run_id].inbox if run_id in self._runs else {}
        for letter_id in ids:
            inbox.pop(letter_id, None)

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See `RunStore.listen`."""
        return self._inboxes.join(run_id, heard)

    async def mark_read(self, run_id: str, ttl: float) -> bool:
        """See `RunStore.mark_read`."""
        run = self._going_on(run_id)
        if run is not None:
            run.read_until = max(run.read_until, self._now() + ttl)
        return run is not None

    async def read_for(self, run_id: str) -> float:
        """See `RunStore.read_for`."""
        run = self._going_on(run_id)
        return max(run.read_until - self._now(), 0.0) if run is not None else 0.0

    def _going_on(self, run_id: str) -> _Run | None:
        run = self._runs.get(run_id)
        return run if run is not None and run.ended_at is None else None

    def _leased(self, run_id: str, token: int) -> _Run:
        run = self._runs.get(run_id)
        if run is None or run.owner is None or run.token != token:
            raise refusals.lease_lost(run_id, token)
        return run

    def _new_run(self, run_id: str) -> _Run:
        self._expire()
        run = self._runs[run_id] = _Run(next(self._numbers))
        return run

    def _drop_if_empty(self, run_id: str) -> None:
        """Forget a run of which there is nothing to know any more."""
        run = self._runs.get(run_id)
        if run is None or run.events or run.owner is not None or run.waiting:
            return
        session = self._sessions.get(run.session) if run.session is not None else None
        if session is None or session.active_run != run_id:
            del self._runs[run_id]

    # -- the sessions ------------------------------------------------------------------------------------

    async def open_session(
        self, key: SessionKey, run_id: str, *, busy: BusyPolicy = "queue", last_turns: int | None = None
    ) -> Session:
        """See `SessionStore.open_session`."""
        run = self._runs.get(run_id) or self._new_run(run_id)
        session = self._sessions.get(key)
        if session is None:
            self._expire()
            session = self._sessions[key] = _Session(next(self._numbers))
        self._touch(key, session)
        if session.active_run not in (None, run_id):
            run.waiting = True
            try:
                await self._wait_for_turn(key, session, run_id, busy)
            except BaseException:  # also a cancel: who leaves the line waits no longer
                run.waiting = False
                self._drop_if_empty(run_id)
                raise
            run.waiting = False
        session.active_run, run.session = run_id, key
        newest = itertools.islice(reversed(session.turns.values()), last_turns)
        return Session(
            key=key,
            version=len(session.turns),
            turns=tuple(newest)[::-1],
            summaries=tuple(session.summaries[turns_] for turns_ in sorted(session.summaries)),
            number=session.number,
        )

    async def close_session(
        self,
        key: SessionKey,
        run_id: str,
        turn: Turn | None,
        closing: Sequence[AgentEvent] = (),
        *,
        token: int | None = None,
    ) -> None:
        """See `SessionStore.close_session`."""
        if token is not None:
            self._leased(run_id, token)
        session = self._sessions.get(key)
        if session is None or session.active_run != run_id:
            return
        if turn is not None and not session.deleted:
            session.turns.setdefault(run_id, turn)
        self._touch(key, session)
        run = self._runs[run_id]
        if run.ended_at is None:
            run.closing = tuple(closing)
        self._pass_on(key, session)

    async def read_turns(self, key: SessionKey, after: int, limit: int) -> Sequence[Turn]:
        """See `SessionStore.read_turns`."""
        session = self._sessions.get(key)
        after = max(after, 0)
        return tuple(itertools.islice(session.turns.values(), after, after + limit)) if session is not None else ()

    async def list_sessions(
        self, user_id: str | None, *, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        """See `SessionStore.list_sessions`."""
        found = [
            _info(key, session)
            for key, session in self._sessions.items()
            if key.user_id == user_id and not session.deleted and (before is None or session.number < before)
        ]
        return sorted(found, key=lambda info: -info.number)[:limit]

    async def find_session(self, key: SessionKey) -> SessionInfo | None:
        """See `SessionStore.find_session`."""
        session = self._sessions.get(key)
        return _info(key, session) if session is not None and not session.deleted else None

    async def delete_session(self, key: SessionKey) -> None:
        """See `SessionStore.delete_session`."""
        session = self._sessions.get(key)
        if session is None:
            return
        session.turns.clear()
        session.summaries.clear()
        session.number = next(self._numbers)
        for run_id in [ended for ended in self._ended if self._runs[ended].session == key]:
            del self._ended[run_id], self._runs[run_id]
        if session.active_run is None:
            del self._sessions[key]
            return
        session.deleted = True
        await self._ask_to_end(session, "user")

    async def keep_summary(self, seen: Session | SessionInfo, summary: Summary) -> bool:
        """See `SessionStore.keep_summary`."""
        session = self._sessions.get(seen.key)
        if session is None or (session.number, len(session.turns)) != (seen.number, seen.version):
            return False
        session.summaries[summary.first, summary.last] = summary
        return True

    async def _wait_for_turn(self, key: SessionKey, session: _Session, run_id: str, busy: BusyPolicy) -> None:
        if busy == "reject" or len(session.waiting) >= MAX_WAITING:
            raise refusals.busy(key, session.active_run, len(session.waiting))
        if busy == "supersede":
            await self._ask_to_end(session, "superseded")
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.waiting.append((run_id, ours))
        try:
            await ours
        except asyncio.CancelledError:
            if session.active_run == run_id:  # the session came to us in the same moment: give it on
                self._pass_on(key, session)
            elif (run_id, ours) in session.waiting:  # else it was passed over already
                session.waiting.remove((run_id, ours))
            raise

    async def _ask_to_end(self, session: _Session, reason: CancelReason) -> None:
        """Ask the session's active run and all that wait for it to end."""
        for run_id in (session.active_run, *(waiting for waiting, _ in session.waiting)):
            if run_id is not None:
                await self.send_letter(run_id, cancel_letter(reason))

    def _pass_on(self, key: SessionKey, session: _Session) -> None:
        """Free the session, or hand it to the first run that waits."""
        freed, session.active_run = session.active_run, None
        while session.waiting and session.active_run is None:
            run_id, waiter = session.waiting.popleft()
            if not waiter.done():
                session.active_run = run_id
                waiter.set_result(None)
        if session.deleted and session.active_run is None:
            del self._sessions[key]
        session.deleted = False
        if freed is not None:
            self._drop_if_empty(freed)

    # -- outcomes and facts ------------------------------------------------------------------------------

    async def claim_outcome(self, key: OutcomeKey, call_id: str) -> Outcome | None:
        """See `OutcomeIndex.claim_outcome`."""
        return self._outcomes.claim(key, call_id)

    async def keep_outcome(self, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
        """See `OutcomeIndex.keep_outcome`."""
        self._outcomes.keep(key, call_id, outcome)

    async def release_outcome(self, key: OutcomeKey, call_id: str) -> None:
        """See `OutcomeIndex.release_outcome`."""
        self._outcomes.release(key, call_id)

    async def put_facts(self, facts: Sequence[Fact]) -> None:
        """See `FactStore.put_facts`."""
        self._facts.put(facts)

    async def list_facts(self, user_id: str, *, superseded: bool = False) -> Sequence[Fact]:
        """See `FactStore.list_facts`."""
        return self._facts.of(user_id, superseded=superseded)

    async def delete_fact(self, user_id: str, fact_id: str) -> None:
        """See `FactStore.delete_fact`."""
        self._facts.delete(user_id, fact_id)

    # -- bounds ------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Nothing is open; what is kept stays readable."""

    def _touch(self, key: SessionKey, session: _Session) -> None:
        session.used_at, session.used_wall = self._now(), time.time()
        self._sessions.move_to_end(key)

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


def _record(run_id: str, run: _Run) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        number=run.number,
        session=run.session,
        last=len(run.events),
        ended=run.ended_at is not None,
        closing=run.closing,
    )


def _info(key: SessionKey, session: _Session) -> SessionInfo:
    return SessionInfo(
        key=key,
        number=session.number,
        version=len(session.turns),
        used_at=session.used_wall,
        active_run=session.active_run,
    )
