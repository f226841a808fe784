"""The laws of tool calls in a run's log: how they open and close, what runs inside them, and what humans decide.

It reads events only. The laws of everything else, and the check of all of them, are in `laws`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    EventType,
    InputEvent,
    ModelCompleteEvent,
    QuestionEvent,
    ResolvedEvent,
    State,
    StateEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
)
from agentflow.state import TERMINAL_STATES

Log: TypeAlias = Sequence[AgentEvent]
Violations: TypeAlias = Iterator[str]

_AFTER_A_CANCELLED_CALL = frozenset(
    {EventType.TOOL_START, EventType.STATE, EventType.WARNING, EventType.FAILED, EventType.CANCELLED}
)


def at(event: AgentEvent) -> str:
    """Where a violation stands, as it is told."""
    return f"seq {event.seq} ({event.type})"


@dataclass
class _Call:
    """One tool call, as far as the log was read."""

    chain_id: str
    tool: str
    attempt: int = 0
    open: bool = False
    closed: bool = False

    def read(self, event: ToolStartEvent | ToolDeltaEvent | ToolCompleteEvent | ToolErrorEvent) -> Violations:
        if (event.chain_id, event.tool) != (self.chain_id, self.tool):
            yield f"{at(event)}: call {event.call_id!r} was made by another chain or for another tool"
        starts = isinstance(event, ToolStartEvent)
        if self.closed:
            yield f"{at(event)}: call {event.call_id!r} was closed before"
        elif starts is self.open or event.attempt != self.attempt + starts:
            yield f"{at(event)}: attempt {event.attempt} of call {event.call_id!r} {'is' if starts else 'is not'} open"
        self.attempt = event.attempt
        if starts:
            self.open = True
        elif not isinstance(event, ToolDeltaEvent):
            self.open = False
            self.closed = not (isinstance(event, ToolErrorEvent) and event.will_retry)


def _read_calls(events: Log, calls: dict[str, _Call]) -> Violations:
    for event in events:
        if isinstance(event, ModelCompleteEvent):
            for call in event.tool_calls:
                if call.call_id in calls:
                    yield f"{at(event)}: the call id {call.call_id!r} was used before in this run"
                calls[call.call_id] = _Call(event.chain_id, call.name)
        elif isinstance(event, ToolStartEvent | ToolDeltaEvent | ToolCompleteEvent | ToolErrorEvent):
            known = calls.get(event.call_id)
            if known is None:
                yield f"{at(event)}: no model asked for call {event.call_id!r}"
            else:
                yield from known.read(event)


def _calls_open_and_close(events: Log) -> Violations:
    yield from _read_calls(events, {})


def every_call_is_closed(events: Log) -> Violations:
    """A law of a run that has ended."""
    calls: dict[str, _Call] = {}
    for _ in _read_calls(events, calls):  # told by the law above
        pass
    for call_id, call in calls.items():
        if not call.closed:
            yield f"the end: call {call_id!r} was never closed"


def _cancelled_calls_stand_at_the_end(events: Log) -> Violations:
    ending = False
    for event in events:
        cancels = isinstance(event, ToolErrorEvent) and event.status == "cancelled"
        ending = ending or cancels
        if ending and not cancels and event.type not in _AFTER_A_CANCELLED_CALL:
            yield f"{at(event)}: comes after a cancelled call, which only a run that is ending has"


def _children_live_in_their_call(events: Log) -> Violations:
    """A chain below the root begins with its input after the call that calls it, and ends with that call's attempt."""
    calling: dict[str, ToolStartEvent] = {}  # by the chain that is called
    states: dict[str, State] = {}
    for event in events:
        if event.parent_chain_id is not None:
            begins = isinstance(event, InputEvent) and event.chain_id in calling
            if event.chain_id not in states and not begins:
                yield f"{at(event)}: a chain below the root begins with its input, after the call that calls it"
            if states.get(event.chain_id) in TERMINAL_STATES:
                yield f"{at(event)}: comes after the end of its chain"
        states.setdefault(event.chain_id, State.IDLE)
        if isinstance(event, StateEvent):
            states[event.chain_id] = event.current
        if isinstance(event, ToolStartEvent) and event.child_chain_id is not None:
            calling[event.child_chain_id] = event
        if isinstance(event, ToolCompleteEvent | ToolErrorEvent):
            for chain_id, start in calling.items():
                own = (start.call_id, start.attempt) == (event.call_id, event.attempt)
                if own and states.get(chain_id) not in TERMINAL_STATES:
                    yield f"{at(event)}: the chain {chain_id!r} of this call's agent has not ended before it"


