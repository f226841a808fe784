"""A user's transforms at work: what they may change of an event, and what becomes of one that does more.

An event that could not be transformed never passes as it was: whatever goes wrong here ends the run.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentflow.chain.runtime import Transform
from agentflow.errors import TransformError
from agentflow.events import (
    MAX_ANSWER_BYTES,
    MAX_DELTA_BYTES,
    MAX_EVENT_BYTES,
    MAX_RESULT_BYTES,
    AgentEvent,
    DeltaEvent,
    ErrorInfo,
    EventType,
    InputEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    encode,
    plain,
)
from agentflow.messages import clean_text

# What a transform may change; everything else of an event is the machine's.
CHANGEABLE: Final = {
    EventType.INPUT: "text",
    EventType.DELTA: "text",
    EventType.TOOL_DELTA: "data",
    EventType.TOOL_COMPLETE: "result",
    EventType.TOOL_ERROR: "result",
    EventType.SUMMARY: "text",
}
_MAX_GROWTH = MAX_ANSWER_BYTES // 4  # bytes by which all deltas of a run may grow, so that `final` stays in its bound


class Transforms:
    """The transforms of one run, in order, each given what the one before made."""

    def __init__(self, functions: Sequence[Transform]) -> None:
        self._functions = functions
        self._growth = 0

    def apply(self, event: AgentEvent) -> AgentEvent:
        """The event to be reduced and logged in place of `event`. Raises `TransformError`."""
        field = CHANGEABLE.get(event.type)
        if field is None or not self._functions:
            return event
        changed = event
        for function in self._functions:
            changed = _apply(function, changed, field)
        if isinstance(changed, DeltaEvent):
            self._grow(len(encode(changed)) - len(encode(event)))
        return changed

    def _grow(self, size: int) -> None:
        self._growth += size
        if self._growth > _MAX_GROWTH:
            raise TransformError(
                f"the transforms made the text of this run {self._growth} bytes longer, over the bound"
            )


def _apply(function: Transform, event: AgentEvent, field: str) -> AgentEvent:
    """`event` with what the transform made of its one changeable field; any other change is an error."""
    name = getattr(function, "__qualname__", repr(function))
    given = _copy(event)
    try:
        changed: Any = function(given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # no await stands here, so a CancelledError is its own
        raise TransformError(
            f"the transform {name} raised {type(error).__name__} for a {event.type} event; the run ends, since what "
            "it would have hidden must not pass (events are frozen: give back msgspec.structs.replace(event, ...))"
        ) from error
    if type(changed) is not type(event):
        raise TransformError(f"the transform {name} must give back a {event.type} event, not {type(changed).__name__}")
    value = _checked(name, event, field, getattr(changed, field))
    if value == getattr(event, field) and changed == event:
        return event
    ours = msgspec.structs.replace(event, **{field: value})
    if msgspec.structs.replace(changed, **{field: value}) != ours:
        raise TransformError(f"the transform {name} changed more of the {event.type} event than its {field}")
    if isinstance(ours, ToolErrorEvent):  # the result says what the error says: hidden there, it is hidden here
        message = ours.result.partition("\n")[2]
        ours = msgspec.structs.replace(ours, error=ErrorInfo(kind=ours.error.kind, message=message))
    if _is_too_large(ours):
        raise TransformError(f"the transform {name} made a {event.type} event larger than one may be")
    return ours


def _copy(event: AgentEvent) -> AgentEvent:
    """The event for a transform to look at, whose containers it may even change in place."""
    if isinstance(event, InputEvent):
        return msgspec.structs.replace(event, metadata=plain(event.metadata))
    if event.type is EventType.TOOL_DELTA:
        return msgspec.structs.replace(event, data=plain(event.data))
    return event


def _checked(name: str, event: AgentEvent, field: str, value: Any) -> Any:
    if field == "data":
        return plain(value)
    if not isinstance(value, str):
        raise TransformError(f"the transform {name} made {event.type}.{field} a {type(value).__name__}, not a text")
    return clean_text(value)


def _is_too_large(event: AgentEvent) -> bool:
    if isinstance(event, ToolCompleteEvent | ToolErrorEvent):
        return len(event.result.encode()) > MAX_RESULT_BYTES
    return len(encode(event)) > (MAX_DELTA_BYTES if event.type is EventType.DELTA else MAX_EVENT_BYTES)
