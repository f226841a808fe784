"""The laws of a run's log, as one pure check.

Whatever happens to a run – errors, cancels, crashes, retries – its log obeys them, so any test may end with
`assert_laws`. It reads events only and knows nothing of how they came about. What holds for tool calls, for what runs
inside them and for the decisions of humans is in `law_of_calls`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from agentflow.events import (
    MAX_DELTA_BYTES,
    MAX_EVENT_BYTES,
    MAX_RESULT_BYTES,
    TERMINAL_TYPES,
    AgentEvent,
    DeltaEvent,
    EventType,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    ResolvedEvent,
    RollbackEvent,
    State,
    StateEvent,
    SummaryEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    encode,
)
from agentflow.messages import Usage
from agentflow.state import TABLE, TERMINAL_STATES
from agentflow.testing import law_of_calls
from agentflow.testing.law_of_calls import Log, Violations, at

_TIME_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|\+00:00)")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_END_STATES = {
    EventType.FINAL: State.COMPLETED,
    EventType.FAILED: State.FAILED,
    EventType.CANCELLED: State.CANCELLED,
}


class LawError(AssertionError):
    """A log breaks its laws; the message lists how."""


def check_laws(events: Log, *, ended: bool = True) -> list[str]:
    """What is wrong with this log of one run, in words; empty if nothing is.

    With `ended` False the log may stop anywhere, as one does whose store failed.
    """
    laws = _LAWS + _LAWS_OF_AN_END if ended else _LAWS
    return [violation for law in laws for violation in law(events)]


def assert_laws(events: Log, *, ended: bool = True) -> None:
    """Raise `LawError` with all violations, and the log's outline, if there are any."""
    violations = check_laws(events, ended=ended)
    if violations:
        outline = " ".join(f"{event.seq}:{event.type}" for event in events)
        raise LawError("\n".join([*violations, f"the log: {outline}"]))


def _numbers_are_dense(events: Log) -> Violations:
    for position, event in enumerate(events, 1):
        if event.seq != position:
            yield f"seq {event.seq} ({event.type}) stands at place {position}"


def _common_fields_are_constant(events: Log) -> Violations:
    for name in ("run_id", "session_id", "trace_id"):
        values = {getattr(event, name) for event in events}
        if len(values) > 1:
            yield f"{name} changes in the run: {sorted(values)!r}"
    for event in events:
        if not _TRACE_ID.fullmatch(event.trace_id):
            yield f"{at(event)}: trace_id {event.trace_id!r} is not 32 hex digits"


def _time_goes_on(events: Log) -> Violations:
    for event in events:
        if not _TIME_STAMP.fullmatch(event.ts):
            yield f"{at(event)}: ts {event.ts!r} is not RFC 3339 in UTC with microseconds"
    for before, after in pairwise(events):
        if after.ts < before.ts:
            yield f"{at(after)}: ts {after.ts} is before that of the event before, {before.ts}"


def _chains_form_a_tree(events: Log) -> Violations:
    known: dict[str, tuple[str | None, tuple[str, ...]]] = {}
    for event in events:
        place = (event.parent_chain_id, event.path)
        if known.setdefault(event.chain_id, place) != place:
            yield f"{at(event)}: chain {event.chain_id!r} changes its parent or path"
        if (event.chain_id == event.run_id) != (event.parent_chain_id is None):
            yield f"{at(event)}: the root, and only it, has the run's id and no parent"
        if event.parent_chain_id is not None and event.parent_chain_id not in known:
            yield f"{at(event)}: the parent {event.parent_chain_id!r} has no event before this one"


def _sizes_are_bounded(events: Log) -> Violations:
    for event in events:
        size, limit = len(encode(event)), MAX_DELTA_BYTES if isinstance(event, DeltaEvent) else MAX_EVENT_BYTES
        if size > limit:
            yield f"{at(event)}: {size} bytes encoded, more than {limit}"
        result = len(event.result.encode()) if isinstance(event, ToolCompleteEvent | ToolErrorEvent) else 0
        if result > MAX_RESULT_BYTES:
            yield f"{at(event)}: a result of {result} bytes, more than {MAX_RESULT_BYTES}"


def _a_gap_is_never_stored(events: Log) -> Violations:
    for event in events:
        if event.type is EventType.GAP:
            yield f"{at(event)}: a gap is one reader's view, never in a log"


def _a_run_begins_with_its_input(events: Log) -> Violations:
    first = events[0] if events else None
    never_begun = isinstance(first, StateEvent) and first.current in TERMINAL_STATES
    if first is not None and not never_begun and not isinstance(first, InputEvent):
        yield f"{at(first)}: a run begins with its input, unless it ended before it began"


