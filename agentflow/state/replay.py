"""Replay: whether the decisions in a run's log are those that today's machine takes.

It folds the log and holds what comes next in it against the commands of `reduce`. What comes from outside (a model's
words, a tool's result, a human's decision, a cancel) is taken as it stands; sizes, times and the like are no decisions
and are not looked at. Pure.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeAlias

from agentflow.errors import InvalidTransition
from agentflow.events import (
    AgentEvent,
    DeltaEvent,
    EventType,
    InputEvent,
    QuestionEvent,
    State,
    StateEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.state.chains import TERMINAL_STATES, Call, Change, Limits, RunState, state_changes
from agentflow.state.commands import (
    Ask,
    CallModel,
    Command,
    CompleteTool,
    Finish,
    Notice,
    RefuseTool,
    RunTool,
    StopTool,
    Warn,
)
from agentflow.state.reducer import CORRECTIONS, reduce

_MAX_SHOWN: Final = 120  # characters of a value
_NO_DECISION: Final = "nothing that the machine decides"

# What nobody decides here. Whether it can be at all is for `reduce` to say.
_AT_ANY_TIME: Final = frozenset({EventType.SUMMARY, EventType.FAILED, EventType.CANCELLED})
_WHEN_NOTHING_IS_OWED: Final = frozenset(
    {EventType.ROLLBACK, EventType.MODEL_COMPLETE, EventType.TOOL_DELTA, EventType.RESOLVED}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a log and today's machine part: what the machine would have had instead of the event `seq`."""

    seq: int
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class _Step:
    """An event that a command brings: of one of these types, and with these fields.

    `then` is a command that follows it before all others. `instead` may come in its place, for reasons that stand in no
    log.
    """

    types: tuple[EventType, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    then: Command | None = None
    instead: "_Step | None" = None

    def fits(self, event: AgentEvent) -> bool:
        return event.type in self.types and all(attrgetter(name)(event) == it for name, it in self.fields.items())


_Owed: TypeAlias = "deque[Command | _Step]"


def replay(events: Iterable[AgentEvent], limits: Limits | None = None) -> Difference | None:
    """The first place in this log of one run where today's machine decides otherwise; None if there is none.

    The log begins with the run's first event and may stop anywhere. `limits` are those of the run's agents, of which a
    log says nothing; by default the machine's own.
    """
    fold: Replay | None = None
    for event in events:
        fold = fold or Replay(event.run_id, limits)
        difference = fold.take(event)
        if difference is not None:
            return difference
    return fold.end() if fold is not None else None


class Replay:
    """`replay` event by event, for logs that are read in pages. It is of no use after its first difference."""

    def __init__(self, run_id: str, limits: Limits | None = None) -> None:
        self.state = RunState(run_id=run_id, limits=limits or Limits())
        self.seq = 0
        self._owed: defaultdict[str, _Owed] = defaultdict(deque)  # by chain: what its commands still bring, in order
        self._moves: deque[Change] = deque()  # that the last event has caused, and no `state` event has told yet
        self._ends: list[StateEvent] = []  # they stand before their cause
        self._started: ToolStartEvent | None = None  # the last event, if it was one
        self._doubt: Difference | None = None  # unless the call that was just started is closed at once

    def take(self, event: AgentEvent) -> Difference | None:
        """The next event of the log; how it differs, None if it does not."""
        if (event.run_id, event.seq) != (self.state.run_id, self.seq + 1):
            expected = _told("event", {"run_id": self.state.run_id, "seq": self.seq + 1})
            return Difference(event.seq, expected, _told("event", {"run_id": event.run_id, "seq": event.seq}))
        self.seq = event.seq
        if isinstance(event, StateEvent):
            return self._take_state(event)
        if self._moves:
            return Difference(event.seq, _change(self._moves[0]), event.type.value)
        if self._doubt is not None and not (self._is_at_once(event) and _is_cut_off(event)):
            return self._doubt
        self._doubt = self._differs(event)
        if self._doubt is not None and not isinstance(event, ToolStartEvent):
            return self._doubt
        return self._fold(event)

    def end(self) -> Difference | None:
        """There is no more of the log: what can only be told now."""
        return self._doubt

    def _take_state(self, event: StateEvent) -> Difference | None:
        change = (event.chain_id, event.previous, event.current)
        if not self._moves and event.current in TERMINAL_STATES:
            self._ends.append(event)
            return None
        expected = self._moves.popleft() if self._moves else None
        if change == expected:
            return None
        return Difference(event.seq, _change(expected) if expected else self._due(event.chain_id), _change(change))

    def _fold(self, event: AgentEvent) -> Difference | None:
        try:
            state, commands = reduce(self.state, event)
        except InvalidTransition as error:
            return Difference(event.seq, "an event that can be", f"{event.type}: {error}")
        ends, moves = state_changes(self.state, state) if state is not self.state else ([], [])
        told = [(one.chain_id, one.previous, one.current) for one in self._ends]
        if told != ends:
            seq = self._ends[0].seq if self._ends else event.seq
            return Difference(seq, _changes(ends), f"{_changes(told)} before {event.type}")
        self._ends, self._moves, self.state = [], deque(moves), state
        for chain_id, _, _ in ends:
            self._owed.pop(chain_id, None)
        for command in commands:
            self._owed[command.chain_id].append(command)
        self._started = event if isinstance(event, ToolStartEvent) else None
        if self._started is not None and self._started.child_chain_id is not None:
            self._owed[self._started.child_chain_id].append(_Step((EventType.INPUT,)))
        return None

    # -- what is decided -----------------------------------------------------------------------------------

    def _differs(self, event: AgentEvent) -> Difference | None:
        """What is wrong with an event that is neither owed next nor from outside."""
        if self._pays(event.chain_id, event):
            return None
        call = self._closed_call(event)
        if call is not None and call.child is not None:
            if self._pays(call.child, event):
                return None
            if isinstance(event, ToolCompleteEvent):
                return self._difference(call.child, event)
        if self._is_from_outside(event, self._next(event.chain_id)):
            return None
        return self._difference(event.chain_id, event)

    def _closed_call(self, event: AgentEvent) -> Call | None:
        """The call that this event closes."""
        if not isinstance(event, ToolCompleteEvent | ToolErrorEvent):
            return None
        return self.state.chain(event.chain_id).find(event.call_id)

    def _difference(self, chain_id: str, event: AgentEvent) -> Difference:
        step = self._next(chain_id)
        names = step.fields if step is not None else ()
        there = {name: _value(event, name) for name in names if _value(event, name) is not None}
        return Difference(event.seq, self._due(chain_id), _told(event.type.value, there))

    def _due(self, chain_id: str) -> str:
        step = self._next(chain_id)
        return _NO_DECISION if step is None else _told(" or ".join(step.types), step.fields)

    def _pays(self, chain_id: str, event: AgentEvent) -> bool:
        """Take the event as what the chain owes next, if it is."""
        step = self._next(chain_id)
        if step is not None and step.instead is not None and step.instead.fits(event):
            step = step.instead
        if step is None or not step.fits(event):
            return False
        self._owed[chain_id].popleft()
        if step.then is not None:
            self._owed[chain_id].appendleft(step.then)
        return True

    def _next(self, chain_id: str) -> _Step | None:
        """The event that the chain owes next; a command is looked at only when its turn comes."""
        owed = self._owed[chain_id]
        while owed:
            first = owed[0]
            if isinstance(first, _Step):
                return first
            owed.popleft()
            owed.extendleft(reversed(_steps(first, self.state)))
        return None

    def _is_from_outside(self, event: AgentEvent, owed: _Step | None) -> bool:
        """Whether nobody decides it here; `owed` is what its chain owes next."""
        chain, free = self.state.chain(event.chain_id), owed is None
        match event:
            case WarningEvent():
                outside = event.code not in CORRECTIONS
            case ToolCompleteEvent() | ToolErrorEvent():
                refused = owed is not None and owed.fields.get("call_id") == event.call_id
                outside = free or _is_cut_off(event) or (self._is_at_once(event) and not refused)
            case QuestionEvent():
                outside = chain.find(event.question_id) is not None and (free or self._is_at_once(event))
            case ToolStartEvent():
                call = chain.find(event.call_id)
                outside = free and call is not None and call.status == "retrying"
            case DeltaEvent():
                outside = chain.state is State.AWAITING_MODEL
            case InputEvent():
                outside = event.chain_id == event.run_id
            case _:
                outside = event.type in _AT_ANY_TIME or (free and event.type in _WHEN_NOTHING_IS_OWED)
        return outside

    def _is_at_once(self, event: AgentEvent) -> bool:
        """Whether it follows the start of its call, as what closes a call that is not run."""
        call_id = event.question_id if isinstance(event, QuestionEvent) else getattr(event, "call_id", None)
        return self._started is not None and self._started.call_id == call_id


def _is_cut_off(event: AgentEvent) -> bool:
    """Whether a call is closed because its run ends, or its chain does."""
    return isinstance(event, ToolErrorEvent) and event.status in ("cancelled", "amended")


# -- what a command brings -------------------------------------------------------------------------------------


def _steps(command: Command, state: RunState) -> tuple[Command | _Step, ...]:
    """The events that a command brings, in order; for a chain that ends, the one that ends it."""
    steps: tuple[Command | _Step, ...]
    match command:
        case RunTool():
            steps = _run(command)
        case RefuseTool():
            error = {"call_id": command.call_id, "status": command.status, "error.kind": command.kind}
            steps = (_of_call(EventType.TOOL_START, command.call_id), _Step((EventType.TOOL_ERROR,), error))
        case CompleteTool():
            steps = (_of_call(EventType.TOOL_COMPLETE, command.call_id),)
        case StopTool():
            call = state.chain(command.chain_id).find(command.call_id)
            amended = {"call_id": command.call_id, "status": "amended"}
            # A task is waited for, and ends its call from outside.
            steps = (_Step((EventType.TOOL_ERROR,), amended),) if call is not None and call.child is not None else ()
        case _:
            steps = _text_steps(command, state)
    return steps


def _text_steps(command: Command, state: RunState) -> tuple[_Step, ...]:
    iteration = state.chain(command.chain_id).iteration
    steps: tuple[_Step, ...] = ()
    match command:
        case CallModel():
            asked = {"iteration": command.iteration, "attempt": command.attempt}
            # How many tokens a request would take is not in the log.
            may_stop = state.limits.token_budget > 0 and command.attempt == 1
            notice = _notice(Notice(command.chain_id, "", "budget"), iteration) if may_stop else None
            steps = (_Step((EventType.MODEL_START,), asked, instead=notice),)
        case Notice():
            steps = (_notice(command, iteration),)
        case Ask():
            steps = (_Step((EventType.QUESTION,), {"text": command.text, "options": command.options}),)
        case Warn():
            steps = (_Step((EventType.WARNING,), {"code": command.code}),)
        case Finish():
            steps = (_finish(command, state),)
        case _:  # the others are not the machine's
            pass
    return steps


def _of_call(kind: EventType, call_id: str) -> _Step:
    return _Step((kind,), {"call_id": call_id})


def _run(command: RunTool) -> tuple[_Step, ...]:
    types = (EventType.TOOL_START,) if command.approved else (EventType.TOOL_START, EventType.APPROVAL)
    arguments = {} if command.arguments is None else {"arguments": command.arguments}
    return (_Step(types, {"call_id": command.call_id, **arguments}),)


def _notice(command: Notice, iteration: int) -> _Step:
    then = Finish(command.chain_id, command.finish_reason)
    return _Step((EventType.DELTA,), {"iteration": iteration + 1}, then=then)


def _finish(command: Finish, state: RunState) -> _Step:
    chain, whole = state.chain(command.chain_id), command.finish_reason in ("stop", "length")
    # Which form the answer was to have is not in the log.
    corrected = _Step((EventType.WARNING,), {"code": "output_invalid"}) if command.finish_reason == "stop" else None
    if chain.parent is None:
        told = {"finish_reason": command.finish_reason, "text": chain.round.text}
        return _Step((EventType.FINAL,), told, instead=corrected)
    types = (EventType.TOOL_COMPLETE, EventType.TOOL_ERROR) if whole else (EventType.TOOL_ERROR,)
    return _Step(types, {"call_id": chain.call_id}, instead=corrected)


# -- in words --------------------------------------------------------------------------------------------------


def _told(what: str, fields: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}={_short(value)}" for name, value in fields.items())
    return f"{what} with {shown}" if shown else what


def _value(event: AgentEvent, name: str) -> Any:
    try:
        return attrgetter(name)(event)
    except AttributeError:
        return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _change(change: Change) -> str:
    chain_id, previous, current = change
    return f"state of chain {chain_id!r} from {previous} to {current}"


def _changes(changes: Iterable[Change]) -> str:
    return ", ".join(map(_change, changes)) or "no state that ends a chain"
