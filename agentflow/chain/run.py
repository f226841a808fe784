"""A run: one conversation turn at work, shared by every chain object that looks at it.

Starts it once, ends it when asked or when nobody is left, and counts who looks. What happens in it is the
performer's and the writer's.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast, get_args

from agentflow.chain.control import Control
from agentflow.chain.gates import Admission, Step
from agentflow.chain.letters import Letters
from agentflow.chain.output import Output
from agentflow.chain.performer import Performer
from agentflow.chain.recovery import Past, read_past
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.tool_calls import SESSIONS_IN_USE
from agentflow.chain.writer import Ending
from agentflow.errors import AgentflowError, NotPendingError, RequestError, SessionBusyError, StoreError
from agentflow.event_log import Reader
from agentflow.events import CancelReason, InputEvent, ResolvedEvent, RunError, State, TerminalEvent, plain
from agentflow.messages import Usage
from agentflow.state import TERMINAL_STATES, ChainState
from agentflow.stores.base import Letter
from agentflow.streams import CANCEL_GRACE, Inbox, Timer, is_cancelled

logger = logging.getLogger(__name__)

_GRACE = CANCEL_GRACE + 0.5  # the task of a tool call gives its tool CANCEL_GRACE before it ends itself


class Consumer:
    """Somebody who looks at a run. `leave` counts once, from any thread; after `keep` it never counts."""

    __slots__ = ("_left", "_run")

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._left = False

    def keep(self) -> None:
        """This consumer broke down rather than left: the run is not to end for its sake."""
        self._left = True

    def leave(self) -> None:
        """This consumer is done."""
        if not self._left:
            self._left = True
            self._run.left()


class Run:
    """One run. `detached` runs go on without consumers; others are cancelled when the last one leaves.

    `on_start` and `on_closed` tell its agent, which keeps the runs that are alive.
    """

    def __init__(
        self,
        runtime: Runtime,
        info: RunInfo,
        *,
        on_start: Callable[["Run"], None],
        on_closed: Callable[["Run"], None],
    ) -> None:
        self._past: Past | None = None  # of a run that another process has begun, until it goes on
        self._decided: list[ResolvedEvent] = []  # meanwhile
        self._runtime = runtime
        self._on_start = on_start
        self._on_closed = on_closed
        self._consumers = 0
        self._inbox: Inbox[CancelReason | ResolvedEvent | None] | None = None
        self._cancelled_before: CancelReason | None = None
        self._timer: Timer | None = None
        self._time_left = runtime.timeout
        self._resumed_at = 0.0
        self._asked_to_end: float | None = None  # when, by the clock
        self._performer = Performer(runtime, info, on_closed=self._closed, on_moved=self._moved)
        self._writer = self._performer.writer
        self._letters = Letters(
            runtime.store, info.run_id, self._performer.tasks, hand_on=self._take_letter, settled=self._settled
        )
        step = Step(kind="run", agent=info.path[0], user_id=info.session.user_id, warn=self._performer.warn)
        self._admission = Admission(runtime.gate, step)
        self.info = info
        self.detached = False

    @property
    def state(self) -> State:
        """Where the root chain stands."""
        return self._writer.state.root.state

    @property
    def waits(self) -> bool:
        """Whether it waits for a human, and is not about to end."""
        return self.state is State.SUSPENDED and not self._writer.ending

    @property
    def ending_for(self) -> float | None:
        """Seconds since it was first asked to end; None if it was not."""
        return None if self._asked_to_end is None else self._runtime.clock.monotonic() - self._asked_to_end

    @property
    def terminal(self) -> TerminalEvent | None:
        """The event that ended the run."""
        return self._writer.terminal

    @property
    def output(self) -> Output | None:
        """The form that the answer must have."""
        return self._runtime.output

    @property
    def chain_state(self) -> ChainState:
        """What is known of the root chain."""
        return self._writer.state.root

    @property
    def usage(self) -> Usage:
        """What the model calls of all its chains have used so far."""
        return self._writer.state.usage

    @property
    def control(self) -> Control:
        """What makes the events of human decisions; `decide` hands them on."""
        return self._performer.control

    @property
    def seq(self) -> int:
        """The last accepted event's number."""
        return self._writer.seq

    def reader(self, after: int = 0) -> Reader:
        """A cursor in this run's log that learns from the writer when there is more."""
        return Reader(self._runtime.store, self.info.run_id, after, self.wait)

    async def wait(self, after: int) -> None:
        """Return once there is more than `after`. Raises what stopped the run's writer."""
        await self._writer.wait(after)

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """Note something about the run's surroundings in its log, if it goes on. On the loop's thread only."""
        self._performer.warn(code, message, data)

    async def begun(self) -> None:
        """Wait until it has its first event. Raises why it cannot have one."""
        await self._writer.wait(0)

    # -- consumers ---------------------------------------------------------------------------------------

    def join(self) -> Consumer:
        """Count one more consumer; the first starts the run. Needs the running loop."""
        self.start()
        self._consumers += 1
        return Consumer(self)

    def left(self) -> None:
        """A consumer is gone. Thread-safe, since a dropped iterator may be collected anywhere."""
        if self._inbox is not None:
            self._inbox.put(None)

    def for_next_message(self) -> "Run":
        """This run, which takes its session's next message as an answer; `SessionBusyError` if it has asked nothing."""
        if self.control.has_question():
            return self
        raise SessionBusyError(
            f"session {self.info.session.session_id!r} waits for an approval in run {self.info.run_id!r}: give or "
            "refuse it (approve, reject), or cancel the run, before the next message"
        )

    def leave(self) -> None:
        """Let go of the run here; it stays as it is in its store, for whoever recovers it."""
        self._writer.leave()

    def decide(self, event: ResolvedEvent) -> None:
        """A human has decided. Thread-safe."""
        if self._inbox is not None:
            self._inbox.put(event)

    def _receive(self, reason: CancelReason | ResolvedEvent | None) -> None:
        if isinstance(reason, ResolvedEvent):
            if self._past is None:
                self._performer.post(reason)
            else:
                self._decided.append(reason)
            return
        if reason is None:
            self._consumers -= 1
            if self._consumers or self.detached or self.state is State.SUSPENDED:
                return
            reason = "disconnect"
        if not self._writer.closed:
            if self._asked_to_end is None:
                self._asked_to_end = self._runtime.clock.monotonic()
            self._performer.end(Ending(reason=reason))

    def _look_for_letters(self) -> None:
        if self._inbox is not None and self._past is None:  # else they are read when it goes on
            self._letters.look()

    def _take_letter(self, letter: Letter) -> None:
        """What somebody asks for elsewhere counts like what is asked for here; who asked is told by a warning."""
        try:
            if letter.verb == "cancel":
                self.cancel(cast("CancelReason", letter.text))  # which looks whether it is one
            else:
                self._receive(self.control.judge(letter))
        except AgentflowError as error:
            code = "decision_too_late" if isinstance(error, NotPendingError) else "decision_refused"
            data = {"target": letter.target, "decision": letter.verb}
            self._performer.warn(code, f"a decision was dropped: {error}", data)

    async def _settled(self) -> bool:
        """Wait until the log has what was posted so far; whether it has, and the run goes on."""
        posted = self._writer.posted
        while self._writer.settled < posted and not self._writer.closed:
            await self._writer.accepted()
        return not self._writer.closed

    def watch(self) -> Consumer:
        """Somebody who looks on without counting."""
        self.start()
        consumer = Consumer(self)
        consumer.keep()
        return consumer

    # -- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, once. Needs the running loop."""
        if self._inbox is not None:
            return
        if self.info.session in SESSIONS_IN_USE.get():
            raise SessionBusyError(
                f"session {self.info.session.session_id!r} is held by the run that called this tool, which would wait "
                "for itself; leave session_id out, or use another"
            )
        loop = asyncio.get_running_loop()
        self._on_start(self)
        self._inbox = Inbox(loop, self._receive)
        self._writer.began()
        self._begin_trace()
        if self._cancelled_before is not None:
            self._writer.post(Ending(reason=self._cancelled_before))
            return
        if self.state is not State.SUSPENDED:
            self._start_timer()
        self._performer.open(self._open)

    def _begin_trace(self) -> None:
        info = self.info
        info.trace.begin(
            run_id=info.run_id,
            agent=info.path[0],
            session_id=info.session.session_id,
            model=info.model_name,
            clock=self._runtime.clock,
        )

    async def recover(self) -> bool:
        """Take over a run whose process died, as a detached one; whether it was to be had.

        Raises `ConfigError` if an agent of the run is no more, and `StoreError`.
        """
        store, run_id = self._runtime.store, self.info.run_id
        self._writer.token = await self._lease()
        if self._writer.token is None:
            return False
        try:
            past = await read_past(store, run_id, self._runtime.limits)
            if past.state.ended:
                await self._runtime.leases.give_back(run_id)
                return False
            self._performer.restore(past)
            self._past, self.detached = past, True
            self.start()
        except BaseException:  # also a cancel: what was taken and is not run must be free for others
            await self._runtime.leases.give_back(run_id)
            raise
        return True

    async def _lease(self) -> int | None:
        return await self._runtime.leases.take(self.info.run_id, self._writer.stop, self._look_for_letters)

    async def _go_on(self, past: Past) -> None:
        """Do what the dead process had left to do, then what was decided since: only now can a model be asked."""
        await self._letters.read()
        if self._runtime.recovery == "fail" and self.state is not State.SUSPENDED:  # else nothing was broken off
            message = "the process that ran this died before it ended"
            self._performer.end(Ending(error=RunError(kind="crashed", message=message, retryable=True)))
        else:
            await self._performer.recover(past)
        self._past = None
        for event in self._decided:
            self._performer.post(event)
        self._letters.look()  # those that were sent since, and to delete what was read

    def _start_timer(self) -> None:
        self._resumed_at = self._runtime.clock.monotonic()
        self._timer = self._runtime.clock.call_later(self._time_left, lambda: self._receive("timeout"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _moved(self, previous: State, current: State) -> None:
        """The time in which a run waits for humans is not its own, and it takes up no place."""
        if current is State.SUSPENDED:
            self._stop_timer()
            self._admission.leave()
            self._time_left -= self._runtime.clock.monotonic() - self._resumed_at
        elif previous is State.SUSPENDED and current not in TERMINAL_STATES:
            self._admission.resume()
            self._start_timer()

    def cancel(self, reason: CancelReason = "user") -> None:
        """End the run: at once on the loop's thread, as soon as the loop comes to it from another. Idempotent."""
        if reason not in get_args(CancelReason):
            raise RequestError(
                f"a run is not cancelled for {reason!r}, but for one of {', '.join(get_args(CancelReason))}"
            )
        # A start that does not see the reason has set the inbox before, and then it is put there.
        self._cancelled_before = reason
        if self._inbox is not None:
            self._inbox.put(reason)

    async def ended(self, *, or_suspended: bool = False) -> TerminalEvent | None:
        """Wait for the terminal event; None if the run is suspended and that is enough. Raises `StoreError`."""
        while self.terminal is None:
            if or_suspended and self.state is State.SUSPENDED and not self.control.is_decided():
                return None
            await self._writer.wait(self._writer.seq)
        return self.terminal

    async def _open(self) -> None:
        """Get hold of the session, then put in the user's message, or go on with what the log says."""
        run_id = self.info.run_id
        try:
            if self._past is None:
                await self._admission.enter()
                self._writer.token = await self._lease()
            elif self.state is not State.SUSPENDED:
                self._admission.resume()
            memory = self._runtime.memory
            with self.info.trace.memory("search_memory"):
                session = await memory.open(self.info.session, run_id)
                window = await memory.window(session, self.info.text)
            if not self._writer.ending:
                self._performer.begin(session, window)
            if self._past is not None:
                await self._go_on(self._past)
                return
        except AgentflowError as error:
            self._writer.stop(error)
            return
        except BaseException as error:  # a store of the user's may raise anything
            if isinstance(error, KeyboardInterrupt) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            failure = StoreError(f"session {self.info.session.session_id!r} could not be opened: {error!r}")
            failure.__cause__ = error
            self._writer.stop(failure)
            return
        if self._writer.ending:  # the store lost the cancel, and so came by the session after all
            await self._runtime.store.close_session(self.info.session, run_id, None)  # its lease is given back
            return
        self._performer.post(
            InputEvent(
                text=self.info.text,
                user_id=self.info.session.user_id,
                model=self.info.model_name,
                metadata=plain(self.info.metadata) | self.info.trace.carried(),
                tools_hash=self._runtime.tools.hash,
                history_version=session.version,
                **self.info.header(),
            )
        )
        for summary, before in memory.untold.pop((self.info.session, session.number), ()):
            self._performer.tell_summary(summary, before)

    def _closed(self) -> None:
        """The run has its end, or its writer had to stop: let go of everything."""
        self._stop_timer()
        self._admission.leave()
        self._performer.close()
        self.info.trace.close()
        if len(self._performer.tasks):
            self._runtime.owner.spawn(self._clear(), name=f"agentflow end of {self.info.run_id}")
        self._on_closed(self)

    async def _clear(self) -> None:
        self._runtime.owner.abandoned += await self._performer.tasks.aclose(_GRACE)