def _one_end(events: Log) -> Violations:
    for event in events[:-1]:
        if event.type in TERMINAL_TYPES:
            yield f"{at(event)}: a terminal event is not the last event"
    if not events or events[-1].type not in TERMINAL_TYPES:
        yield "the log does not end with a terminal event"


def _the_end_is_the_roots(events: Log) -> Violations:
    for event in events:
        if event.type in TERMINAL_TYPES and event.chain_id != event.run_id:
            yield f"{at(event)}: the terminal event of a run is its root's"


def _the_state_of_the_end_stands_before_it(events: Log) -> Violations:
    for before, event in pairwise((None, *events)):
        if event is None or event.type not in TERMINAL_TYPES:
            continue
        state = before.current if isinstance(before, StateEvent) and before.chain_id == event.chain_id else None
        if state is not _END_STATES[event.type]:
            yield f"{at(event)}: the state into {_END_STATES[event.type]} must stand directly before it"


def _states_follow_the_table(events: Log) -> Violations:
    states: dict[str, State] = defaultdict(lambda: State.IDLE)
    parents = {event.chain_id: event.parent_chain_id for event in events}
    cause: AgentEvent | None = None  # the last event that is no output
    changed: set[str] = set()  # the chains that it has changed
    for position, event in enumerate(events):
        after = events[position + 1] if position + 1 < len(events) else None
        state = states[event.chain_id]
        if isinstance(event, StateEvent):
            earlier = None if event.chain_id in changed else cause
            yield from _change(event, state, after if event.current in TERMINAL_STATES else earlier, parents)
            states[event.chain_id] = event.current
            changed.add(event.chain_id)
            continue
        cause = event
        changed.clear()
        if event.type not in TERMINAL_TYPES:
            moves = isinstance(after, StateEvent) and after.current not in TERMINAL_STATES
            yield from _cause(event, state, changes=moves and after is not None and after.chain_id == event.chain_id)


def _change(event: StateEvent, state: State, cause: AgentEvent | None, parents: Mapping[str, str | None]) -> Violations:
    if event.previous is not state:
        yield f"{at(event)}: changes from {event.previous}, but the chain was {state}"
    if event.previous is event.current:
        yield f"{at(event)}: changes nothing"
    if cause is None or not _may_cause(event, cause, parents):
        yield f"{at(event)}: stands beside no event that could have caused it"
        return
    type_ = cause.type
    if cause.chain_id == event.parent_chain_id and event.current in TERMINAL_STATES:
        type_ = next(end for end, target in _END_STATES.items() if target is event.current)  # its own end, so to say
    if event.current not in TABLE[event.previous].get(type_, ()):
        yield f"{at(event)}: {cause.type} cannot lead from {event.previous} to {event.current}"


def _may_cause(event: StateEvent, cause: AgentEvent, parents: Mapping[str, str | None]) -> bool:
    """A chain's state is changed by its own events, by those below it, and at its end by the call that called it."""
    if event.current in TERMINAL_STATES and event.parent_chain_id is not None:
        closes = isinstance(cause, ToolCompleteEvent | ToolErrorEvent)
        return closes and cause.chain_id == event.parent_chain_id
    chain_id: str | None = cause.chain_id
    while chain_id not in (None, event.chain_id):
        chain_id = parents.get(chain_id or "")
    return chain_id is not None


def _cause(event: AgentEvent, state: State, *, changes: bool) -> Violations:
    allowed = TABLE[state].get(event.type)
    if allowed is None:
        yield f"{at(event)}: not allowed in state {state}"
    elif not changes and state not in allowed:
        yield f"{at(event)}: no state event follows, but the chain cannot stay {state}"


