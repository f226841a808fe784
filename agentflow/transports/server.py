"""What all handlers share: the agents, whose runs are whose, and the one way in which a run is begun.

It knows no route, no frame and no socket.
"""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from aiohttp import web

from agentflow.agent import Agent
from agentflow.bus import EventBus
from agentflow.chain import AgentChain
from agentflow.chain.leases import LEASE_SECONDS
from agentflow.chain.recovery import open_runs
from agentflow.errors import AgentflowError, ConfigError, OutcomePendingError, RunNotFoundError, StoreError
from agentflow.event_log import PAGE, Reader
from agentflow.events import InputEvent
from agentflow.observability.overview import Overview
from agentflow.settings import KeySettings, Settings
from agentflow.stores.base import Outcome, OutcomeKey
from agentflow.streams import Clock, LoopClock, TaskOwner
from agentflow.transports.auth import Caller, Keys, Tickets
from agentflow.transports.bodies import Ask
from agentflow.transports.connections import Connections
from agentflow.transports.firehose import Firehose
from agentflow.transports.presence import Presence
from agentflow.transports.quotas import build_quotas
from agentflow.transports.readings import Readings
from agentflow.transports.refusals import RETRY_AFTER, Refused, unknown_run
from agentflow.transports.toolless import without_tools
from agentflow.transports.views import RunView

logger = logging.getLogger(__name__)

_PATIENCE = 0.25  # seconds in which most runs begin that do not have to wait
_BEGUN = "agentflow request"  # what requests are kept as in the outcome index; no tool has such a name


