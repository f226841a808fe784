"""The one writer of a run: everything that happens to it becomes numbered, accepted events here.

Transform, reduce, number, append (all of a batch or none), take over the accepted state, publish, wake the
followers, perform. It does not know how commands are performed: the performer prepares them.

It is a task only while there is something to write, so a run that waits costs none.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

import msgspec

from agentflow.chain.recovery import Past
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.errors import AgentflowError, InvalidTransition, LeaseLostError, StoreError, TransformError, again
from agentflow.events import (
    AgentEvent,
    CancelledEvent,
    CancelReason,
    ErrorInfo,
    Event,
    FailedEvent,
    ResolvedEvent,
    RunError,
    State,
    StateEvent,
    TerminalEvent,
    ToolErrorEvent,
    ToolStartEvent,
    ToolStatus,
    WarningEvent,
    encode,
    stamp,
)
from agentflow.messages import Usage, unpaired
from agentflow.state import Call, ChainState, Change, Command, RunState, kept_messages, reduce, state_changes
from agentflow.stores.base import Turn

logger = logging.getLogger(__name__)

Action: TypeAlias = Callable[[], None]
Item: TypeAlias = "AgentEvent | Command | Ending"

MAX_WAITING = 1000  # events in the inbox over which producers are asked to wait


@dataclass(frozen=True, slots=True)
class Ending:
    """The run is to end now, whatever is open: failed with `error`, else cancelled for `reason`."""

    error: RunError | None = None
    reason: CancelReason = "user"


class Commands(Protocol):
    """Who knows how commands are performed."""

    def prepare(self, command: Command, state: RunState) -> tuple[Sequence[AgentEvent | Command], Action | None]:
        """The events that go into the same append as the command's cause, and what to do once it is accepted."""
        ...

    def open_usage(self, state: RunState) -> Usage:
        """An estimate of what the model call has used that is under way in `state` and is being broken off."""
        ...

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """Something about this run's surroundings should be noted in its log."""
        ...

    def header(self, chain_id: str) -> dict[str, Any]:
        """The common fields of a chain's events, but for `iteration` and what the writer stamps."""
        ...

    def transform(self, event: AgentEvent) -> AgentEvent:
        """The event as the transforms of its chain make it."""
        ...

    def moved(self, previous: State, current: State) -> None:
        """The root chain's state has changed, and the log has accepted it."""
        ...


class _Draft:
    """A batch while it is made: the state it leads to, its events, and what follows its acceptance."""

    __slots__ = ("actions", "events", "size", "state", "terminal", "ts")

    def __init__(self, state: RunState, ts: str) -> None:
        self.state = state
        self.ts = ts
        self.events: list[AgentEvent] = []
        self.actions: list[Action] = []
        self.size = 0
        self.terminal: TerminalEvent | None = None


