"""AgentChain: a conversation turn as an Observable of events, the object users hold.

It looks at a run and controls it; it holds no events itself. Every consumer reads the run's log from the
beginning.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from agentflow.chain.run import Consumer, Run
from agentflow.errors import AgentflowError, RunCancelled, RunFailed
from agentflow.event_log import Reader
from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    CancelReason,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    QuestionEvent,
    State,
    TerminalEvent,
    ToolRecord,
)
from agentflow.messages import Usage
from agentflow.state import tool_records
from agentflow.streams import TaskOwner, pump


@dataclass(frozen=True, slots=True)
class AgentReply:
    """A whole answer.

    `output` is the answer as an object of the type that `Agent(output=...)` asks for. The `result` of each of `tools`
    is what the model got, its first line the status. `warnings` are the codes of the root's `warning` events, such as
    `unsupported_success`. `pending` holds what a suspended run waits for; `text` is then
    what there is so far.
    """

    text: str
    usage: Usage
    tools: tuple[ToolRecord, ...]
    session_id: str
    run_id: str
    state: State
    pending: tuple[QuestionEvent | ApprovalEvent, ...] = ()
    warnings: tuple[str, ...] = ()
    output: Any = None


class AgentChain(Observable[AgentEvent]):
    """One conversation turn as events: cold, run at most once, seen whole by every consumer.

    Consumers are a subscription until it is disposed, an `async for` until it is left, and `await chain`,
    `reply()` until done. The first starts the run; each sees it from `seq` 1. When the last one leaves a chain of
    `agent.stream()` the run is `cancelled(disconnect)`, unless it is suspended. All three ends (`final`, `failed`,
    `cancelled`) are events followed by completion; a consumer gets `StoreError` when the log itself failed.

    It is an Rx Observable: `chain.filter(...)`, `chain.pipe(of_type(ToolStartEvent))` and so on give views, each of
    which is a consumer once subscribed. Subscribing needs the running event loop.
    """

    def __init__(self, run: Run, owner: TaskOwner, *, attached: bool = False, answer: str | None = None) -> None:
        """Made by an agent. `attached` consumers look on without counting; the first one gives `answer` to the run."""
        super().__init__()
        self._answer = answer
        self._agent_run = run
        self._owner = owner
        self._attached = attached

    @property
    def run_id(self) -> str:
        """The run's id, known before it starts."""
        return self._agent_run.info.run_id

    @property
    def session_id(self) -> str:
        """The session it belongs to, known before it starts."""
        return self._agent_run.info.session.session_id

    @property
    def state(self) -> State:
        """Where the run stands now."""
        return self._agent_run.state

    @property
    def seq(self) -> int:
        """The number of the last event so far, 0 before the first."""
        return self._agent_run.seq

    @property
    def ending_for(self) -> float | None:
        """Seconds since the run was first asked to end; None if it was not."""
        return self._agent_run.ending_for

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """Note something about the run's surroundings in its log, as a `warning`. On the loop's thread only."""
        self._agent_run.warn(code, message, data)

    def __repr__(self) -> str:
        return f"<AgentChain {self.run_id} {self.state}>"

    def _join(self) -> Consumer:
        consumer = self._agent_run.watch() if self._attached else self._agent_run.join()
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self._agent_run.decide(self._agent_run.control.answer_next(answer))
        return consumer

    # -- consuming ---------------------------------------------------------------------------------------

    def _subscribe_core(
        self, observer: abc.ObserverBase[AgentEvent], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        consumer = self._join()
        watched = _Watched(observer, consumer)
        events = EventIterator(self._agent_run.reader(), lambda: consumer)
        subscription = pump(events, watched, self._owner, name=f"agentflow subscriber of {self.run_id}")
        return CompositeDisposable(subscription, Disposable(consumer.leave))

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """The events in order, ending after the terminal one; leaving the loop is leaving the chain."""
        return EventIterator(self._agent_run.reader(), self._join)

    __iter__ = None  # an Observable's would start an event loop in a thread

    def __await__(self) -> Generator[Any, None, TerminalEvent]:
        """The terminal event; waits through suspension. Cancelling the wait is leaving the chain."""
        return self._terminal().__await__()

    async def _terminal(self) -> TerminalEvent:
        consumer = self._join()
        try:
            terminal = await self._agent_run.ended()
        finally:
            consumer.leave()
        if terminal is None:
            raise RuntimeError("a run without its terminal event is said to have ended")
        return terminal

    async def begun(self) -> None:
        """Wait until the run has its first event. Raises why it cannot have one, such as `SessionBusyError`."""
        await self._agent_run.begun()

    async def reply(self) -> AgentReply:
        """The whole answer, or what there is when the run is suspended.

        Raises `RunFailed` or `RunCancelled` for a run that ended so, `StoreError` if its log failed. Cancelling the
        wait is leaving the chain.
        """
        consumer = self._join()
        try:
            terminal = await self._agent_run.ended(or_suspended=True)
            if isinstance(terminal, FinalEvent):
                output = self._agent_run.output
                wanted = output is not None and terminal.finish_reason == "stop"
                return AgentReply(
                    output=output.parse(terminal.text) if output is not None and wanted else None,
                    text=terminal.text,
                    usage=terminal.usage,
                    tools=terminal.tools,
                    session_id=self.session_id,
                    run_id=self.run_id,
                    state=self.state,
                    warnings=self._agent_run.chain_state.warnings,
                )
            if terminal is not None:
                raise end_error(terminal)
            return await self._suspended_reply()
        finally:
            consumer.leave()

    async def _suspended_reply(self) -> AgentReply:
        pending: dict[str, QuestionEvent | ApprovalEvent] = {}
        reader = self._agent_run.reader()
        chain = self._agent_run.chain_state
        waiting = self._agent_run.control.pending()
        while reader.after < self._agent_run.seq:
            for event in await reader.page():
                if isinstance(event, QuestionEvent):
                    pending[event.question_id] = event
                elif isinstance(event, ApprovalEvent):
                    pending[event.call_id] = event
        return AgentReply(
            text=chain.round.text,
            usage=self._agent_run.usage,
            tools=tool_records(chain),
            session_id=self.session_id,
            run_id=self.run_id,
            state=self.state,
            warnings=chain.warnings,
            pending=tuple(event for target, event in pending.items() if target in waiting),
        )

    def answers(self) -> Observable[str]:
        """The root chain's answer text of all rounds, piece by piece, then completion.

        Errors with `RunFailed` or `RunCancelled`. Text cannot be taken back: where a failed attempt is made again
        after it had begun to answer (`rollback`), its pieces have already been given.
        """

        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: AgentEvent) -> None:
                if isinstance(event, DeltaEvent):
                    if event.channel == "answer" and event.chain_id == event.run_id:
                        observer.on_next(event.text)
                elif isinstance(event, FailedEvent | CancelledEvent):
                    observer.on_error(end_error(event))

            return self.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    def run(self, *_: Any, **__: Any) -> NoReturn:
        """Not here: it would block the event loop that the run needs."""
        raise RuntimeError(
            "AgentChain.run() would block the event loop its own run needs; use `await chain` or "
            "`await chain.reply()`, and in a script without a loop agent.chat_sync(...)"
        )

    # -- controlling -------------------------------------------------------------------------------------

    def cancel(self, reason: CancelReason = "user") -> None:
        """End the run as `cancelled(reason)`: at once, from any thread, any number of times.

        Before the start it means that the first consumer sees nothing but `state` and `cancelled`. After the end
        it does nothing.
        """
        self._agent_run.cancel(reason)

    def answer(self, text: str, question_id: str | None = None, *, by: str | None = None) -> None:
        """Answer a question the run has asked; the only open one if none is named.

        Questions of agents below the root are answered here too. `by` names who answered, for the log. Like all
        decisions it returns at once, from any thread, and the run goes on; the first one on a question or call counts.
        Raises `NotPendingError` where nothing waits for it.
        """
        self._agent_run.decide(self._agent_run.control.answer(text, question_id, by))

    def approve(self, call_id: str, arguments_hash: str | None = None, *, by: str | None = None) -> None:
        """Let the tool call run that waits for approval.

        Give the `arguments_hash` of the `approval` event that was looked at: should the call have other arguments by
        now, `NotPendingError` is raised, as it is when nothing waits.
        """
        self._agent_run.decide(self._agent_run.control.approve(call_id, arguments_hash, by))

    def reject(self, call_id: str, why: str = "", *, by: str | None = None) -> None:
        """Do not let the tool call run that waits for approval; the model is told why. Raises `NotPendingError`."""
        self._agent_run.decide(self._agent_run.control.reject(call_id, why, by))

    def amend(self, call_id: str, arguments: dict[str, Any], *, by: str | None = None) -> None:
        """Give a tool call other arguments: one that waits for approval, which it thereby has, or one that runs.

        A running call is stopped (`tool_error` with the status `amended`), what it has streamed is void, and it
        begins again; one that cannot be stopped ends as `unknown_outcome` unless its tool is idempotent. Raises
        `ToolArgumentsError` for arguments that do not fit the tool, `NotPendingError` if no such call is open.
        """
        self._agent_run.decide(self._agent_run.control.amend(call_id, arguments, by))


