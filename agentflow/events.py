"""The events of a run, one tagged union, and their codec.

This is the wire contract: one JSON object per event, snake_case, told apart by `type`. Events hold no
behaviour; what they mean for a run is decided in `state`.

An event is built by the chain, numbered (`seq`) and timed (`ts`) by the run's writer, and exists once the
event log has accepted it. Events are frozen; `stamp` is the writer's own way past that.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from agentflow.messages import ToolCall, Usage, clean_text


class EventType(StrEnum):
    """The `type` of each event."""

    INPUT = "input"
    STATE = "state"
    MODEL_START = "model_start"
    DELTA = "delta"
    ROLLBACK = "rollback"
    MODEL_COMPLETE = "model_complete"
    TOOL_START = "tool_start"
    TOOL_DELTA = "tool_delta"
    TOOL_COMPLETE = "tool_complete"
    TOOL_ERROR = "tool_error"
    QUESTION = "question"
    APPROVAL = "approval"
    RESOLVED = "resolved"
    SUMMARY = "summary"
    WARNING = "warning"
    GAP = "gap"
    FINAL = "final"
    FAILED = "failed"
    CANCELLED = "cancelled"


class State(StrEnum):
    """Where a chain stands; the table of allowed changes is in `state`."""

    IDLE = "idle"
    THINKING = "thinking"
    AWAITING_MODEL = "awaiting_model"
    EXECUTING_TOOLS = "executing_tools"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


Channel: TypeAlias = Literal["answer", "reasoning"]
RollbackReason: TypeAlias = Literal["retry", "fallback", "crashed", "amended"]
ToolStatus: TypeAlias = Literal[
    "error", "timeout", "invalid_arguments", "unknown_tool", "rejected", "rate_limited", "degraded", "loop",
    "limit", "amended", "cancelled", "unknown_outcome",
]  # fmt: skip
Decision: TypeAlias = Literal["answered", "approved", "rejected", "amended", "expired"]
FinishReason: TypeAlias = Literal["stop", "length", "max_iterations", "loop", "degraded", "budget"]
CancelReason: TypeAlias = Literal["user", "disconnect", "timeout", "shutdown", "superseded"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: a stable kind and one cleaned line."""

    kind: str
    message: str


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a run; `retryable` says whether the same request may succeed later."""

    kind: str
    message: str
    retryable: bool = False


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call in `final.tools`; `status` is "success" or the status of its last `tool_error`."""

    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    status: str
    result: str
    duration_ms: float


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The fields every event has.

    `seq` is dense from 1 per run, children included; `iteration` is the model round of this chain, from 1, and
    0 before the first. `ts` is RFC 3339 in UTC with microseconds, `trace_id` 32 hex digits (W3C).
    """

    run_id: str
    chain_id: str
    session_id: str
    path: tuple[str, ...]
    trace_id: str
    parent_chain_id: str | None = None
    iteration: int = 0
    seq: int = 0
    ts: str = ""


class InputEvent(Event, tag="input", frozen=True, kw_only=True):
    """The user's message: the first event of a run that has begun."""

    type: ClassVar[Literal[EventType.INPUT]] = EventType.INPUT
    text: str
    user_id: str | None = None
    model: str = ""
    metadata: dict[str, Any] = {}
    tools_hash: str = ""
    history_version: int = 0


class StateEvent(Event, tag="state", frozen=True, kw_only=True):
    """A chain changed its state. Follows its cause, but stands directly before a terminal event."""

    type: ClassVar[Literal[EventType.STATE]] = EventType.STATE
    previous: State
    current: State
    reason: str = ""


class ModelStartEvent(Event, tag="model_start", frozen=True, kw_only=True):
    """A model call begins; `messages` is how many it is given."""

    type: ClassVar[Literal[EventType.MODEL_START]] = EventType.MODEL_START
    provider: str
    model: str
    attempt: int = 1
    messages: int
    input_tokens_estimate: int


class DeltaEvent(Event, tag="delta", frozen=True, kw_only=True):
    """A piece of text. `count` is how many of the provider's chunks it joins."""

    type: ClassVar[Literal[EventType.DELTA]] = EventType.DELTA
    text: str
    channel: Channel = "answer"
    attempt: int = 1
    count: int = 1


