"""The states of a chain, as one table from (state, event type) to the states that may follow.

Which of them does follow is decided in `reducer`; what is not in the table cannot happen.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from agentflow.events import EventType, State

_ENDS: Final = {
    EventType.FAILED: frozenset({State.FAILED}),
    EventType.CANCELLED: frozenset({State.CANCELLED}),
}


def _row(state: State, moves: Mapping[EventType, Iterable[State]]) -> dict[EventType, frozenset[State]]:
    """A row of the table: what every open state allows, and its own moves."""
    notes = {EventType.WARNING: frozenset({state}), EventType.SUMMARY: frozenset({state})}
    return notes | {event: frozenset(targets) for event, targets in moves.items()} | _ENDS


TABLE: Final[Mapping[State, Mapping[EventType, frozenset[State]]]] = {
    State.IDLE: _row(State.IDLE, {EventType.INPUT: {State.THINKING}}),
    # The context is built, or the model's turn is judged: an answer, tool calls, or a question.
    State.THINKING: _row(
        State.THINKING,
        {
            EventType.MODEL_START: {State.AWAITING_MODEL},
            EventType.DELTA: {State.THINKING},  # text the framework itself writes
            EventType.TOOL_START: {State.EXECUTING_TOOLS},
            EventType.APPROVAL: {State.EXECUTING_TOOLS, State.SUSPENDED},
            EventType.QUESTION: {State.SUSPENDED},
            EventType.FINAL: {State.COMPLETED},
        },
    ),
    State.AWAITING_MODEL: _row(
        State.AWAITING_MODEL,
        {
            EventType.DELTA: {State.AWAITING_MODEL},
            EventType.ROLLBACK: {State.AWAITING_MODEL},
            EventType.MODEL_START: {State.AWAITING_MODEL},  # the next attempt
            EventType.MODEL_COMPLETE: {State.THINKING},
        },
    ),
    State.EXECUTING_TOOLS: _row(
        State.EXECUTING_TOOLS,
        {
            EventType.TOOL_START: {State.EXECUTING_TOOLS},
            EventType.TOOL_DELTA: {State.EXECUTING_TOOLS},
            EventType.TOOL_COMPLETE: {State.EXECUTING_TOOLS, State.THINKING, State.SUSPENDED},
            EventType.TOOL_ERROR: {State.EXECUTING_TOOLS, State.THINKING, State.SUSPENDED},
            EventType.APPROVAL: {State.EXECUTING_TOOLS, State.SUSPENDED},
            EventType.QUESTION: {State.EXECUTING_TOOLS, State.SUSPENDED},
            EventType.RESOLVED: {State.EXECUTING_TOOLS},
        },
    ),
    # Only waits for a human remain: no task, no socket.
    State.SUSPENDED: _row(
        State.SUSPENDED,
        {
            EventType.RESOLVED: {State.EXECUTING_TOOLS, State.THINKING},
            EventType.TOOL_START: {State.SUSPENDED},  # the run is ending: calls without one get theirs
            EventType.TOOL_ERROR: {State.SUSPENDED},
        },
    ),
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}


def diagram() -> str:
    """The table as a Mermaid state diagram: one edge per pair of states, labelled with its events."""
    edges: dict[tuple[State, State], list[str]] = {}
    for source, row in TABLE.items():
        for event, targets in row.items():
            for target in targets:
                if target is not source:
                    edges.setdefault((source, target), []).append(event.value)
    order = list(State)
    lines = [
        f"    {source} --> {target}: {', '.join(events)}"
        for (source, target), events in sorted(
            edges.items(), key=lambda edge: (order.index(edge[0][0]), order.index(edge[0][1]))
        )
    ]
    ends = [f"    {state} --> [*]" for state in State if not TABLE[state]]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.IDLE}", *lines, *ends])