class Server:
    """What the handlers of one application share; found as `request.app[SERVER]`.

    The agents share a store, have names of their own, and stay whoever made them's to close.
    """

    def __init__(self, agents: Sequence[Agent], settings: Settings, clock: Clock | None = None) -> None:
        if not agents:
            raise ConfigError("a server needs at least one agent")
        self.agents = {agent.name: agent for agent in agents}
        if len(self.agents) < len(agents):
            raise ConfigError("the agents of a server need different names: Agent(name=...)")
        if any(agent.store is not agents[0].store for agent in agents):
            raise ConfigError("the agents of a server share a store: make one and pass it to each as Agent(store=...)")
        self.settings = settings
        self.store = agents[0].store
        self.clock = clock if clock is not None else LoopClock()
        self.owner = TaskOwner()
        self.keys = Keys(settings.server.keys)
        self.tickets = Tickets(self.clock)
        self.connections = Connections()
        self.presence = Presence(
            self.store, self.clock, settings.server.grace, self.owner, lambda run_id: self.chain(run_id) is not None
        )
        self.overview = Overview()
        self.firehose = Firehose()
        self.readings = Readings(self._last_seq, self.clock)
        self.exposition: Callable[[str], tuple[bytes, str]] | None = None  # the metrics, as `Accept` wants them
        self.quotas = build_quotas(settings.limits, self.clock, self.owner)
        self.draining = False
        self._alone: set[Agent] = set()  # without tools, each for one request
        self._unsettled: dict[
            tuple[OutcomeKey, str], tuple[str, asyncio.Task[AgentflowError | None]]
        ] = {}  # the runs that requests stand for, which may not have begun
        self._beginning: dict[tuple[OutcomeKey, str], asyncio.Task[str | AgentflowError]] = {}

    def agent(self, name: str | None) -> Agent:
        """The agent of this name, or the first. Raises `Refused` (400)."""
        if name is None:
            return next(iter(self.agents.values()))
        if name not in self.agents:
            raise Refused(400, "request", f"there is no agent {name[:140]!r}; there are: {', '.join(self.agents)}")
        return self.agents[name]

    def buses(self) -> Collection[EventBus]:
        """Where the agents publish, each once."""
        return {id(agent.bus): agent.bus for agent in self.agents.values()}.values()

    def replace_keys(self, keys: Mapping[str, KeySettings]) -> None:
        """Let in these keys from now on; what others have open is ended. Where there were none, none are needed."""
        if self.keys.required:
            gone = self.keys.replace(keys)
            self.tickets.revoke(gone)
            self.connections.end(gone)

    # -- beginning runs ------------------------------------------------------------------------------------

    async def begin(self, caller: Caller, ask: Ask, request_id: str | None) -> str:
        """Begin the run that is asked for, and give its id; with a `request_id` at most once, however often it is sent.

        The run goes on when the client leaves, for the grace. Raises `Refused`: 400 for what the agent does not take,
        409 for a `request_id` that stands for another request or that another process is at, 503 while the server shuts
        down. Raises `RateLimitedError` for more than the caller's key may have. What could not begin, such as in a
        session that is busy, may be sent again with its `request_id`.
        """
        agent = self.agent(ask.agent)
        if request_id is None:
            return await self._start(agent, caller, ask)
        key = (OutcomeKey(_BEGUN, request_id, caller.user_id), _fingerprint(ask))
        if key in self._unsettled:
            run_id, settling = self._unsettled[key]
            if self.chain(run_id) is not None:
                return run_id
            await asyncio.shield(settling)
        task = self._beginning.get(key)
        if task is None:
            # A task of its own: a client that leaves in the middle must not leave half of it done.
            task = self.owner.spawn(self._begin_once(*key, agent, caller, ask), name="agentflow begin")
            self._beginning[key] = task
            task.add_done_callback(lambda _: self._beginning.pop(key))
        begun = await asyncio.shield(task)
        if isinstance(begun, AgentflowError):
            raise begun
        return begun

    async def _begin_once(
        self, key: OutcomeKey, fingerprint: str, agent: Agent, caller: Caller, ask: Ask
    ) -> str | AgentflowError:
        claim = secrets.token_hex(16)
        try:
            earlier = await self.store.claim_outcome(key, claim)
            if earlier is not None:
                if earlier.result == fingerprint:
                    return earlier.run_id
                return Refused(409, "conflict", f"request_id {key.key!r} was sent with another request; use a new one")
            try:
                run_id = await self._start(agent, caller, ask)
            except AgentflowError:
                await self.store.release_outcome(key, claim)
                raise
        except OutcomePendingError:
            message = f"another process has begun with request_id {key.key!r}, or died over it; ask again in a while"
            return Refused(409, "outcome_pending", message, {"Retry-After": str(RETRY_AFTER)})
        except AgentflowError as error:
            return error
        begun = Outcome(run_id=run_id, call_id=claim, tool=_BEGUN, result=fingerprint)
        settling = self.owner.spawn(self._settle(key, begun, agent.attach(run_id)), name="agentflow begun")
        self._unsettled[key, fingerprint] = run_id, settling
        settling.add_done_callback(lambda _: self._unsettled.pop((key, fingerprint)))
        await asyncio.wait((settling,), timeout=_PATIENCE)
        return (settling.result() if settling.done() else None) or run_id

    async def _settle(self, key: OutcomeKey, begun: Outcome, chain: AgentChain) -> AgentflowError | None:
        """Keep that the request stands for this run when it has begun, which may take as long as its session is busy.

        What could not begin may be sent again; gives the error.
        """
        try:
            try:
                await chain.begun()
            except StoreError:  # it may have begun all the same
                pass
            except AgentflowError as error:
                await self.store.release_outcome(key, begun.call_id)
                return error
            await self.store.keep_outcome(key, begun.call_id, begun)
        except AgentflowError as error:
            logger.warning("request %r stays claimed for run %s: %s", key.key, begun.run_id, error)
        return None

    async def _start(self, agent: Agent, caller: Caller, ask: Ask) -> str:
        if self.draining:
            raise Refused(503, "unavailable", "the server shuts down; ask again", {"Retry-After": str(RETRY_AFTER)})
        try:
            begin = partial(agent.start, ask.request(caller.user_id))
            chain = await self.admit(caller, begin, detached=ask.detached)
        except ConfigError as error:
            if ask.model is not None:
                raise Refused(400, "config", str(error)) from error
            raise Refused(503, "config", str(error)) from error
        return chain.run_id

    async def admit(self, caller: Caller, start: Callable[[], AgentChain], *, detached: bool = False) -> AgentChain:
        """Begin a run if the caller's key may have one more. Raises `RateLimitedError`, and what `start` does."""
        chain = start() if self.quotas is None else await self.quotas.run(caller, start)
        self.presence.begun(chain, caller.user_id, detached=detached)
        return chain

    @asynccontextmanager
    async def without_tools(self, agent: Agent) -> AsyncIterator[Agent]:
        """The agent as it is without its tools, for one request. Raises `Refused` (503) where it has no model."""
        try:
            alone = without_tools(agent, self.settings)
        except ConfigError as error:
            raise Refused(503, "config", str(error)) from error
        self._alone.add(alone)
        try:
            async with alone:
                yield alone
        finally:
            self._alone.discard(alone)

    async def recover(self) -> None:
        """Take over the runs of these agents whose process died; see `Agent.recover`. They need no readers.

        Those without tools are ended: the client that each was for has gone with the process.
        """
        for agent in self.agents.values():
            for chain in await agent.recover():
                user = await self._stored_user(chain.run_id)
                self.presence.begun(chain, user[0] if user is not None else None, detached=True)
        left = [record.run_id async for record in open_runs(self.store) if self.chain(record.run_id) is None]
        for agent in self.agents.values() if left else ():
            with suppress(Refused):  # it has no model, so that no run of it was begun
                await self._end_without_tools(agent, left)

    async def _end_without_tools(self, agent: Agent, left: Sequence[str]) -> None:
        async with self.without_tools(agent) as alone:
            for run_id in left if alone.name not in self.agents else ():
                for chain in await alone.recover(run_id):
                    chain.cancel("disconnect")

    async def keep_recovering(self) -> None:
        """`recover` again and again: what a process held that died just now is to be had when its leases lapse."""
        while True:
            await asyncio.sleep(LEASE_SECONDS)
            if self.draining:
                return
            try:
                await self.recover()
            except StoreError as error:
                logger.warning("runs whose process died could not be looked for: %s", error)

    # -- finding runs --------------------------------------------------------------------------------------

    async def check_run(self, caller: Caller, run_id: str) -> None:
        """Raise `Refused` (404) unless there is such a run and the caller may see it.

        One that ended before it had its session is nobody's.
        """
        owner = self.presence.user_of(run_id) or await self._stored_user(run_id)
        if owner is None or not (caller.sees_all or owner[0] == caller.user_id):
            raise unknown_run(run_id)

    async def _stored_user(self, run_id: str) -> tuple[str | None] | None:
        for event in await self.store.read(run_id, 0, 1):
            if isinstance(event, InputEvent):
                return (event.user_id,)
        record = await self.store.find_run(run_id)  # it may have been cancelled when it had its session
        return (record.session.user_id,) if record is not None and record.session is not None else None

    def chain(self, run_id: str) -> AgentChain | None:
        """The run, if it is alive in this process."""
        agent = self._agent_of(run_id)
        return agent.attach(run_id) if agent is not None else None

    def reader(self, run_id: str, after: int = 0) -> Reader:
        """A cursor in the run's log."""
        reader = (self._agent_of(run_id) or self.agent(None)).reader(run_id, after)
        self.readings.add(reader, run_id)
        return reader

    def _agent_of(self, run_id: str) -> Agent | None:
        """Who works on the run here."""
        for agent in (*self.agents.values(), *self._alone):
            try:
                agent.attach(run_id)
            except RunNotFoundError:
                continue
            return agent
        return None

    def _last_seq(self, run_id: str) -> int:
        chain = self.chain(run_id)
        return chain.seq if chain is not None else 0

    async def view(self, run_id: str) -> RunView:
        """What the run has come to so far."""
        view = RunView(run_id)
        while events := await self.store.read(run_id, view.seq, PAGE):
            view.take(events)
        return view

    async def is_at_end(self, run_id: str, seq: int) -> bool:
        """Whether the log has nothing after this event, for now."""
        return await self.store.last(run_id) == seq


SERVER: web.AppKey[Server] = web.AppKey("agentflow_server", Server)


def _fingerprint(ask: Ask) -> str:
    """What makes two requests the same, but for the id that they are sent with."""
    parts = (ask.input, ask.session_id, ask.model, ask.agent, ask.told_metadata, ask.detached)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
