"""What is logged of a run: a line for each event of interest, as its name, level and fields.

Words of users, models and tools are left out unless they are asked for: a kind or a code says what happened, and the
run's own log has the rest. How a line is written is in `logs`.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from msgspec.json import encode as encode_json

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    EventType,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    QuestionEvent,
    ResolvedEvent,
    RollbackEvent,
    SummaryEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    WarningEvent,
)

Fields: TypeAlias = dict[str, Any]
Line: TypeAlias = tuple[int, str, Fields]  # level, what happened, more about it

MAX_WORDS: Final = 2048  # characters of one text, and bytes of what is no text
_I: Final = logging.INFO
_W: Final = logging.WARNING


def line_of(event: AgentEvent, *, content: bool = False) -> Line | None:
    """The line for an event that a log has accepted; None for one that is of no interest."""
    describe = _DESCRIBE.get(event.type)
    if describe is None:
        return None
    level, what, fields, words = describe(event)
    said = {name: _beginning(value) for name, value in words.items()} if content else {}
    return level, what, _common(event) | fields | said


def _beginning(value: Any) -> str | None:
    """So much of it that a line can show; what waits to be written is held in memory."""
    if value is None or isinstance(value, str):
        return value[:MAX_WORDS] if value is not None else None
    return encode_json(value)[:MAX_WORDS].decode("utf-8", "replace")


def _common(event: AgentEvent) -> Fields:
    below = {"chain": event.chain_id} if event.chain_id != event.run_id else {}
    return {
        "run": event.run_id,
        **below,
        "session": event.session_id,
        "trace": event.trace_id,
        "agent": "/".join(event.path),
        "seq": event.seq,
    }


_Told: TypeAlias = tuple[int, str, Fields, Fields]  # the last are the words


def _input(event: InputEvent) -> _Told:
    what = "run began" if event.chain_id == event.run_id else "agent called"
    return _I, what, {"user": event.user_id, "model": event.model}, {"text": event.text}


def _rollback(event: RollbackEvent) -> _Told:
    return _W, "model asked again", {"attempt": event.attempt, "reason": event.reason}, {}


def _model(event: ModelCompleteEvent) -> _Told:
    fields = {"finish_reason": event.finish_reason, "calls": len(event.tool_calls), "ms": event.duration_ms}
    return _I, "model answered", fields | {"first_ms": event.first_chunk_ms} | _usage(event), {}


def _tool(event: ToolCompleteEvent) -> _Told:
    fields = {"tool": event.tool, "call": event.call_id, "attempt": event.attempt, "ms": event.duration_ms}
    return _I, "tool done", fields | {"reused": event.reused_from is not None}, {"result": event.result}


def _tool_error(event: ToolErrorEvent) -> _Told:
    fields = {"tool": event.tool, "call": event.call_id, "attempt": event.attempt, "ms": event.duration_ms}
    what = {"status": event.status, "kind": event.error.kind, "will_retry": event.will_retry}
    return _W, "tool failed", fields | what, {"error": event.error.message}


def _approval(event: ApprovalEvent) -> _Told:
    return _I, "approval wanted", {"tool": event.tool, "call": event.call_id}, {"arguments": event.arguments}


def _question(event: QuestionEvent) -> _Told:
    return _I, "question asked", {"question": event.question_id}, {"text": event.text}


def _resolved(event: ResolvedEvent) -> _Told:
    return _I, "decided", {"target": event.target, "decision": event.decision, "by": event.by}, {"text": event.text}


def _summary(event: SummaryEvent) -> _Told:
    return _I, "summarised", {"turns": list(event.turns), "used": event.used}, {"text": event.text}


def _warning(event: WarningEvent) -> _Told:
    return _W, "warning", {"code": event.code}, {"message": event.message}


def _final(event: FinalEvent) -> _Told:
    fields = {"finish_reason": event.finish_reason, "iterations": event.iterations, "tools": len(event.tools)}
    return _I, "run ended", fields | _end(event), {"text": event.text}


def _failed(event: FailedEvent) -> _Told:
    fields = {"kind": event.error.kind, "retryable": event.error.retryable}
    return logging.ERROR, "run failed", fields | _end(event), {"error": event.error.message}


def _cancelled(event: CancelledEvent) -> _Told:
    return _I, "run cancelled", {"reason": event.reason} | _end(event), {}


def _end(event: TerminalEvent) -> Fields:
    return {"ms": event.duration_ms} | _usage(event)


def _usage(event: ModelCompleteEvent | TerminalEvent) -> Fields:
    return {"input_tokens": event.usage.input_tokens, "output_tokens": event.usage.output_tokens}


_DESCRIBE: Final[Mapping[EventType, Callable[[Any], _Told]]] = {
    EventType.INPUT: _input,
    EventType.ROLLBACK: _rollback,
    EventType.MODEL_COMPLETE: _model,
    EventType.TOOL_COMPLETE: _tool,
    EventType.TOOL_ERROR: _tool_error,
    EventType.APPROVAL: _approval,
    EventType.QUESTION: _question,
    EventType.RESOLVED: _resolved,
    EventType.SUMMARY: _summary,
    EventType.WARNING: _warning,
    EventType.FINAL: _final,
    EventType.FAILED: _failed,
    EventType.CANCELLED: _cancelled,
}
