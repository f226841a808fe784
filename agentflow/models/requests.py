"""Requests on the wire: the one place where a `ModelRequest` and an endpoint's profile become a body.

Pure: it sends nothing. There are two forms, that of `/chat/completions` and Ollama's own of `/api/chat`.
"""

import base64
import hashlib
import json
import re
import string
from collections.abc import Mapping
from typing import Any

from agentflow.errors import ConfigError, ModelError
from agentflow.messages import ImagePart, Message, Part, ToolCall, ToolSpec, clean_text, unpaired
from agentflow.models.base import ModelRequest
from agentflow.models.calls import is_object
from agentflow.models.strict import strict_schema
from agentflow.settings import Profile

JsonObject = dict[str, Any]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_OWN_FIELDS = ("model", "messages", "stream")  # no extra field replaces them
_CHOICES = ("auto", "none", "required")
_CALL_IDS = {"short": (re.compile(r"[A-Za-z0-9_-]{1,40}"), 24), "nine": (re.compile(r"[A-Za-z0-9]{9}"), 9)}
_ALPHABET = string.ascii_letters + string.digits
_SENDER = "provider"  # in provider_data: who sent it; never on the wire
_TELL_SCHEMA = "Answer with nothing but a JSON object that fits this JSON Schema: "


def signed(data: JsonObject | None, provider: str) -> JsonObject:
    """`data` as the `provider_data` of a reply of `provider`: only a request to the same one shows it again."""
    return (data or {}) | {_SENDER: provider}


def strict_tools(request: ModelRequest, profile: Profile) -> dict[str, JsonObject]:
    """The strict forms of the parameters of those tools that have one, by name; none if the profile wants none."""
    if not profile.strict_tools:
        return {}
    forms = ((tool.name, strict_schema(tool.parameters)) for tool in request.tools)
    return {name: form for name, form in forms if form is not None}


def chat_body(
    request: ModelRequest,
    profile: Profile,
    *,
    model: str,
    provider: str,
    stream: bool,
    strict: Mapping[str, JsonObject],
) -> JsonObject:
    """The body for `/chat/completions`. `strict` is what `strict_tools` gave; `provider` is who will read it.

    Raises `ModelError` for an unpaired history, `ConfigError` for what no request can ask.
    """
    _check(request)
    body: JsonObject = {"model": model, "messages": _chat_messages(request, profile, provider)}
    if request.tools:
        body |= _chat_tools(request, profile, strict)
    if stream:
        body["stream"] = True
        if profile.stream_options:
            body["stream_options"] = {"include_usage": True}
    if request.temperature is not None and profile.temperature:
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body[profile.max_tokens_field] = request.max_tokens
    if request.seed is not None:
        body[profile.seed_field] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if request.response_format is not None and profile.structured_output != "none":
        body["response_format"] = _response_format(request.response_format, profile)
    return body | (request.extra_body or {})


def ollama_body(request: ModelRequest, profile: Profile, *, model: str, provider: str, stream: bool) -> JsonObject:
    """The body for Ollama's `/api/chat`; raises as `chat_body` does, and `ModelError` for a picture that is a url.

    Ollama has no choice of tools: of "none" no tool is told, of a name that tool alone, and "required" asks in vain.
    """
    _check(request)
    body: JsonObject = {"model": model, "messages": _ollama_messages(request, profile, provider), "stream": stream}
    tools = [tool for tool in request.tools if request.tool_choice in (None, "auto", "required", tool.name)]
    if tools:
        body["tools"] = [_tool(tool, None) for tool in tools]
    options = {
        "temperature": request.temperature if profile.temperature else None,
        "num_predict": request.max_tokens,
        "seed": request.seed,
        "stop": list(request.stop) or None,
    }
    body["options"] = {name: value for name, value in options.items() if value is not None}
    if request.response_format is not None:
        body["format"] = request.response_format
    extra = request.extra_body or {}
    more = extra.get("options")  # such as num_ctx, beside those above
    return body | extra | {"options": body["options"] | (more if isinstance(more, dict) else {})}


def _check(request: ModelRequest) -> None:
    fault = unpaired(request.messages)
    if fault is not None:
        raise ModelError(f"the history is not paired and was not sent: {fault}")
    taken = [name for name in _OWN_FIELDS if name in (request.extra_body or {})]
    if taken:
        raise ConfigError(f"extra_body has {taken[0]!r}, which the request itself says: leave it out")
    names = [tool.name for tool in request.tools]
    if request.tool_choice is not None and request.tool_choice not in (*_CHOICES, *names):
        raise ConfigError(
            f"tool_choice {request.tool_choice!r} is none of {', '.join(_CHOICES)} and no tool: the tools are {names!r}"
        )


# -- /chat/completions -----------------------------------------------------------------------------------


def _chat_tools(request: ModelRequest, profile: Profile, strict: Mapping[str, JsonObject]) -> JsonObject:
    fields: JsonObject = {"tools": [_tool(tool, strict.get(tool.name)) for tool in request.tools]}
    if request.tool_choice is not None:
        fields["tool_choice"] = _choice(request.tool_choice)
    if request.parallel_tool_calls is not None and profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _chat_messages(request: ModelRequest, profile: Profile, provider: str) -> list[JsonObject]:
    last_user = max((at for at, message in enumerate(request.messages) if message.role == "user"), default=-1)
    messages = [
        _chat_message(message, profile, provider, in_loop=position > last_user)
        for position, message in enumerate(request.messages)
    ]
    if request.response_format is None or profile.structured_output == "json_schema":
        return messages
    told = _TELL_SCHEMA + json.dumps(request.response_format, ensure_ascii=False)
    if messages and messages[0]["role"] in ("system", "developer"):
        messages[0]["content"] = f"{messages[0]['content']}\n\n{told}".lstrip()
        return messages
    return [{"role": "system", "content": told}, *messages]


