"""What events say, as the attributes of spans. Pure.

Which spans there are, and when they begin and end, is in `tracing`. Words of users, models and tools are in nothing
here but in what is named content.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from agentflow.chain.tracing import SummaryCall
from agentflow.events import (
    CancelledEvent,
    FailedEvent,
    FinalEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
)
from agentflow.messages import Usage
from agentflow.models.base import ChatModel, ModelRequest
from agentflow.observability import semconv
from agentflow.tools.registry import Tool

Attributes: TypeAlias = dict[str, str | bool | int | float | tuple[str, ...]]

MAX_CONTENT: Final = 1024  # bytes of UTF-8 of one text that a span shows
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_MAX_NAME: Final = 100  # characters
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RESULT_TYPES: Final[Mapping[type, str]] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


@lru_cache(maxsize=128)  # the events of one append have the same
def nanoseconds(ts: str) -> int:
    """The time of an event, since 1970."""
    return (datetime.fromisoformat(ts) - _EPOCH) // timedelta(microseconds=1) * 1000


def of_agent(name: str, session_id: str, run_id: str, chain_id: str) -> Attributes:
    """What is known of an agent's span at its start."""
    return {
        semconv.OPERATION: semconv.INVOKE_AGENT,
        semconv.AGENT: name,
        semconv.CONVERSATION: session_id,
        semconv.RUN: run_id,
        semconv.CHAIN: chain_id,
    }


def of_chat(event: ModelStartEvent, models: Sequence[ChatModel] = ()) -> Attributes:
    """What is known of a model call's span at its start; `models` are those that may be called."""
    return _address(event, models) | {
        semconv.OPERATION: semconv.CHAT,
        semconv.PROVIDER: semconv.provider_name(event.provider),
        semconv.REQUEST_MODEL: event.model,
        semconv.REQUEST_STREAM: True,
        semconv.AGENT: event.path[-1],
        semconv.CONVERSATION: event.session_id,
        semconv.ITERATION: event.iteration,
    }


def _address(event: ModelStartEvent, models: Sequence[ChatModel]) -> Attributes:
    """Where the model is, if that is known."""
    for model in models:
        if (getattr(model, "provider", None), getattr(model, "name", None)) == (event.provider, event.model):
            url = urlsplit(str(getattr(getattr(model, "endpoint", None), "base_url", "")))
            port = url.port or _PORTS.get(url.scheme)
            if url.hostname and port:
                return {semconv.SERVER: url.hostname, semconv.SERVER_PORT: port}
    return {}


def of_summary_call(call: SummaryCall) -> Attributes:
    """What is known of the span of a model call for a summary at its start."""
    return of_request(call.request) | {
        semconv.OPERATION: semconv.CHAT,
        semconv.PROVIDER: semconv.provider_name(call.provider),
        semconv.REQUEST_MODEL: call.model,
        semconv.REQUEST_STREAM: True,
        semconv.AGENT: call.agent,
        semconv.CONVERSATION: call.session_id,
    }


def of_summary(call: SummaryCall) -> Attributes:
    """What is known of one at its end."""
    return of_usage(call.usage) | _said_of(call.finish_reason, call.first_chunk)


def of_request(request: ModelRequest) -> Attributes:
    """What a model is asked with, as far as it is said."""
    said = {
        semconv.REQUEST_TEMPERATURE: request.temperature,
        semconv.REQUEST_MAX_TOKENS: request.max_tokens,
        semconv.REQUEST_SEED: request.seed,
        semconv.REQUEST_STOP: request.stop or None,
        semconv.OUTPUT_TYPE: "text" if request.response_format is None else "json",
    }
    return {name: value for name, value in said.items() if value is not None}


def of_reply(event: ModelCompleteEvent) -> Attributes:
    """What is known of a model call at its end."""
    first = None if event.first_chunk_ms is None else event.first_chunk_ms / 1000
    return of_usage(event.usage) | _said_of(event.finish_reason, first)


def _said_of(finish_reason: str | None, first_chunk: float | None) -> Attributes:
    attributes: Attributes = {}
    if finish_reason is not None:
        attributes[semconv.FINISH_REASONS] = (finish_reason,)
    if first_chunk is not None:
        attributes[semconv.FIRST_CHUNK] = first_chunk
    return attributes