class Writer:
    """Writes one run. `post` takes events and endings in the order they happened; all else follows."""

    def __init__(self, runtime: Runtime, info: RunInfo, commands: Commands, on_closed: Callable[[], None]) -> None:
        self._runtime = runtime
        self._info = info
        self._commands = commands
        self._on_closed = on_closed
        self._inbox: deque[Item] = deque()
        self._followers: dict[asyncio.Future[None], None] = {}  # who came first is woken first
        self._writing = False
        self._ending = False
        self._bytes = 0
        self._ts = ""  # of the last event
        self._began = 0.0
        self.state = RunState(run_id=info.run_id, limits=runtime.limits)
        self.token: int | None = None  # of the run's lease; a run that never began has none
        self.seq = 0
        self.dropped = 0
        self.posted = self.settled = 0  # items that came, and those that the log has accepted or that came to nothing
        self.terminal: TerminalEvent | None = None
        self.broken: Exception | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more can happen: the run has ended, or its writer had to stop."""
        return self.terminal is not None or self.broken is not None

    @property
    def ending(self) -> bool:
        """Whether the run has ended or is about to, so that nothing it still brings counts."""
        return self._ending or self.closed

    @property
    def crowded(self) -> bool:
        """Whether the log is behind, so that producers should `await accepted()` before they go on."""
        return len(self._inbox) >= MAX_WAITING

    def restore(self, past: Past) -> None:
        """Go on with a run that another process has begun."""
        self.state, self.seq, self._ts, self._bytes = past.state, past.seq, past.ts, past.size

    def began(self) -> None:
        """The run has begun now; durations count from here."""
        self._began = self._runtime.clock.monotonic()

    def elapsed_ms(self) -> float:
        """Milliseconds since the run began."""
        return round((self._runtime.clock.monotonic() - self._began) * 1000, 3)

    def post(self, item: Item) -> None:
        """Something happened, or is to be done.

        What comes after the end is dropped; after an ending, only what preceded it counts.
        """
        if self.closed:
            return
        self._ending = self._ending or isinstance(item, Ending)
        self._inbox.append(item)
        self.posted += 1
        if not self._writing:
            self._writing = True
            self._runtime.owner.spawn(self._write(), name=f"agentflow writer {self._info.run_id}")

    def stop(self, error: Exception) -> None:
        """Give up: the run stays open in the log, and whoever waits for it here gets `error`.

        Its session and its lease are freed as far as that can be done: whether anybody recovers the run is not known,
        and one that nobody will ever end must not keep its user out. One that is another owner's by now is left to it.
        """
        if self.closed:
            return
        self._break(error)
        if not asyncio.get_running_loop().is_closed():
            self._runtime.owner.spawn(self._free_session(), name=f"agentflow freeing {self._info.run_id}")

    def leave(self) -> None:
        """Let go of the run as it is: it keeps its session, and whoever recovers it goes on with it."""
        if self.closed:
            return
        run_id = self._info.run_id
        self._break(StoreError(f"run {run_id!r} waits on in its store, and its agent was closed: recover it to go on"))
        self._runtime.owner.spawn(self._give_back(), name=f"agentflow leaving {run_id}")

    def _break(self, error: Exception) -> None:
        self.broken = error
        self._inbox.clear()
        self._wake()
        self._on_closed()

    async def _free_session(self) -> None:
        key, run_id = self._info.session, self._info.run_id
        try:
            await self._runtime.store.close_session(key, run_id, None, token=self.token)
        except LeaseLostError:  # then the session is the new owner's too
            pass
        except Exception:  # the run has stopped already, and recovery frees what stays held
            logger.exception("session %s stays held by run %s", key.session_id, run_id)
        await self._give_back()

    async def _give_back(self) -> None:
        try:
            await self._runtime.leases.give_back(self._info.run_id)
        except Exception:  # it lapses by itself
            logger.exception("the lease of run %s could not be given back", self._info.run_id)

    async def wait(self, after: int) -> None:
        """Return once there is an event after `after`, or the run has ended. Raises what stopped the writer."""
        while self.seq <= after and self.terminal is None:
            if self.broken is not None:
                raise again(self.broken)
            await self._next_acceptance()

    async def accepted(self) -> None:
        """Return once something more was accepted, or nothing can be any more."""
        if not self.closed:
            await self._next_acceptance()

    async def _next_acceptance(self) -> None:
        follower: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers[follower] = None
        try:
            await follower
        finally:
            self._followers.pop(follower, None)

    def _wake(self) -> None:
        followers, self._followers = self._followers, {}
        for follower in followers:
            if not follower.done():
                follower.set_result(None)

    # -- one batch ---------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while self._inbox and not self.closed:
                await self._write_batch()
        except AgentflowError as error:
            self.stop(error)
        except BaseException as error:
            # A store of the user's may raise anything, and whatever it is, nobody else will end this run.
            if not isinstance(error, asyncio.CancelledError):
                logger.exception("run %s: its writer failed", self._info.run_id)
            failure = StoreError(f"run {self._info.run_id!r} could not be written: {error!r}")
            failure.__cause__ = error
            self.stop(failure)
            if not isinstance(error, Exception):
                raise
        finally:
            self._writing = False

    async def _write_batch(self) -> None:
        items, self._inbox = self._inbox, deque()
        ts = _timestamp(self._runtime.clock.wall())
        draft = _Draft(self.state, max(ts, self._ts))  # a clock may be set back; a log goes on
        for item in items:
            if draft.terminal is not None:
                break
            self._take(draft, item)
        if draft.terminal is not None:
            await self._keep_turn(draft)
        if draft.events:
            await self._append(draft)
        self.settled += len(items)
        if draft.events:
            self._accept(draft)
        else:  # a command that no event has caused, or an event that could not be
            self._wake()
            self._perform(draft)
        if draft.terminal is not None:
            await self._give_back()

    def _take(self, draft: _Draft, item: Item) -> None:
        try:
            if isinstance(item, Ending):
                self._end(draft, item)
            else:
                self._fold(draft, item)
        except TransformError as error:
            self._end(draft, Ending(error=RunError(kind=error.kind, message=str(error))))
        except Exception as error:
            # A fault of ours or of what we were given. The user is owed an end, and we are owed the traceback.
            logger.exception("run %s: it ends, since %r could not be taken", self._info.run_id, type(item).__name__)
            message = f"an internal error ended the run: {type(error).__name__}"
            self._end(draft, Ending(error=RunError(kind="internal", message=message)))

    def _fold(self, draft: _Draft, cause: AgentEvent | Command) -> None:
        """Take an event or a command and all that follows from it without an await, in order."""
        work: deque[AgentEvent | Command] = deque([cause])
        while work:
            item = work.popleft()
            if isinstance(item, WarningEvent):  # it may have been on its way while its chain went on
                item = msgspec.structs.replace(item, iteration=draft.state.chain(item.chain_id).iteration)
            if isinstance(item, Event):
                work.extend(self._reduce(draft, self._commands.transform(item)))
                continue
            events, action = self._commands.prepare(item, draft.state)
            work.extendleft(reversed(events))
            if action is not None:
                draft.actions.append(action)

    def _reduce(self, draft: _Draft, event: AgentEvent) -> Sequence[Command]:
        size = len(encode(event))  # first of all: what cannot be written must not have been taken
        before = draft.state
        try:
            state, commands = reduce(draft.state, event)
        except InvalidTransition as error:
            if isinstance(event, ResolvedEvent):  # what it decides was settled while it was on its way
                data = {"target": event.target, "decision": event.decision}
                self._commands.warn("decision_too_late", f"a decision came too late and was dropped: {error}", data)
                return ()
            if event.parent_chain_id is not None and before.chain(event.chain_id).state is State.CANCELLED:
                return ()  # it was on its way when the call of its agent was amended
            self.dropped += 1
            logger.exception("run %s: an event that cannot be was dropped: %s", self._info.run_id, event.type)
            return ()
        draft.state = state
        draft.size += size
        # A state event follows its cause, but stands before it where the cause is a chain's end.
        ends, moves = state_changes(before, state) if state is not before else ((), ())
        for item in (*self._state_events(event, ends, state), event, *self._state_events(event, moves, state)):
            self._number(draft, item)
        if isinstance(event, TerminalEvent):
            draft.terminal = event
        return commands

    def _state_events(self, cause: AgentEvent, changes: Sequence[Change], state: RunState) -> Iterator[StateEvent]:
        for chain_id, previous, current in changes:
            yield StateEvent(
                **self._commands.header(chain_id),
                iteration=cause.iteration if chain_id == cause.chain_id else state.chain(chain_id).iteration,
                previous=previous,
                current=current,
                reason=cause.type.value,
            )

    def _number(self, draft: _Draft, event: AgentEvent) -> None:
        stamp(event, self.seq + len(draft.events) + 1, draft.ts)
        draft.events.append(event)

    # -- the end -----------------------------------------------------------------------------------------

    def _end(self, draft: _Draft, ending: Ending) -> None:
        """Close what is open, then end. The results of calls that are still running come too late from here on."""
        broken_off = self._commands.open_usage(draft.state)
        for chain_id in draft.state.open_chains():
            chain = draft.state.chain(chain_id)
            for call in chain.open_calls():
                for event in closing_events(call, "cancelled", "the run ended", self._commands.header(chain_id), chain):
                    self._reduce(draft, event)
        chain = draft.state.root
        fields = self._info.header() | {
            "iteration": chain.iteration,
            "usage": draft.state.usage + broken_off,
            "duration_ms": self.elapsed_ms(),
        }
        if ending.error is not None:
            self._reduce(draft, FailedEvent(error=ending.error, **fields))
        else:
            self._reduce(draft, CancelledEvent(reason=ending.reason, **fields))
        if draft.terminal is None:
            raise RuntimeError(f"run {self._info.run_id!r} cannot end in state {draft.state.root.state}")

    async def _keep_turn(self, draft: _Draft) -> None:
        """Store the turn and free the session, before the terminal event can be seen: the one write point."""
        messages = self._info.with_pictures(kept_messages(draft.state.root))
        turn = None
        if messages:
            fault = unpaired(messages)
            if fault is not None:
                raise RuntimeError(f"run {self._info.run_id!r} would store an unpaired turn: {fault}")
            outcome = draft.events[-1].type.value
            turn = Turn(run_id=self._info.run_id, outcome=outcome, messages=messages)  # type: ignore[arg-type]
        key, run_id = self._info.session, self._info.run_id
        await self._runtime.store.close_session(key, run_id, turn, draft.events, token=self.token)

    # -- acceptance --------------------------------------------------------------------------------------

    async def _append(self, draft: _Draft) -> None:
        log, run_id = self._runtime.store, self._info.run_id
        try:
            await log.append(run_id, draft.events, token=self.token)
        except LeaseLostError:
            raise
        except StoreError:
            # The reply may have been lost and not the append: what the log says counts.
            if await log.last(run_id) != draft.events[-1].seq:
                raise

    def _accept(self, draft: _Draft) -> None:
        previous, self.state = self.state.root.state, draft.state
        self.seq, self._ts = draft.events[-1].seq, draft.ts
        self.terminal = draft.terminal
        self._bytes += draft.size
        self._runtime.bus.publish(draft.events, self._commands.warn)
        self._wake()
        if self.state.root.state is not previous:
            self._commands.moved(previous, self.state.root.state)
        if self.terminal is not None:
            self._inbox.clear()
            self._on_closed()
            return
        if self._bytes > self._runtime.run_log_bytes and not self._ending:
            message = f"the run's log passed its limit of {self._runtime.run_log_bytes} bytes (limits.run_log_bytes)"
            self.post(Ending(error=RunError(kind="limit", message=message)))
        self._perform(draft)

    def _perform(self, draft: _Draft) -> None:
        for action in draft.actions if not self._ending else ():  # nothing new is begun for a run about to end
            action()


def _timestamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def closing_events(
    call: Call, status: ToolStatus, cause: str, header: Mapping[str, Any], chain: ChainState
) -> Sequence[AgentEvent]:
    """How an open call is closed from outside: its `tool_start` where it has none, and its `tool_error`."""
    if call.started:
        message = f"{cause} before this call did; it may or may not have had its effect"
    else:
        message = f"{cause} before this call began; it was not run"
    fields = dict(header) | {"iteration": chain.iteration, "call_id": call.call.call_id, "tool": call.call.name}
    attempt = call.attempt if call.started else call.attempt + 1
    error = ToolErrorEvent(
        attempt=attempt,
        status=status,
        error=ErrorInfo(kind=status, message=message),
        result=f"[error: {status}]\n{message}",
        **fields,
    )
    if call.started:
        return (error,)
    arguments = call.arguments if call.arguments is not None else readable(call.call.raw_arguments)
    raw = call.call.raw_arguments
    return (ToolStartEvent(arguments=arguments, raw_arguments=raw, attempt=attempt, **fields), error)


def readable(raw_arguments: str) -> dict[str, Any] | None:
    """A model's text of arguments as `tool_start` shows it for a call that is not run; None if it is no object."""
    try:
        value = msgspec.json.decode(raw_arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