def _chat_message(message: Message, profile: Profile, provider: str, *, in_loop: bool) -> JsonObject:
    wire: JsonObject = {"role": message.role, "content": clean_text(message.text)}
    if message.role == "developer" and not profile.developer_role:
        wire["role"] = "system"
    elif message.role == "user" and not isinstance(message.content, str):
        wire["content"] = [_part(part) for part in message.content]
    elif message.role == "tool":
        wire["tool_call_id"] = _call_id(message.call_id or "", profile)
    elif message.role == "assistant":
        wire |= _reasoning(message, profile, provider, in_loop=in_loop)
        if message.tool_calls:
            wire["tool_calls"] = [_chat_call(call, profile) for call in message.tool_calls]
            if profile.empty_content == "null":
                wire["content"] = wire["content"] or None  # null is right here, and only here
    return wire


def _is_from(message: Message, provider: str) -> bool:
    return (message.provider_data or {}).get(_SENDER) == provider


def _reasoning(message: Message, profile: Profile, provider: str, *, in_loop: bool) -> JsonObject:
    """What of the reasoning goes back: whoever sent it wants it again, and it is nobody else's to see."""
    data = (message.provider_data or {}) if _is_from(message, provider) else {}
    wire: JsonObject = {}
    if profile.reasoning_details and data.get("reasoning_details"):
        wire["reasoning_details"] = data["reasoning_details"]
    if not message.tool_calls or profile.reasoning_content == "never":
        return wire
    given = data.get("reasoning_content")
    if profile.reasoning_content == "always":
        wire["reasoning_content"] = given or ""
    elif given and (in_loop or profile.reasoning_content == "given"):
        wire["reasoning_content"] = given
    return wire


def _part(part: Part) -> JsonObject:
    if not isinstance(part, ImagePart):
        return {"type": "text", "text": clean_text(part.text)}
    return {"type": "image_url", "image_url": {"url": part.url or f"data:{part.media_type};base64,{_base64(part)}"}}


def _chat_call(call: ToolCall, profile: Profile) -> JsonObject:
    arguments = clean_text(call.raw_arguments)
    # Blank, null or cut arguments were answered with an error; many servers refuse to be shown them again.
    function = {"name": _legal_name(call.name), "arguments": arguments if is_object(arguments) else "{}"}
    return {"id": _call_id(call.call_id, profile), "type": "function", "function": function}


def _call_id(call_id: str, profile: Profile) -> str:
    """The id as this endpoint accepts it; the same text always gives the same, so that call and result still meet."""
    if profile.call_ids == "any":
        return call_id
    legal, length = _CALL_IDS[profile.call_ids]
    if legal.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:length])


def _tool(tool: ToolSpec, strict: JsonObject | None) -> JsonObject:
    function: JsonObject = {"name": _legal_name(tool.name), "description": tool.description}
    function["parameters"] = tool.parameters if strict is None else strict
    if strict is not None:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: str) -> str | JsonObject:
    return choice if choice in _CHOICES else {"type": "function", "function": {"name": _legal_name(choice)}}


def _response_format(schema: JsonObject, profile: Profile) -> JsonObject:
    if profile.structured_output == "json_object":
        return {"type": "json_object"}
    name = _legal_name(str(schema.get("title") or "answer"))
    # The text of an answer goes to its reader as it comes, so that nobody could drop a null from it again.
    strict = strict_schema(schema, absent_as_null=False) if profile.strict_tools else None
    described = {"name": name, "schema": schema} if strict is None else {"name": name, "schema": strict, "strict": True}
    return {"type": "json_schema", "json_schema": described}


# -- Ollama's own ----------------------------------------------------------------------------------------


def _ollama_messages(request: ModelRequest, profile: Profile, provider: str) -> list[JsonObject]:
    names = {call.call_id: call.name for message in request.messages for call in message.tool_calls}
    return [_ollama_message(message, profile, provider, names) for message in request.messages]


def _ollama_message(message: Message, profile: Profile, provider: str, names: Mapping[str, str]) -> JsonObject:
    role = "system" if message.role == "developer" and not profile.developer_role else message.role
    wire: JsonObject = {"role": role, "content": clean_text(message.text)}
    if message.role == "tool":
        wire["tool_name"] = _legal_name(message.name or names.get(message.call_id or "", ""))
    elif message.role == "user" and not isinstance(message.content, str):
        images = [_ollama_image(part) for part in message.content if isinstance(part, ImagePart)]
        wire |= {"images": images} if images else {}
    if message.tool_calls:
        wire["tool_calls"] = [_ollama_call(call) for call in message.tool_calls]
        if message.reasoning and profile.reasoning_content != "never" and _is_from(message, provider):
            wire["thinking"] = clean_text(message.reasoning)
    return wire


def _ollama_call(call: ToolCall) -> JsonObject:
    arguments = clean_text(call.raw_arguments)
    return {
        "function": {
            "name": _legal_name(call.name),
            "arguments": json.loads(arguments) if is_object(arguments) else {},
        }
    }


def _ollama_image(part: ImagePart) -> str:
    if part.url:
        raise ModelError(f"Ollama takes no picture by its url, and {part.url[:80]!r} is one: give its data")
    return _base64(part)


def _base64(part: ImagePart) -> str:
    return base64.b64encode(part.data).decode("ascii")


def _legal_name(name: str) -> str:
    """`name` as providers with rules for names accept it; models do ask for tools that cannot exist."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "_"