def of_usage(usage: Usage) -> Attributes:
    """Tokens."""
    attributes: Attributes = {
        semconv.USAGE_INPUT: usage.input_tokens,
        semconv.USAGE_OUTPUT: usage.output_tokens,
    }
    return attributes | {semconv.USAGE_ESTIMATED: True} if usage.estimated else attributes


def tool_name(event: ToolStartEvent) -> str:
    """The name of the tool that is called: what a model has made up may be of any length."""
    return event.tool[:_MAX_NAME]


def of_tool(event: ToolStartEvent, tool: Tool | None = None) -> Attributes:
    """What is known of a tool call's span at its start; `tool` is None for one that does not exist."""
    attributes: Attributes = {
        semconv.OPERATION: semconv.EXECUTE_TOOL,
        semconv.TOOL: tool_name(event),
        semconv.TOOL_CALL: event.call_id,
        semconv.TOOL_TYPE: "function",
        semconv.AGENT: event.path[-1],
    }
    if tool is not None and tool.description:
        attributes[semconv.TOOL_DESCRIPTION] = tool.description[:MAX_CONTENT]
    if event.arguments is not None:
        attributes[semconv.TOOL_DIGEST] = hashlib.sha256(_sorted(event.arguments)).hexdigest()[:16]
    return attributes


def of_result(event: ToolCompleteEvent | ToolErrorEvent) -> Attributes:
    """What is known of a tool call at its end."""
    attributes: Attributes = {semconv.TOOL_SECONDS: event.duration_ms / 1000, semconv.ATTEMPT: event.attempt}
    if isinstance(event, ToolCompleteEvent):
        attributes[semconv.TOOL_RESULT_TYPE] = _result_type(event)
        if event.reused_from is not None:
            attributes[semconv.TOOL_REUSED] = event.reused_from
    return attributes


def error_of(event: ToolCompleteEvent | ToolErrorEvent) -> str | None:
    """The `error.type` of a call that has failed; one that was cancelled with its run has not."""
    if isinstance(event, ToolCompleteEvent) or event.status == "cancelled":
        return None
    return event.error.kind if event.status == "error" else event.status


def of_end(event: TerminalEvent) -> tuple[Attributes, str | None]:
    """How a run has ended, and the `error.type` of one that has failed."""
    attributes = of_usage(event.usage)
    match event:
        case FinalEvent():
            reasons = {semconv.FINISH_REASONS: (event.finish_reason,)}
            return attributes | reasons | {semconv.OUTCOME: "completed"}, None
        case FailedEvent():
            return attributes | {semconv.OUTCOME: "failed"}, event.error.kind
        case CancelledEvent():
            cancelled = {semconv.OUTCOME: "cancelled", semconv.CANCEL_REASON: event.reason}
            return attributes | cancelled, "timeout" if event.reason == "timeout" else None


def _result_type(event: ToolCompleteEvent) -> str:
    """Of what type the result is as JSON; text that is no JSON is a string."""
    _, _, text = event.result.partition("\n")
    try:
        return _RESULT_TYPES[type(msgspec.json.decode(text))]
    except (msgspec.DecodeError, RecursionError):
        return "string"


# -- content ---------------------------------------------------------------------------------------------


def text_message(role: str, text: str) -> str:
    """One message, as the conventions write it."""
    return _messages(role, {"type": "text", "content": cut(text)})


def reply_message(text: str, event: ModelCompleteEvent) -> str:
    """What a model has said, and the calls it has made."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": cut(text)}] if text else []
    calls = [
        {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": cut(call.raw_arguments)}
        for call in event.tool_calls
    ]
    return _messages("assistant", *parts, *calls)


def arguments_of(event: ToolStartEvent) -> str:
    """The arguments of a call."""
    return cut(event.raw_arguments if event.arguments is None else _sorted(event.arguments).decode())


def _sorted(arguments: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(arguments, order="deterministic")


def cut(text: str) -> str:
    """As much of a text as a span shows."""
    return text[:MAX_CONTENT].encode()[:MAX_CONTENT].decode(errors="ignore")


def _messages(role: str, *parts: dict[str, Any]) -> str:
    return msgspec.json.encode([{"role": role, "parts": parts}]).decode()
