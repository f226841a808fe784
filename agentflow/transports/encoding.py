"""Events as the frames of Server-Sent Events, and as the small objects of `format=simple`. Pure.

It forwards what events say and decides nothing; when frames are written is `sse`'s business.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from agentflow.events import (
    AgentEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    encode,
)

Form: TypeAlias = Literal["simple", "events"]

MAX_WRITE = 256 * 1024  # bytes that are written at once, if they are not one event
PING = b": ping\n\n"

_EVENT_ID = re.compile(r"([A-Za-z0-9_-]{1,128}):([0-9]{1,15})")
_encode = msgspec.json.encode


def event_id(event: AgentEvent) -> str:
    """What a client sends as `Last-Event-ID` to go on after this event."""
    return f"{event.run_id}:{event.seq}"


def read_event_id(text: str) -> tuple[str, int] | None:
    """The run and the number of the event that an id names; None for what is no id of ours."""
    match = _EVENT_ID.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def frame(data: bytes, name: str | None = None) -> bytes:
    """One unnamed frame for a line of JSON, with an id if it has one; lines end with LF.

    U+2028 and U+2029, which some readers take for line ends, are escaped. An id in which a line could end is refused.
    """
    line = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if name is None:
        return b"data: " + line + b"\n\n"
    if _EVENT_ID.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no id of an event")
    return b"id: " + name.encode() + b"\ndata: " + line + b"\n\n"


def opening(retry_ms: int, name: str | None = None) -> bytes:
    """What a stream begins with: when to come back after a break, and from where. It dispatches nothing."""
    return b"".join((b"retry: %d\n" % retry_ms, b"id: " + name.encode() + b"\n" if name else b"", b"\n"))


def frames(events: Sequence[AgentEvent], form: Form, *, batch: bool = False) -> Iterator[bytes]:
    """The frames for events that follow each other in a run, each with the id of its last event.

    With `batch` it is one array for all, or several where they would be over 256 KiB together.
    """
    told = ((event, data) for event in events if (data := _told(event, form)) is not None)
    if not batch:
        for event, data in told:
            yield frame(data, event_id(event))
        return
    for group in _groups(told):
        yield frame(b"[" + b",".join(data for _, data in group) + b"]", event_id(group[-1][0]))


def object_frame(told: Mapping[str, str], name: str | None = None, *, batch: bool = False) -> bytes:
    """The frame for one object of `format=simple`, with `batch` as an array of one."""
    return frame(_encode([told] if batch else told), name)


def writes(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Frames joined to pieces that are worth a write of their own, at most 256 KiB unless one frame is more."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        if waiting and size + len(part) > MAX_WRITE:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += len(part)
    if waiting:
        yield b"".join(waiting)


def _groups(told: Iterable[tuple[AgentEvent, bytes]]) -> Iterator[list[tuple[AgentEvent, bytes]]]:
    group: list[tuple[AgentEvent, bytes]] = []
    size = 0
    for event, data in told:
        if group and size + len(data) > MAX_WRITE:
            yield group
            group, size = [], 0
        group.append((event, data))
        size += len(data)
    if group:
        yield group


def _told(event: AgentEvent, form: Form) -> bytes | None:
    if form == "events":
        return encode(event)
    told = simple(event)
    return None if told is None else _encode(told)


def simple(event: AgentEvent) -> dict[str, str] | None:  # noqa: PLR0911  one return per kind of event
    """An event for a page that only shows text and tools; None for one that it is not told of.

    `type` is content, tool_call, tool_result, done or error; `rawContent` is the text to show, and `data` a JSON string
    with the rest. Content is the root's answer as it comes; that of an attempt which is made again cannot be taken
    back, but the `rawContent` of done is the answer that counts. Calls of agents below the root are told like its own.
    """
    match event:
        case DeltaEvent(channel="answer") if event.chain_id == event.run_id:
            return _simple("content", event.text, event)
        case ToolStartEvent(attempt=1):
            return _simple("tool_call", "", event, **_call(event), arguments=event.arguments)
        case ToolCompleteEvent():
            return _simple("tool_result", event.result, event, **_call(event), **_result(event, "success"))
        case ToolErrorEvent(will_retry=False):
            return _simple("tool_result", event.result, event, **_call(event), **_result(event, event.status))
        case FinalEvent():
            told = {"finish_reason": event.finish_reason, "usage": event.usage, "duration_ms": event.duration_ms}
            return _simple("done", event.text, event, state="completed", **told)
        case FailedEvent():
            return simple_error(event.error.kind, event.error.message, event, retryable=event.error.retryable)
        case CancelledEvent():
            return simple_error("cancelled", f"the run was cancelled ({event.reason})", event, reason=event.reason)
        case _:
            return None


def simple_error(kind: str, message: str, event: AgentEvent | None = None, **more: Any) -> dict[str, str]:
    """The error frame's object; `event` says of which run."""
    return _simple("error", message, event, kind=kind, message=message, **more)


def simple_pending(text: str, pending: Sequence[Any], run_id: str, session_id: str) -> dict[str, str]:
    """The last object of a reader whose run waits for people: what it waits for, and the text there is so far."""
    told = {"run_id": run_id, "session_id": session_id, "state": "suspended", "pending": pending}
    return _simple("done", text, None, **told)


def simple_content(text: str) -> dict[str, str]:
    """A piece of a text that is no run's."""
    return _simple("content", text, None)


def simple_done() -> dict[str, str]:
    """The end of a text that is no run's."""
    return _simple("done", "", None)


def _simple(kind: str, text: str, event: AgentEvent | None, /, **data: Any) -> dict[str, str]:
    whose = {"run_id": event.run_id, "session_id": event.session_id} if event is not None else {}
    return {"type": kind, "rawContent": text, "data": _encode(whose | data).decode()}


def _call(event: ToolStartEvent | ToolCompleteEvent | ToolErrorEvent) -> dict[str, Any]:
    return {"call_id": event.call_id, "tool": event.tool, "path": event.path}


def _result(event: ToolCompleteEvent | ToolErrorEvent, status: str) -> dict[str, Any]:
    return {"status": status, "result": event.result, "duration_ms": event.duration_ms}