class EventIterator:
    """`async for` over a chain. Dropping it, which is what `break` does, is leaving the chain.

    `join` is called with the first item, since it needs the running loop.
    """

    def __init__(self, reader: Reader, join: Callable[[], Consumer]) -> None:
        self._reader = reader
        self._join = join
        self._consumer: Consumer | None = None
        self._page: Sequence[AgentEvent] = ()
        self._position = 0
        self._closed = False
        self._reading = False

    def __aiter__(self) -> "EventIterator":
        return self

    async def __anext__(self) -> AgentEvent:
        if self._consumer is None and not self._closed:
            self._consumer = self._join()
        if self._reading:
            raise RuntimeError(
                "this iterator is being read by another task; give each its own: `async for` over the chain"
            )
        self._reading = True
        try:
            while not self._closed and self._position == len(self._page):
                self._page, self._position = await self._reader.page(), 0
                self._closed = not self._page
            self._reading = False
        except asyncio.CancelledError:
            self._reading = False
            # A cancelled wait is not leaving: a heartbeat asks again. But where it was the consumer's task that was
            # cancelled, the traceback must not keep this object alive, for to drop it is to leave.
            del self
            raise
        except Exception:  # whatever ended the reading: who cannot read on is no consumer any more
            self._leave()
            raise
        if self._closed:
            self._leave()
            raise StopAsyncIteration
        event = self._page[self._position]
        self._position += 1
        return event

    async def aclose(self) -> None:
        """Leave the chain."""
        self._leave()

    def _leave(self) -> None:
        self._closed = True
        if self._consumer is not None:
            self._consumer.leave()

    def __del__(self) -> None:
        self._leave()


class _Watched:
    """Passes on to an observer; one that raises has broken down, which does not count as leaving."""

    def __init__(self, observer: abc.ObserverBase[AgentEvent], consumer: Consumer) -> None:
        self._observer = observer
        self._consumer = consumer

    def on_next(self, event: AgentEvent, /) -> None:
        try:
            self._observer.on_next(event)
        except Exception:  # raised again: Rx ends the subscription by it
            self._consumer.keep()
            raise

    def on_error(self, error: Exception, /) -> None:
        self._observer.on_error(error)

    def on_completed(self) -> None:
        self._observer.on_completed()


def end_error(event: FailedEvent | CancelledEvent) -> AgentflowError:
    """What `reply()` raises for a run that did not end with an answer."""
    if isinstance(event, FailedEvent):
        error = event.error
        return RunFailed(error.message, kind=error.kind, run_id=event.run_id, retryable=error.retryable)
    return RunCancelled(f"the run was cancelled ({event.reason})", reason=event.reason, run_id=event.run_id)