class RollbackEvent(Event, tag="rollback", frozen=True, kw_only=True):
    """The deltas of `attempt` in this iteration are void; another attempt follows."""

    type: ClassVar[Literal[EventType.ROLLBACK]] = EventType.ROLLBACK
    attempt: int
    reason: RollbackReason


class ModelCompleteEvent(Event, tag="model_complete", frozen=True, kw_only=True):
    """The model's reply is whole. Its text stands in the deltas of this attempt."""

    type: ClassVar[Literal[EventType.MODEL_COMPLETE]] = EventType.MODEL_COMPLETE
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage
    duration_ms: float
    first_chunk_ms: float | None = None
    provider_data: dict[str, Any] | None = None


class ToolStartEvent(Event, tag="tool_start", frozen=True, kw_only=True):
    """The last event before a tool's body may begin; one per attempt."""

    type: ClassVar[Literal[EventType.TOOL_START]] = EventType.TOOL_START
    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    raw_arguments: str
    attempt: int = 1
    idempotency_key: str | None = None
    child_chain_id: str | None = None


class ToolDeltaEvent(Event, tag="tool_delta", frozen=True, kw_only=True):
    """A piece of a running tool's output; an object with numbers `done` and `total` is progress."""

    type: ClassVar[Literal[EventType.TOOL_DELTA]] = EventType.TOOL_DELTA
    call_id: str
    tool: str
    attempt: int = 1
    data: Any


class ToolCompleteEvent(Event, tag="tool_complete", frozen=True, kw_only=True):
    """A tool call gave its result: exactly the text the model gets, at most 64 KiB."""

    type: ClassVar[Literal[EventType.TOOL_COMPLETE]] = EventType.TOOL_COMPLETE
    call_id: str
    tool: str
    attempt: int = 1
    result: str
    duration_ms: float
    truncated: bool = False
    reused_from: str | None = None


class ToolErrorEvent(Event, tag="tool_error", frozen=True, kw_only=True):
    """An attempt of a tool call failed or was refused. `result` is what the model gets."""

    type: ClassVar[Literal[EventType.TOOL_ERROR]] = EventType.TOOL_ERROR
    call_id: str
    tool: str
    attempt: int = 1
    status: ToolStatus
    error: ErrorInfo
    result: str
    will_retry: bool = False
    duration_ms: float = 0.0


class QuestionEvent(Event, tag="question", frozen=True, kw_only=True):
    """The agent asks its user something."""

    type: ClassVar[Literal[EventType.QUESTION]] = EventType.QUESTION
    question_id: str
    text: str
    options: tuple[str, ...] = ()


class ApprovalEvent(Event, tag="approval", frozen=True, kw_only=True):
    """A tool call waits for a human's yes, which binds to `arguments_hash`."""

    type: ClassVar[Literal[EventType.APPROVAL]] = EventType.APPROVAL
    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    arguments_hash: str
    reason: str = ""
    expires_at: str | None = None


class ResolvedEvent(Event, tag="resolved", frozen=True, kw_only=True):
    """A question or approval was decided; `target` is the question id or call id."""

    type: ClassVar[Literal[EventType.RESOLVED]] = EventType.RESOLVED
    target: str
    decision: Decision
    text: str | None = None
    arguments: dict[str, Any] | None = None
    by: str | None = None


class SummaryEvent(Event, tag="summary", frozen=True, kw_only=True):
    """Earlier turns were compressed; `used` says whether the text is sent to the model."""

    type: ClassVar[Literal[EventType.SUMMARY]] = EventType.SUMMARY
    turns: tuple[int, int]
    text: str
    confidence: float
    used: bool
    tokens_before: int
    tokens_after: int


class WarningEvent(Event, tag="warning", frozen=True, kw_only=True):
    """Something a person should know that did not end the run."""

    type: ClassVar[Literal[EventType.WARNING]] = EventType.WARNING
    code: str
    message: str
    data: dict[str, Any] = {}


class GapEvent(Event, tag="gap", frozen=True, kw_only=True):
    """One reader missed events; only in that reader's view, never in a log."""

    type: ClassVar[Literal[EventType.GAP]] = EventType.GAP
    after_seq: int
    next_seq: int
    missed: int


class FinalEvent(Event, tag="final", frozen=True, kw_only=True):
    """The run ended with an answer."""

    type: ClassVar[Literal[EventType.FINAL]] = EventType.FINAL
    text: str
    finish_reason: FinishReason
    usage: Usage
    iterations: int
    tools: tuple[ToolRecord, ...] = ()
    duration_ms: float


