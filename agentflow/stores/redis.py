"""The store on a Redis server: it outlives its process, and processes of several machines may share it.

Here calls are put together and waiting is done; what is on the server is the business of `redis_runs`,
`redis_sessions` and `redis_index`, and `redis_scripts` lists its keys.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from agentflow.errors import SessionBusyError, StoreError
from agentflow.events import AgentEvent
from agentflow.stores import redis_index, redis_runs, redis_sessions, refusals
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
from agentflow.stores.redis_server import RedisServer
from agentflow.stores.redis_sessions import IN_LINE, Taken, Ticket
from agentflow.stores.redis_watch import Letterbox, Watch
from agentflow.streams import TaskOwner

logger = logging.getLogger(__name__)


class RedisStore:
    """Runs, sessions, outcomes and facts on one Redis or Valkey server (6.2 or newer, no cluster), under `prefix`.

    Each write is one script, which the server does wholly or not at all and one after another. A call that the server
    has not answered within `call_timeout` seconds raises `StoreError`, and is not tried again; waiting takes as long
    as it must, on two more connections, and ends with a `StoreError` when the server does not answer for longer.
    Calls share `connections`; those that come together are sent together.

    Finished runs, sessions and outcomes go `ttl` seconds after their last use. Leases, places in lines and all that
    expires are counted by the server's clock. A process that dies while it waits for a session keeps its place for
    `redis_sessions.IN_LINE` seconds.

    The first call looks whether the server keeps what it has accepted. `warnings` says then what does not hold, such as
    that there is no append-only file; it is logged too, and refused as `ConfigError` with `require_aof`.

    For one event loop at a time. Raises `ConfigError` for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "agentflow",
        ttl: float = 24 * 3600.0,
        call_timeout: float = 2.0,
        connections: int = 4,
        require_aof: bool = False,
    ) -> None:
        self._server = RedisServer(
            url,
            prefix=prefix,
            ttl=ttl,
            call_timeout=call_timeout,
            connections=connections,
            require_aof=require_aof,
        )
        self._events = Watch(self._server)
        self._requests = Watch(self._server)  # apart: it is waited for as long as runs are worked on, and seldom comes
        self._letterbox = Letterbox(self._server, self._requests)
        self._leaving = TaskOwner()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against this server, as sentences; known after the first call."""
        return self._server.warnings

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._leaving.drain(self._server.call_timeout)
        await self._letterbox.aclose()
        await self._events.aclose()
        await self._requests.aclose()
        await self._server.aclose()

    # -- the event log -----------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[AgentEvent], *, token: int | None = None) -> None:
        """See `EventLog.append`."""
        await redis_runs.append(self._server, run_id, events, token)

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """See `EventLog.read`. A page also ends with `redis_runs.PAGE_BYTES`."""
        return await redis_runs.read(self._server, run_id, after, limit)

    async def wait(self, run_id: str, after: int) -> None:
        """See `EventLog.wait`."""
        last = await self.last(run_id)
        if last is None:
            raise refusals.unknown_run(run_id)
        if last <= after:
            await self._events.entry(redis_runs.events_key(self._server, run_id), f"{after}-0")

    async def last(self, run_id: str) -> int | None:
        """See `EventLog.last`."""
        return await redis_runs.last(self._server, run_id)

    # -- the runs ----------------------------------------------------------------------------------------

    async def find_run(self, run_id: str) -> RunRecord | None:
        """See `RunStore.find_run`."""
        return await redis_runs.find_run(self._server, run_id)

    async def list_runs(
        self, *, before: int | None = None, limit: int = 100, open_only: bool = False
    ) -> Sequence[RunRecord]:
        """See `RunStore.list_runs`."""
        return await redis_runs.list_runs(self._server, before, limit, open_only=open_only)

    async def acquire_lease(self, run_id: str, owner: str, ttl: float) -> int | None:
        """See `RunStore.acquire_lease`."""
        return await redis_runs.acquire_lease(self._server, run_id, owner, ttl)

    async def renew_lease(self, run_id: str, token: int, ttl: float) -> bool:
        """See `RunStore.renew_lease`."""
        return await redis_runs.renew_lease(self._server, run_id, token, ttl)

    async def release_lease(self, run_id: str, token: int) -> None:
        """See `RunStore.release_lease`."""
        await redis_runs.release_lease(self._server, run_id, token)

    async def send_letter(self, run_id: str, letter: Letter) -> None:
        """See `RunStore.send_letter`."""
        await redis_runs.send_letter(self._server, run_id, letter)

    async def list_letters(self, run_id: str) -> Sequence[Letter]:
        """See `RunStore.list_letters`."""
        return await redis_runs.list_letters(self._server, run_id)

    async def delete_letters(self, run_id: str, ids: Sequence[str]) -> None:
        """See `RunStore.delete_letters`."""
        await redis_runs.delete_letters(self._server, run_id, ids)

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See `RunStore.listen`."""
        return self._letterbox.listen(run_id, heard)

    async def mark_read(self, run_id: str, ttl: float) -> bool:
        """See `RunStore.mark_read`."""
        return await redis_runs.mark_read(self._server, run_id, ttl)

    async def read_for(self, run_id: str) -> float:
        """See `RunStore.read_for`."""
        return await redis_runs.read_for(self._server, run_id)

    # -- the sessions ------------------------------------------------------------------------------------

    async def open_session(
        self, key: SessionKey, run_id: str, *, busy: BusyPolicy = "queue", last_turns: int | None = None
    ) -> Session:
        """See `SessionStore.open_session`."""
        ticket = Ticket(key, run_id, busy)
        try:
            taken = await self._take(ticket)
            return await redis_sessions.load(self._server, key, taken, last_turns)
        except SessionBusyError:
            raise
        except BaseException:  # also a cancel: who leaves must not keep the session or a place in its line
            # Its own task, since we may be cancelled once more while it is under way.
            await asyncio.shield(self._leaving.spawn(self._leave(ticket), name=f"leaving session {key.session_id!r}"))
            raise

    async def _take(self, ticket: Ticket) -> Taken:
        while not isinstance(taken := await redis_sessions.take(self._server, ticket), Taken):
            with suppress(TimeoutError):
                async with asyncio.timeout(IN_LINE / 3):
                    await self._requests.entry(redis_sessions.freed_key(self._server, ticket.key), taken)
        return taken

    async def _leave(self, ticket: Ticket) -> None:
        try:
            await redis_sessions.leave(self._server, ticket)
        except StoreError as error:
            logger.warning(
                "run %r could not leave session %r; it is free when the run has been recovered: %s",
                ticket.run_id,
                ticket.key.session_id,
                error,
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
        await redis_sessions.close_session(self._server, key, run_id, turn, closing, token)

    async def read_turns(self, key: SessionKey, after: int, limit: int) -> Sequence[Turn]:
        """See `SessionStore.read_turns`."""
        return await redis_sessions.read_turns(self._server, key, after, limit)

    async def list_sessions(
        self, user_id: str | None, *, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        """See `SessionStore.list_sessions`."""
        return await redis_sessions.list_sessions(self._server, user_id, before, limit)

    async def find_session(self, key: SessionKey) -> SessionInfo | None:
        """See `SessionStore.find_session`."""
        return await redis_sessions.find_session(self._server, key)

    async def delete_session(self, key: SessionKey) -> None:
        """See `SessionStore.delete_session`."""
        await redis_sessions.delete_session(self._server, key)

    async def keep_summary(self, seen: Session | SessionInfo, summary: Summary) -> bool:
        """See `SessionStore.keep_summary`."""
        return await redis_sessions.keep_summary(self._server, seen, summary)

    # -- outcomes and facts ------------------------------------------------------------------------------

    async def claim_outcome(self, key: OutcomeKey, call_id: str) -> Outcome | None:
        """See `OutcomeIndex.claim_outcome`."""
        return await redis_index.claim_outcome(self._server, key, call_id)

    async def keep_outcome(self, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
        """See `OutcomeIndex.keep_outcome`."""
        await redis_index.keep_outcome(self._server, key, call_id, outcome)

    async def release_outcome(self, key: OutcomeKey, call_id: str) -> None:
        """See `OutcomeIndex.release_outcome`."""
        await redis_index.release_outcome(self._server, key, call_id)

    async def put_facts(self, facts: Sequence[Fact]) -> None:
        """See `FactStore.put_facts`."""
        await redis_index.put_facts(self._server, facts)

    async def list_facts(self, user_id: str, *, superseded: bool = False) -> Sequence[Fact]:
        """See `FactStore.list_facts`."""
        return await redis_index.list_facts(self._server, user_id, superseded=superseded)

    async def delete_fact(self, user_id: str, fact_id: str) -> None:
        """See `FactStore.delete_fact`."""
        await redis_index.delete_fact(self._server, user_id, fact_id)
