"""What a strict OpenAI-compatible provider, and Ollama, refuse in the body of a chat request.

Pure rules over parsed JSON; no HTTP. Each rule is one that at least one real provider answers with 400.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentflow.messages import Message, ToolCall, unpaired

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def refusal(body: Any) -> str | None:
    """Why this request would be answered with 400, or None. The first fault found, not all of them."""
    if not isinstance(body, dict):
        return "the body must be a JSON object"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "'messages' must be a non-empty array"
    for fault in (*_request_faults(body), *_message_faults(messages)):
        return fault
    return _repeated_call_id(messages) or unpaired([_message(item) for item in messages])


def ollama_refusal(body: Any) -> str | None:
    """Why Ollama would refuse this request to `/api/chat`, or None. The first fault found, not all of them."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return "the body must be a JSON object with an array 'messages'"
    for fault in (*_request_faults(body), *_ollama_faults(body["messages"])):
        return fault
    return None


def _ollama_faults(messages: list[Any]) -> Iterator[str]:
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            yield f"messages[{position}]: 'content' must be a string"
        elif message.get("role") == "tool" and not message.get("tool_name"):
            yield f"messages[{position}]: a tool message needs 'tool_name'"
        elif not all(isinstance(_function(call).get("arguments"), dict) for call in message.get("tool_calls", ())):
            yield f"messages[{position}]: the 'arguments' of a call must be an object"
        elif not all(isinstance(image, str) and "://" not in image for image in message.get("images", ())):
            yield f"messages[{position}]: 'images' must be base64"


def _request_faults(body: dict[str, Any]) -> Iterator[str]:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "'model' must be a non-empty string"
    if "stream_options" in body and not body.get("stream"):
        yield "'stream_options' is only allowed when 'stream' is true"
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield "'tools' must be a non-empty array, or absent"
        return
    names = [_function(tool).get("name") for tool in tools]
    for position, (tool, name) in enumerate(zip(tools, names, strict=True)):
        if not _is_name(name):
            yield f"tools[{position}]: the name {name!r} does not match {_NAME.pattern}"
        elif names.index(name) != position:
            yield f"tools[{position}]: the name {name!r} is not unique"
        elif not isinstance(_function(tool).get("parameters", {}), dict):
            yield f"tools[{position}]: 'parameters' must be an object"


def _message_faults(messages: list[Any]) -> Iterator[str]:
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            yield f"messages[{position}] must be an object with a role out of {sorted(_ROLES)}"
            continue
        faults = (*_content_faults(message), *_call_faults(message))
        yield from (f"messages[{position}]: {fault}" for fault in faults)


def _content_faults(message: dict[str, Any]) -> Iterator[str]:
    if "content" not in message:
        yield "the key 'content' is missing"
    elif message["content"] is None:
        if not message.get("tool_calls"):
            yield "'content' may be null only beside tool calls"
    elif not isinstance(message["content"], str | list):
        yield "'content' must be a string or an array of parts"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "a tool message needs 'tool_call_id'"


def _call_faults(message: dict[str, Any]) -> Iterator[str]:
    if "tool_calls" not in message:
        return
    calls = message["tool_calls"]
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        yield "'tool_calls' must be a non-empty array of an assistant message, or absent"
        return
    for position, call in enumerate(calls):
        function = _function(call)
        if not isinstance(call, dict) or not isinstance(call.get("id"), str) or not call["id"]:
            yield f"tool_calls[{position}]: 'id' must be a non-empty string"
        elif not _is_name(function.get("name")):
            yield f"tool_calls[{position}]: the name {function.get('name')!r} does not match {_NAME.pattern}"
        elif not _is_json_text(function.get("arguments")):
            yield f"tool_calls[{position}]: 'arguments' must be a string that holds JSON"


def _repeated_call_id(messages: list[dict[str, Any]]) -> str | None:
    seen: set[str] = set()
    for position, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            if call["id"] in seen:
                return f"messages[{position}]: the call id {call['id']!r} was used before"
            seen.add(call["id"])
    return None


def _message(item: dict[str, Any]) -> Message:
    """The message as the law of pairing sees it."""
    calls = tuple(
        ToolCall(call_id=call["id"], name=call["function"]["name"], raw_arguments=call["function"]["arguments"])
        for call in item.get("tool_calls", ())
    )
    role: Any = "system" if item["role"] == "developer" else item["role"]
    return Message(role=role, tool_calls=calls, call_id=item.get("tool_call_id"))


def _function(value: Any) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    return function if isinstance(function, dict) else {}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_json_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        json.loads(value)
    except ValueError:
        return False
    return True