class FailedEvent(Event, tag="failed", frozen=True, kw_only=True):
    """The run ended with an error."""

    type: ClassVar[Literal[EventType.FAILED]] = EventType.FAILED
    error: RunError
    usage: Usage
    duration_ms: float


class CancelledEvent(Event, tag="cancelled", frozen=True, kw_only=True):
    """The run was stopped."""

    type: ClassVar[Literal[EventType.CANCELLED]] = EventType.CANCELLED
    reason: CancelReason
    usage: Usage
    duration_ms: float


AgentEvent: TypeAlias = (
    InputEvent
    | StateEvent
    | ModelStartEvent
    | DeltaEvent
    | RollbackEvent
    | ModelCompleteEvent
    | ToolStartEvent
    | ToolDeltaEvent
    | ToolCompleteEvent
    | ToolErrorEvent
    | QuestionEvent
    | ApprovalEvent
    | ResolvedEvent
    | SummaryEvent
    | WarningEvent
    | GapEvent
    | FinalEvent
    | FailedEvent
    | CancelledEvent
)
TerminalEvent: TypeAlias = FinalEvent | FailedEvent | CancelledEvent

EVENT_CLASSES: tuple[type[AgentEvent], ...] = AgentEvent.__args__
TERMINAL_TYPES: frozenset[EventType] = frozenset({EventType.FINAL, EventType.FAILED, EventType.CANCELLED})

# Limits of the contract, in encoded bytes.
MAX_DELTA_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 512 * 1024
MAX_EVENT_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 64 * 1024

_MAX_DEPTH = 64
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AgentEvent] = msgspec.json.Decoder(AgentEvent)


def encode(event: AgentEvent) -> bytes:
    """The event as one line of JSON without a line end."""
    return _encoder.encode(event)


def decode(data: bytes | str) -> AgentEvent:
    """The event in `data`. Unknown fields are ignored; anything else unknown raises `msgspec.DecodeError`."""
    return _decoder.decode(data)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the union."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(AgentEvent)


def stamp(event: AgentEvent, seq: int, ts: str) -> None:
    """Number and time an event. For the run's writer only, before the event is appended."""
    msgspec.structs.force_setattr(event, "seq", seq)
    msgspec.structs.force_setattr(event, "ts", ts)


def plain(value: Any) -> Any:
    """`value` as JSON can carry it: text clean, keys strings, NaN and infinities null.

    What JSON cannot carry is replaced, leaf by leaf, by a marked placeholder `{"$unencodable": type name}`; so is
    everything deeper than 64 levels. Structs, dataclasses, pydantic models, dates, UUIDs, decimals and sets
    become what they are on the wire elsewhere. Never raises on a bad value.
    """
    return _plain(value, 0, ())


def _plain(value: Any, depth: int, path: tuple[int, ...]) -> Any:  # noqa: PLR0911  one return per kind of value
    if value is None or isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))  # the text of a `(str, Enum)` member, not its name
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= _MAX_DEPTH:
        return {"$unencodable": "nested deeper than 64 levels"}
    if id(value) in path:  # followed to the depth limit, two references to itself would cost 2**64 steps
        return {"$unencodable": f"{type(value).__qualname__} that contains itself"}
    try:
        return _plain_parts(value, depth, (*path, id(value)))
    except Exception:  # noqa: BLE001  a foreign object may raise anything; the placeholder says which it was
        return {"$unencodable": type(value).__qualname__}


def _plain_parts(value: Any, depth: int, path: tuple[int, ...]) -> Any:  # noqa: PLR0911  one return per kind of value
    if isinstance(value, Mapping):
        return {_plain_key(key): _plain(item, depth + 1, path) for key, item in value.items()}
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, depth + 1, path) for item in value]
    if isinstance(value, type):
        return {"$unencodable": f"the class {value.__qualname__}"}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _plain(fields, depth, path)
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value), depth, path)
    dump = getattr(value, "model_dump", None)  # a pydantic model, which this layer does not import
    if callable(dump):
        return _plain(dump(mode="json", warnings=False), depth + 1, path)
    return _plain(msgspec.to_builtins(value), depth + 1, path)


def _plain_key(key: Any) -> str:
    return clean_text(str.__str__(key) if isinstance(key, str) else str(key))
