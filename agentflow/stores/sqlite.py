"""The store in a SQLite file: it outlives its process, and several processes of one machine may share it.

Here calls are given to the threads that read and write, and waiting is done. How the file is kept is in
`sqlite_file`, what is done in it in `sqlite_runs` and `sqlite_sessions`, how others' changes are noticed in
`sqlite_watch`.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from agentflow.events import AgentEvent
from agentflow.stores import refusals, sqlite_runs, sqlite_sessions
from agentflow.stores.base import (
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
)
from agentflow.stores.sqlite_expiry import expire
from agentflow.stores.sqlite_file import Level, SqliteFile
from agentflow.stores.sqlite_threads import SqliteThreads
from agentflow.stores.sqlite_watch import Watch

RENEWAL = 1.0  # seconds after which a place in a line is taken again
EXPIRY = 60.0  # seconds between two looks for what has become too old


class SqliteStore:
    """Runs, sessions, outcomes and facts in the file `path`, whose folder must exist. Opened by the first call.

    With the `level` "normal" nothing that was written is lost when the process is killed, with "full" also when the
    power goes, at the price of a sync to disk with every group of writes. Writes of many runs that come together are
    one group; one that fails does not hinder the others. What this process writes wakes those who wait in it at once;
    what another writes is noticed within `sqlite_watch.POLL` seconds, a letter within `LISTENING`. A lock of another
    process is waited for, for `patience` seconds.

    Finished runs, sessions and outcomes go `ttl` seconds after their last use by the system's clock, which is looked at
    when something is written. Leases, readers and places in lines are counted by the machine's monotonic clock, which
    all its processes share; one that looks longer than it was given for is of a time before a restart, and has lapsed.
    A process that dies while it waits for a session keeps its place for `sqlite_sessions.IN_LINE` seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        level: Level = "normal",
        ttl: float = 24 * 3600.0,
        patience: float = 5.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ttl = ttl
        self._wall = wall
        self._file = SqliteFile(path, level=level, patience=patience)
        self._threads = SqliteThreads(self._file)
        self._watch = Watch(self._file, self._threads)
        self._expiry_due = 0.0

    async def aclose(self) -> None:
        """See `Store.aclose`. What was begun is finished first."""
        self._watch.close()
        await self._threads.aclose()

    # -- the event log -----------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[AgentEvent], *, token: int | None = None) -> None:
        """See `EventLog.append`."""
        self._expire_when_due()
        await self._threads.write(lambda db: sqlite_runs.append(db, run_id, events, token=token, wall=self._wall()))
        self._watch.appends.wake(run_id)

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """See `EventLog.read`. A page also ends with `sqlite_runs.PAGE_BYTES`."""
        return await self._threads.read(lambda db: sqlite_runs.read(db, run_id, after, limit))

    async def wait(self, run_id: str, after: int) -> None:
        """See `EventLog.wait`."""
        with self._watch.appends.join(run_id) as appended:
            last = await self.last(run_id)
            if last is None:
                raise refusals.unknown_run(run_id)
            if last <= after:
                self._watch.arm()
                await appended

    async def last(self, run_id: str) -> int | None:
        """See `EventLog.last`."""
        return await self._threads.read(lambda db: sqlite_runs.last(db, run_id))

    # -- the runs ----------------------------------------------------------------------------------------

    async def find_run(self, run_id: str) -> RunRecord | None:
        """See `RunStore.find_run`."""
        return await self._threads.read(lambda db: sqlite_runs.find_run(db, run_id))

    async def list_runs(
        self, *, before: int | None = None, limit: int = 100, open_only: bool = False
    ) -> Sequence[RunRecord]:
        """See `RunStore.list_runs`."""
        return await self._threads.read(lambda db: sqlite_runs.list_runs(db, before, limit, open_only=open_only))

    async def acquire_lease(self, run_id: str, owner: str, ttl: float) -> int | None:
        """See `RunStore.acquire_lease`."""
        return await self._threads.write(
            lambda db: sqlite_runs.acquire_lease(db, run_id, owner, ttl, now=time.monotonic())
        )

    async def renew_lease(self, run_id: str, token: int, ttl: float) -> bool:
        """See `RunStore.renew_lease`."""
        return await self._threads.write(
            lambda db: sqlite_runs.renew_lease(db, run_id, token, ttl, now=time.monotonic())
        )

    async def release_lease(self, run_id: str, token: int) -> None:
        """See `RunStore.release_lease`."""
        await self._threads.write(lambda db: sqlite_runs.release_lease(db, run_id, token))

    async def send_letter(self, run_id: str, letter: Letter) -> None:
        """See `RunStore.send_letter`."""
        await self._threads.write(lambda db: sqlite_runs.send_letter(db, [run_id], letter))
        self._watch.inboxes.wake(run_id)

    async def list_letters(self, run_id: str) -> Sequence[Letter]:
        """See `RunStore.list_letters`."""
        return await self._threads.read(lambda db: sqlite_runs.list_letters(db, run_id))

    async def delete_letters(self, run_id: str, ids: Sequence[str]) -> None:
        """See `RunStore.delete_letters`."""
        await self._threads.write(lambda db: sqlite_runs.delete_letters(db, run_id, ids))

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See `RunStore.listen`."""
        leave = self._watch.inboxes.join(run_id, heard)
        self._watch.arm()
        return leave

    async def mark_read(self, run_id: str, ttl: float) -> bool:
        """See `RunStore.mark_read`."""
        return await self._threads.write(lambda db: sqlite_runs.mark_read(db, run_id, ttl, now=time.monotonic()))

    async def read_for(self, run_id: str) -> float:
        """See `RunStore.read_for`."""
        return await self._threads.read(lambda db: sqlite_runs.read_for(db, run_id, now=time.monotonic()))

    # -- the sessions ------------------------------------------------------------------------------------

    async def open_session(
        self, key: SessionKey, run_id: str, *, busy: BusyPolicy = "queue", last_turns: int | None = None
    ) -> Session:
        """See `SessionStore.open_session`."""
        ticket = sqlite_sessions.Ticket(key, run_id, busy)
        try:
            await self._take(ticket)
            return await self._threads.read(lambda db: sqlite_sessions.load(db, key, last_turns))
        except BaseException:  # also a cancel: who leaves must not keep the session or a place in its line
            # Also what was on its way to be done when the caller left is undone: writes are done in order.
            self._threads.write_later(partial(sqlite_sessions.leave, ticket=ticket))
            raise

    async def _take(self, ticket: sqlite_sessions.Ticket) -> None:
        while True:
            with self._watch.lines.join(ticket.at) as freed:
                if await self._threads.write(
                    lambda db: sqlite_sessions.take(db, ticket, now=time.monotonic(), wall=self._wall())
                ):
                    return
                self._watch.arm()
                with suppress(TimeoutError):
                    async with asyncio.timeout(RENEWAL):
                        await freed

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
        await self._threads.write(
            lambda db: sqlite_sessions.close_session(db, key, run_id, turn, closing, token=token, wall=self._wall())
        )
        self._watch.lines.wake(sqlite_sessions.line_of(key))

    async def read_turns(self, key: SessionKey, after: int, limit: int) -> Sequence[Turn]:
        """See `SessionStore.read_turns`."""
        return await self._threads.read(lambda db: sqlite_sessions.read_turns(db, key, after, limit))

    async def list_sessions(
        self, user_id: str | None, *, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        """See `SessionStore.list_sessions`."""
        return await self._threads.read(lambda db: sqlite_sessions.list_sessions(db, user_id, before, limit))

    async def find_session(self, key: SessionKey) -> SessionInfo | None:
        """See `SessionStore.find_session`."""
        return await self._threads.read(lambda db: sqlite_sessions.find_session(db, key))

    async def delete_session(self, key: SessionKey) -> None:
        """See `SessionStore.delete_session`."""
        await self._threads.write(lambda db: sqlite_sessions.delete_session(db, key, wall=self._wall()))

    async def keep_summary(self, seen: Session | SessionInfo, summary: Summary) -> bool:
        """See `SessionStore.keep_summary`."""
        return await self._threads.write(lambda db: sqlite_sessions.keep_summary(db, seen, summary))

    # -- outcomes and facts ------------------------------------------------------------------------------

    async def claim_outcome(self, key: OutcomeKey, call_id: str) -> Outcome | None:
        """See `OutcomeIndex.claim_outcome`."""
        return await self._threads.write(lambda db: sqlite_sessions.claim_outcome(db, key, call_id, wall=self._wall()))

    async def keep_outcome(self, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
        """See `OutcomeIndex.keep_outcome`."""
        await self._threads.write(lambda db: sqlite_sessions.keep_outcome(db, key, call_id, outcome, wall=self._wall()))

    async def release_outcome(self, key: OutcomeKey, call_id: str) -> None:
        """See `OutcomeIndex.release_outcome`."""
        await self._threads.write(lambda db: sqlite_sessions.release_outcome(db, key, call_id))

    async def put_facts(self, facts: Sequence[Fact]) -> None:
        """See `FactStore.put_facts`."""
        await self._threads.write(lambda db: sqlite_sessions.put_facts(db, facts))

    async def list_facts(self, user_id: str, *, superseded: bool = False) -> Sequence[Fact]:
        """See `FactStore.list_facts`."""
        return await self._threads.read(lambda db: sqlite_sessions.list_facts(db, user_id, superseded=superseded))

    async def delete_fact(self, user_id: str, fact_id: str) -> None:
        """See `FactStore.delete_fact`."""
        await self._threads.write(lambda db: sqlite_sessions.delete_fact(db, user_id, fact_id))

    # -- age ---------------------------------------------------------------------------------------------

    def _expire_when_due(self) -> None:
        """Beside a write now and then, drop some of what is too old; at once again if there was more."""
        if time.monotonic() < self._expiry_due:
            return
        self._expiry_due = time.monotonic() + EXPIRY
        self._threads.write_later(self._expire)

    def _expire(self, db: sqlite3.Connection) -> None:
        if expire(db, oldest=self._wall() - self._ttl, now=time.monotonic()):
            self._expiry_due = 0.0
