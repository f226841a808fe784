"""What is said to a model and what a model says: messages, tool calls, usage.

Plain data only; the wire form of each provider is the business of its model client.
"""

from typing import Any, Literal, TypeAlias

import msgspec


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text among the parts of a message."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """A picture: either the `url` of one, or its `data` with their `media_type` such as "image/png"."""

    url: str = ""
    data: bytes = b""
    media_type: str = ""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.data) or bool(self.data) != bool(self.media_type):
            raise ValueError("an image part has either a url, or data and their media_type")


Part: TypeAlias = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call as the model asked for it.

    `call_id` is unique in the session and is what goes back to the provider with the result; `provider_id` is
    what the provider sent (None if it sent none or ""). `raw_arguments` is the exact text, parsed when used.
    """

    call_id: str
    name: str
    raw_arguments: str
    provider_id: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation.

    `content` may be parts with role user. `tool_calls` only with role assistant, `call_id` only with role tool.
    `provider_data` is opaque: what the provider wants to see again, verbatim. `reasoning` is never part of `content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    reasoning: str = ""
    provider_data: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """What the message says in words: its content, or its text parts joined."""
        return self.content if isinstance(self.content, str) else text_of(self.content)


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told about one tool. `parameters` is JSON Schema; `examples` are argument objects."""

    name: str
    description: str
    parameters: dict[str, Any]
    examples: tuple[dict[str, Any], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens. `estimated` is true if any part was counted here and not by the provider."""

    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            estimated=self.estimated or other.estimated,
        )


def text_of(parts: tuple[Part, ...]) -> str:
    """The text parts, joined; pictures say nothing."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def unpaired(messages: "tuple[Message, ...] | list[Message]") -> str | None:
    """Why a strict provider would refuse this history, or None.

    The law: every tool call of an assistant message is answered by exactly one tool message, all of them
    directly after it and before the next other message; no tool message stands anywhere else.
    """
    open_calls: list[str] = []
    for position, message in enumerate(messages):
        if message.role == "tool":
            if message.call_id not in open_calls:
                return f"message {position}: a tool result for {message.call_id!r}, which is not an open call"
            open_calls.remove(message.call_id)
            continue
        if open_calls:
            return f"message {position}: calls without a result: {open_calls!r}"
        open_calls = [call.call_id for call in message.tool_calls]
        if len(set(open_calls)) != len(open_calls):
            return f"message {position}: the same call id twice: {open_calls!r}"
    return f"the end: calls without a result: {open_calls!r}" if open_calls else None


def clean_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be UTF-8.

    Text without surrogates is returned as the same object.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