def _nothing_runs_unapproved(events: Log) -> Violations:
    """A call that asked for approval succeeds only with it, and with the arguments it was begun with."""
    asked: dict[str, Mapping[str, Any] | None] = {}
    allowed: dict[str, Mapping[str, Any] | None] = {}  # the arguments, None until a human has decided
    approved: dict[str, bool] = {}  # whether the attempt that was begun last is of those
    for event in events:
        match event:
            case ApprovalEvent():
                asked[event.call_id], allowed[event.call_id] = event.arguments, None
            case ResolvedEvent(decision="approved") if event.target in asked:
                allowed[event.target] = asked[event.target]
            case ResolvedEvent(decision="amended") if event.target in asked:
                allowed[event.target] = event.arguments
            case ToolStartEvent() if event.call_id in asked:
                wanted = allowed[event.call_id]
                approved[event.call_id] = wanted is not None and event.arguments == wanted
            case ToolCompleteEvent() | ToolDeltaEvent() if event.call_id in asked:
                if not approved.get(event.call_id):
                    yield f"{at(event)}: call {event.call_id!r} ran without approval, or not as it was approved"
            case _:
                pass


def _a_decision_is_made_once(events: Log) -> Violations:
    """A human decides what waits, once; only the arguments of a call that is open may be amended again and again."""
    waiting: set[str] = set()
    open_calls: set[str] = set()
    for event in events:
        match event:
            case ApprovalEvent():
                waiting.add(event.call_id)
            case QuestionEvent():
                waiting.add(event.question_id)
            case ToolStartEvent():
                open_calls.add(event.call_id)
            case ToolCompleteEvent() | ToolErrorEvent(will_retry=False):
                open_calls.discard(event.call_id)
                waiting.discard(event.call_id)
            case ResolvedEvent():
                in_flight = event.decision == "amended" and event.target in open_calls
                if event.target not in waiting and not in_flight:
                    yield f"{at(event)}: nothing waits for a decision on {event.target!r}"
                waiting.discard(event.target)
            case _:
                pass


def _who_is_suspended_only_waits(events: Log) -> Violations:
    """No call of a suspended chain runs, but those that ask the user and those of agents that are suspended too."""
    running: dict[str, ToolStartEvent] = {}
    states: dict[str, State] = {}
    suspended: list[StateEvent] = []  # by one cause, and in one append
    for event in events:
        if isinstance(event, StateEvent):
            states[event.chain_id] = event.current
            if event.current is State.SUSPENDED:
                suspended.append(event)
            continue
        yield from _working(suspended, running, states)
        suspended.clear()
        match event:
            case ToolStartEvent():
                running[event.call_id] = event
            case ToolCompleteEvent() | ToolErrorEvent():
                running.pop(event.call_id, None)
            case QuestionEvent():
                running.pop(event.question_id, None)
            case _:
                pass
    yield from _working(suspended, running, states)


def _working(
    suspended: Sequence[StateEvent], running: Mapping[str, ToolStartEvent], states: Mapping[str, State]
) -> Violations:
    for event in suspended:
        for start in running.values():
            waits = states.get(start.child_chain_id or "") is State.SUSPENDED
            if start.chain_id == event.chain_id and not waits:
                yield f"{at(event)}: suspended, but call {start.call_id!r} is running"


LAWS: tuple[Callable[[Log], Violations], ...] = (
    _calls_open_and_close,
    _cancelled_calls_stand_at_the_end,
    _children_live_in_their_call,
    _nothing_runs_unapproved,
    _a_decision_is_made_once,
    _who_is_suspended_only_waits,
)
