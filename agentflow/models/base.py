"""ChatModel: the one interface between a chain and a language model.

Contracts and the token estimate only; how bytes become chunks is in `parsing`, which client a model string
means is in `routing`.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from agentflow.messages import ImagePart, Message, ToolSpec, Usage


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. `messages` are paired (see `messages.unpaired`); None means the provider's default.

    `tool_choice` is "auto", "none", "required" or the name of the one tool to call. `response_format` is the JSON
    Schema of the answer's text. `extra_body` are fields of the provider's own; they are put into the body last and
    cannot replace "model", "messages" and "stream". What an endpoint does not know is left out.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra_body: dict[str, Any] | None = None


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as the provider sent it: `id` is None if it sent none; `arguments` is the exact text."""

    name: str
    arguments: str
    id: str | None = None


class ModelChunk(msgspec.Struct, kw_only=True):
    """A piece of a reply, in the order it came.

    `text` and `reasoning` are increments, and a chunk carries at most one of the two; `count` is how many of
    the provider's chunks they join. `calls` are whole calls: a client gives a call once its arguments are
    complete, at the latest when the reply ends. `finish_reason`, `usage` and `provider_data` may come with any
    chunk; the last that is not None counts. Usage that never comes is estimated by the chain.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[CallRequest, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    provider_data: dict[str, Any] | None = None
    count: int = 1


@runtime_checkable
class ChatModel(Protocol):
    """A language model.

    `stream` is an async generator. It ends normally only if the reply is whole; otherwise it raises a
    `ModelError`. The chain closes it (`aclose()`) when it leaves early, also on cancel: the connection must be
    gone when that returns. It is called concurrently. Optional attributes: `provider` and `name` (for events),
    `context_tokens` (how many it can read, 0 if that is not known), `async aclose()` (closes what was opened in the
    running loop, after which the model may be used again; called by the agent that made the model, and by `chat_sync`
    before its loop ends).
    """

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Start one call. Nothing is sent before the first item is asked for."""
        ...


StreamFunction: TypeAlias = Callable[[ModelRequest], AsyncGenerator[ModelChunk, None]]


class FunctionModel:
    """A bare async generator function as a model."""

    provider = "function"

    def __init__(self, function: StreamFunction) -> None:
        self.stream = function
        self.name = getattr(function, "__name__", "function")
        self.context_tokens = getattr(function, "context_tokens", 0)


Tokenizer: TypeAlias = Callable[[str], int]  # how many tokens a text is

_LATIN_CHARACTERS_PER_TOKEN = 4.0
_CJK_CHARACTERS_PER_TOKEN = 1.5
_FIRST_CJK = "\u2e80"  # radicals, kana, ideographs, Hangul and full-width forms all stand above
_TOKENS_PER_FRAME = 4
_TOKENS_PER_IMAGE = 800  # a picture of about a megapixel; providers count from 85 to some thousands


def estimate_tokens(text: str) -> int:
    """About how many tokens `text` is: 4 Latin or 1.5 CJK characters a token, rounded up; 0 for no text.

    A rule of thumb: right within some 20 % for prose, about a third too low for JSON and code. `models.tokens` counts
    exactly; the estimates below take any `Tokenizer`.
    """
    if not text:
        return 0
    cjk = 0 if text.isascii() else sum(character >= _FIRST_CJK for character in text)
    return max(1, round((len(text) - cjk) / _LATIN_CHARACTERS_PER_TOKEN + cjk / _CJK_CHARACTERS_PER_TOKEN + 0.499))


def estimate_message_tokens(message: Message, count: Tokenizer = estimate_tokens) -> int:
    """The estimate for one message: its text, its pictures, its calls, and 4 tokens for the frame around it."""
    calls = sum(count(call.name) + count(call.raw_arguments) for call in message.tool_calls)
    images = 0 if isinstance(message.content, str) else sum(isinstance(part, ImagePart) for part in message.content)
    return _TOKENS_PER_FRAME + count(message.text) + images * _TOKENS_PER_IMAGE + calls


def estimate_tool_tokens(tools: Iterable[ToolSpec], count: Tokenizer = estimate_tokens) -> int:
    """The estimate for what a request says about its tools."""
    return sum(
        count(tool.name) + count(tool.description) + count(msgspec.json.encode(tool.parameters).decode())
        for tool in tools
    )


def estimate_request_tokens(request: ModelRequest, count: Tokenizer = estimate_tokens) -> int:
    """The estimate for a whole request: its messages and what is said about its tools."""
    messages = sum(estimate_message_tokens(message, count) for message in request.messages)
    return estimate_tool_tokens(request.tools, count) + messages