@dataclass
class _Rounds:
    """The rounds of one chain, as far as its log was read. `open` is the attempt that may still bring deltas."""

    iteration: int = 0
    attempt: int = 0
    open: bool = False
    deltas: int = 0
    seen: int = 0

    def read(self, event: AgentEvent) -> Violations:
        # What is noted beside a run, or decided from outside, may be of the round in which it was seen.
        if event.iteration < self.seen and not isinstance(event, SummaryEvent | ResolvedEvent):
            yield f"{at(event)}: round {event.iteration} after round {self.seen}"
        self.seen = max(self.seen, event.iteration)
        match event:
            case ModelStartEvent():
                yield from self._start(event)
            case DeltaEvent():
                yield from self._delta(event)
            case RollbackEvent() | ModelCompleteEvent():
                attempt = event.attempt if isinstance(event, RollbackEvent) else self.attempt
                if not self.open or (event.iteration, attempt) != (self.iteration, self.attempt):
                    yield f"{at(event)}: ends no open model call"
                self.open, self.deltas = False, 0
            case ToolStartEvent() if self.open or event.iteration != self.iteration:
                yield f"{at(event)}: a tool of round {event.iteration}, whose reply is not the last whole one"
            case _:
                pass

    def _start(self, event: ModelStartEvent) -> Violations:
        again = event.iteration == self.iteration
        expected = (self.iteration, self.attempt + 1) if again else (self.iteration + 1, 1)
        if (event.iteration, event.attempt) != expected:
            yield f"{at(event)}: round {event.iteration}, attempt {event.attempt}, expected {expected}"
        if self.open and (self.deltas or not again):
            yield f"{at(event)}: attempt {self.attempt} before it was neither whole nor rolled back"
        self.iteration, self.attempt, self.open, self.deltas = event.iteration, event.attempt, True, 0

    def _delta(self, event: DeltaEvent) -> Violations:
        self.deltas += 1
        if self.open:
            if (event.iteration, event.attempt) != (self.iteration, self.attempt):
                yield f"{at(event)}: round {event.iteration}, attempt {event.attempt} is not the open one"
        elif event.iteration != self.iteration + 1:  # the framework's own text is one more round without a call
            yield f"{at(event)}: a delta of round {event.iteration}, which has no open model call"


def _rounds_go_on(events: Log) -> Violations:
    chains: dict[str, _Rounds] = defaultdict(_Rounds)
    for event in events:
        yield from chains[event.chain_id].read(event)


def _final_text_is_the_last_round(events: Log) -> Violations:
    final = _final(events)
    if final is None:
        return
    root = [event for event in events if event.chain_id == event.run_id]
    calls = [event for event in root if isinstance(event, DeltaEvent | ModelStartEvent)]
    last = max(((event.iteration, event.attempt) for event in calls), default=(0, 0))
    text = "".join(
        event.text
        for event in calls
        if isinstance(event, DeltaEvent) and event.channel == "answer" and (event.iteration, event.attempt) == last
    )
    if final.text != text:
        yield f"{at(final)}: its text {_short(final.text)} is not the joined answer of the last round {_short(text)}"
    if final.iterations != last[0]:
        yield f"{at(final)}: iterations {final.iterations}, but the last round is {last[0]}"


def _final_tools_are_the_calls(events: Log) -> Violations:
    final = _final(events)
    if final is None:
        return
    told: dict[str, tuple[str, str, str]] = {
        record.call_id: (record.tool, record.status, record.result) for record in final.tools
    }
    done: dict[str, tuple[str, str, str]] = {
        event.call_id: (event.tool, event.status if isinstance(event, ToolErrorEvent) else "success", event.result)
        for event in events
        if isinstance(event, ToolCompleteEvent | ToolErrorEvent) and event.chain_id == event.run_id
    }
    if len(encode(final)) > MAX_EVENT_BYTES // 2:  # may be cut to fit: then what is told must still be a call
        done = {call_id: told[call_id] for call_id in done if call_id in told}
    for call_id in sorted(told.keys() | done.keys()):
        if told.get(call_id) != done.get(call_id):
            yield f"{at(final)}: call {call_id!r} is {told.get(call_id)!r} in tools, {done.get(call_id)!r} in the log"


def _final_usage_is_the_sum(events: Log) -> Violations:
    final = _final(events)
    if final is None or any(map(_breaks_off, events)):
        return  # what a broken attempt cost stands in no other event
    total = sum((event.usage for event in events if isinstance(event, ModelCompleteEvent)), Usage())
    if final.usage != total:
        yield f"{at(final)}: usage {final.usage!r}, but the model calls sum up to {total!r}"


def _breaks_off(event: AgentEvent) -> bool:
    """Whether a model call, or a chain with one, was broken off here."""
    ends = isinstance(event, StateEvent) and event.current in (State.FAILED, State.CANCELLED)
    return ends or isinstance(event, RollbackEvent)


def _final(events: Log) -> FinalEvent | None:
    return next((event for event in events if isinstance(event, FinalEvent)), None)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


_LAWS: tuple[Callable[[Log], Violations], ...] = (
    _numbers_are_dense,
    _common_fields_are_constant,
    _time_goes_on,
    _chains_form_a_tree,
    _sizes_are_bounded,
    _a_gap_is_never_stored,
    _a_run_begins_with_its_input,
    _the_end_is_the_roots,
    _the_state_of_the_end_stands_before_it,
    _states_follow_the_table,
    _rounds_go_on,
    *law_of_calls.LAWS,
    _final_text_is_the_last_round,
    _final_tools_are_the_calls,
    _final_usage_is_the_sum,
)
_LAWS_OF_AN_END: tuple[Callable[[Log], Violations], ...] = (_one_end, law_of_calls.every_call_is_closed)
