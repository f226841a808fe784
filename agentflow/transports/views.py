"""What the events of a run come to so far: a fold for those who look at a run as a whole. Pure.

How a run proceeds is not decided here; see `state`. It looks at the root's text and calls, and at all that waits.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    QuestionEvent,
    ResolvedEvent,
    RollbackEvent,
    RunError,
    State,
    StateEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolRecord,
    ToolStartEvent,
)
from agentflow.messages import Usage


class RunView:
    """A run as far as its events were taken, in order from the first.

    `text` is the answer there is; `pending` what waits for a person, in the order it was asked; `open_calls` the ids of
    all calls that have not ended, of whatever chain; `end` the terminal event.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.seq = 0
        self.session_id = ""
        self.agent = ""
        self.model = ""
        self.input = ""
        self.state = State.IDLE
        self.usage = Usage()
        self.end: TerminalEvent | None = None
        self.open_calls: set[str] = set()
        self._pieces: list[str] = []
        self._attempt = (0, 0)  # round and attempt of the pieces
        self._pending: dict[str, QuestionEvent | ApprovalEvent] = {}
        self._calls: dict[str, ToolRecord] = {}

    @property
    def text(self) -> str:
        """The answer; before the end that of the round that is going on."""
        return self.end.text if isinstance(self.end, FinalEvent) else "".join(self._pieces)

    @property
    def pending(self) -> Sequence[QuestionEvent | ApprovalEvent]:
        """The questions and approvals that wait for a person."""
        return tuple(self._pending.values())

    @property
    def tools(self) -> Sequence[ToolRecord]:
        """The root's calls, in the order they began; an open one has no status yet."""
        return self.end.tools if isinstance(self.end, FinalEvent) else tuple(self._calls.values())

    @property
    def error(self) -> RunError | None:
        """Why there is no answer; the kind of a cancelled run is its reason."""
        if isinstance(self.end, CancelledEvent):
            return RunError(kind=self.end.reason, message=f"the run was cancelled ({self.end.reason})")
        return self.end.error if isinstance(self.end, FailedEvent) else None

    @property
    def is_suspended(self) -> bool:
        """Whether the whole run waits for people."""
        return self.state is State.SUSPENDED

    def take(self, events: Iterable[AgentEvent]) -> None:
        """The next events."""
        for event in events:
            self.seq = event.seq
            self._waits(event)
            if event.chain_id == self.run_id:
                self._speaks(event)
                self._calls_tools(event)
            elif isinstance(event, ModelCompleteEvent):
                self.usage += event.usage

    def _waits(self, event: AgentEvent) -> None:
        match event:
            case QuestionEvent():
                self._pending[event.question_id] = event
            case ApprovalEvent():
                self._pending[event.call_id] = event
                self.open_calls.add(event.call_id)
            case ResolvedEvent():
                self._pending.pop(event.target, None)
            case ToolStartEvent() | ToolErrorEvent(will_retry=True):
                self.open_calls.add(event.call_id)
            case ToolErrorEvent() | ToolCompleteEvent():
                self._pending.pop(event.call_id, None)
                self.open_calls.discard(event.call_id)
            case _:
                pass

    def _speaks(self, event: AgentEvent) -> None:
        match event:
            case InputEvent():
                self.session_id, self.agent = event.session_id, event.path[0]
                self.model, self.input = event.model, event.text
            case StateEvent():
                self.state = event.current
            case DeltaEvent(channel="answer"):
                if (event.iteration, event.attempt) != self._attempt:
                    self._pieces, self._attempt = [], (event.iteration, event.attempt)
                self._pieces.append(event.text)
            case RollbackEvent():
                self._pieces = []
            case ModelCompleteEvent():
                self.usage += event.usage
            case FinalEvent() | FailedEvent() | CancelledEvent():
                self.end, self.usage = event, event.usage
                self.session_id = event.session_id
                self._pending.clear()
                self.open_calls.clear()
            case _:
                pass

    def _calls_tools(self, event: AgentEvent) -> None:
        match event:
            case ToolStartEvent():
                self._calls[event.call_id] = _record(event, event.arguments, "", "", 0.0)
            case ToolCompleteEvent():
                self._close(event, "success")
            case ToolErrorEvent(will_retry=False):
                self._close(event, event.status)
            case _:
                pass

    def _close(self, event: ToolCompleteEvent | ToolErrorEvent, status: str) -> None:
        call = self._calls.get(event.call_id)
        arguments = call.arguments if call is not None else None
        self._calls[event.call_id] = _record(event, arguments, status, event.result, event.duration_ms)

    def snapshot(self) -> dict[str, Any]:
        """The view as JSON can carry it."""
        told: dict[str, Any] = {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "agent": self.agent,
            "model": self.model,
            "state": self.state,
            "seq": self.seq,
            "input": self.input,
            "text": self.text,
            "finish_reason": self.end.finish_reason if isinstance(self.end, FinalEvent) else None,
            "error": self.error,
            "pending": self.pending,
            "tools": self.tools,
            "usage": self.usage,
        }
        plain: dict[str, Any] = msgspec.to_builtins(told)
        return plain


def _record(
    event: ToolStartEvent | ToolCompleteEvent | ToolErrorEvent,
    arguments: dict[str, Any] | None,
    status: str,
    result: str,
    duration_ms: float,
) -> ToolRecord:
    return ToolRecord(
        call_id=event.call_id,
        tool=event.tool,
        arguments=arguments,
        status=status,
        result=result,
        duration_ms=duration_ms,
    )
