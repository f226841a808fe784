"""The pure parser of `/chat/completions` replies: bytes in, `ModelChunk`s out.

It does no I/O, knows no clock, runs nothing and repairs nothing: arguments leave exactly as they came. The shapes
it accepts are those that real providers send (null, "" or absent anywhere; parts instead of text).
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from agentflow.errors import ModelError, ModelProtocolError, ModelTruncatedError
from agentflow.messages import Usage, clean_text
from agentflow.models.base import ModelChunk
from agentflow.models.calls import CallAssembly, CallPart, FunctionPart
from agentflow.models.failures import error_from_object, quoted
from agentflow.models.finish import later_reason
from agentflow.models.framing import MAX_EVENT_BYTES, ErrorPayload, EventSplitter
from agentflow.models.texts import MAX_TEXT, Texts, decoded_leniently

MAX_DEPTH = 64  # levels of opaque data, which others have to encode again

_SANE = 2**53  # no count of tokens is larger, and not every reader could read it


# Fields that some provider sends in another type than the rest are `Any` and looked at where they are used.
class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[CallPart] | None = None
    function_call: FunctionPart | None = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    error: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decode: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode


class _Reply:
    """Assembles one reply from its decoded chunks. Only choice 0 counts."""

    def __init__(self, provider: str, secret: str) -> None:
        self.finish_reason: str | None = None
        self._provider = provider
        self._secret = secret
        self._texts = Texts()
        self._calls = CallAssembly()
        self._usage: Usage | None = None
        self._details: list[Any] = []
        self._thoughts: list[str] = []  # what came as reasoning_content

    def copy(self) -> "_Reply":
        twin = object.__new__(_Reply)
        twin.__dict__.update(self.__dict__)
        twin._texts = self._texts.copy()
        twin._calls = self._calls.copy()
        twin._details = self._details.copy()
        twin._thoughts = self._thoughts.copy()
        return twin

    def read(self, payload: bytes) -> bool:
        """Add the JSON of one event or body; whether it has choices.

        Raises `ModelError` if it is not a chunk, says an error, or passes a limit.
        """
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            chunk = self._read_leniently(payload)
        if chunk.error is not None or chunk.usage is not None or chunk.x_groq is not None:
            self._look_around(chunk)
        if chunk.choices is None:
            self._look_for_bare_error(payload)
            return False
        for choice in chunk.choices:
            if not choice.index:  # some servers leave it out
                self._add_choice(choice, payload)
        return bool(chunk.choices)

    def take(self, *, last: bool = False) -> list[ModelChunk]:
        """The chunks that are ready. A trailing half of a surrogate pair is held back until `last`."""
        return self._texts.take(last=last)

    def end(self) -> ModelChunk:
        """What is known only at the end: calls, finish reason, usage, opaque data."""
        if self.finish_reason == "error":  # and no error object came, which would have said more
            raise self._said("the reply ended with the finish reason 'error'")
        calls = self._calls.requests()
        data: dict[str, Any] = {"reasoning_details": self._details} if self._details else {}
        if calls and self._thoughts:  # who reasons under this name wants to see it again beside the calls, only there
            data["reasoning_content"] = clean_text("".join(self._thoughts))
        return ModelChunk(
            calls=calls, finish_reason=self.finish_reason, usage=self._usage, provider_data=data or None, count=0
        )

    def _add_choice(self, choice: _Choice, payload: bytes) -> None:
        delta = choice.delta
        if delta is not None:
            content = delta.content
            if type(content) is str and content and delta.reasoning is None and delta.reasoning_content is None:
                # The usual delta, `Texts.add` written out: this runs once per token.
                texts = self._texts
                if texts.channel != "text":
                    texts.switch("text")
                texts.run.append(content)
                texts.count += 1
                texts.length += len(content)
                if texts.length > MAX_TEXT:
                    texts.grow(0)  # it is over the bound, and says so
            else:
                self._add_texts(delta)
            if delta.tool_calls is not None:
                for part in delta.tool_calls:
                    self._calls.add(part)
            self._add_rest(delta, payload)
        elif choice.message is not None:
            self._add_message(choice.message, payload)
        if choice.error:
            raise self._said(choice.error)
        if choice.finish_reason:
            self.finish_reason = later_reason(self.finish_reason, choice.finish_reason)

    def _add_message(self, message: _Delta, payload: bytes) -> None:
        self._add_texts(message)
        for part in message.tool_calls or ():
            self._calls.add_whole(part)
        self._add_rest(message, payload)

    def _add_texts(self, delta: _Delta) -> None:
        text, thinking = _texts(delta.content)
        reasoning = delta.reasoning_content or delta.reasoning or thinking
        if reasoning and isinstance(reasoning, str):
            self._texts.add("reasoning", reasoning)
            if reasoning is delta.reasoning_content:
                self._thoughts.append(reasoning)
        if text:
            self._texts.add("text", text)

    def _add_rest(self, delta: _Delta, payload: bytes) -> None:
        """Take what few deltas carry."""
        if delta.refusal and isinstance(delta.refusal, str):
            self._texts.add("refusal", delta.refusal)
        if delta.function_call is not None:
            self._calls.add_legacy(delta.function_call)
        if delta.reasoning_details and isinstance(delta.reasoning_details, list):
            self._add_details(delta.reasoning_details, len(payload))

    def _add_details(self, details: list[Any], size: int) -> None:
        if _deeper_than(MAX_DEPTH, details):
            raise ModelProtocolError(f"reasoning details are nested deeper than {MAX_DEPTH} levels")
        self._texts.grow(size)
        self._details += (
            json.loads(clean_text(json.dumps(details, ensure_ascii=False))) if self._texts.halves else details
        )

    def _said(self, error: Any) -> ModelError:
        return error_from_object(error, provider=self._provider, secret=self._secret)

    def _look_around(self, chunk: _Chunk) -> None:
        """Read what stands beside the choices. An error wins over all else the chunk says."""
        beside = chunk.x_groq if isinstance(chunk.x_groq, dict) else {}
        error = chunk.error or beside.get("error")
        if error:
            raise self._said(error)
        self._usage = _usage(chunk.usage) or _usage(beside.get("usage")) or self._usage

    def _look_for_bare_error(self, payload: bytes) -> None:
        """Raise if the object is itself an error: named so by its event, or with words but without choices."""
        content = _loads(payload.decode("utf-8", "replace"))
        if isinstance(payload, ErrorPayload) or (isinstance(content, dict) and _says_something(content)):
            raise self._said(content)

    def _read_leniently(self, payload: bytes) -> _Chunk:
        """Read what msgspec refuses and some servers send: NaN, and halves of surrogate pairs."""
        try:
            chunk = decoded_leniently(payload, _Chunk)
        except (ValueError, RecursionError) as error:
            if isinstance(payload, ErrorPayload):
                words = payload.decode("utf-8", "replace")
                raise self._said(words) from error
            words = quoted(payload, self._secret)
            raise ModelProtocolError(
                f"{self._provider!r} sent what is not a chat completion chunk: {words} ({error})",
                provider=self._provider,
            ) from error
        self._texts.halves = True
        return chunk


class ChatStreamParser:
    """A streamed reply. Feed it bytes in any pieces; then `finish`.

    Fragments that lie next to each other in one `feed` come out as one chunk. After `ended` nothing more is read:
    the end mark came, or something that makes the rest worthless, which `finish` raises.
    """

    def __init__(self, provider: str = "provider", *, secret: str = "") -> None:
        self._provider = provider
        self._events = EventSplitter()
        self._reply = _Reply(provider, secret)
        self._done = False
        self._error: ModelError | None = None

    def copy(self) -> "ChatStreamParser":
        """An independent parser at the same point of the same stream."""
        twin = object.__new__(ChatStreamParser)
        twin.__dict__.update(self.__dict__)
        twin._events = self._events.copy()
        twin._reply = self._reply.copy()
        return twin

    @property
    def ended(self) -> bool:
        """Whether the rest of the body does not matter."""
        return self._done or self._error is not None

    @property
    def complete(self) -> bool:
        """Whether a finish reason or the end mark was seen, and no error."""
        return self._error is None and (self._done or self._reply.finish_reason is not None)

    def feed(self, data: bytes) -> list[ModelChunk]:
        """The text and reasoning that `data` adds. Never raises: see `finish`."""
        for payload in self._events.feed(data):
            if self._done or self._error is not None:
                break
            self._read(payload)
        if self._events.overflow and not self.ended:
            self._error = ModelProtocolError(
                f"{self._provider!r} sent an event of more than {MAX_EVENT_BYTES} bytes", provider=self._provider
            )
        return self._reply.take()

    def finish(self) -> list[ModelChunk]:
        """The end of the body has come: what was held back, and one chunk with calls, finish reason and usage.

        Raises `ModelTruncatedError` if neither a finish reason nor the end mark was seen, and the `ModelError`
        that ended the reply: text given out before stays given out.
        """
        rest = self._events.rest()
        if rest is not None and not self.ended:
            self._read_rest(rest)
        if self._error is not None:
            self._error.provider = self._provider
            raise self._error
        if not self.complete:
            raise ModelTruncatedError(
                f"{self._provider!r} ended the reply without a finish reason: it is not whole", provider=self._provider
            )
        return [*self._reply.take(last=True), self._reply.end()]

    def _read(self, payload: bytes) -> None:
        try:
            if payload[:1] == b"{":
                self._reply.read(payload)
            elif payload.strip() == b"[DONE]":
                self._done = True
            elif payload.strip():  # an event without a word keeps the connection alive, no more
                self._reply.read(payload)
        except RecursionError:
            self._error = ModelProtocolError(f"{self._provider!r} sent a chunk that is nested too deeply")
        except ModelError as error:
            self._error = error

    def _read_rest(self, payload: bytes) -> None:
        """Read an event without its blank line: it counts if it is whole, else it was cut and is dropped."""
        text = payload.strip()
        if text.endswith(b"}") and isinstance(_loads(text.decode("utf-8", "replace")), dict):
            self._read(payload)
        elif text == b"[DONE]":
            self._done = True


def parse_completion(body: bytes, provider: str = "provider", *, secret: str = "") -> list[ModelChunk]:
    """A reply that was not streamed: text and reasoning, then one chunk with calls, finish reason and usage.

    Raises `ModelStatusError` for an error object, `ModelProtocolError` for anything that is not a completion.
    """
    reply = _Reply(provider, secret)
    if not reply.read(body):
        raise ModelProtocolError(
            f"{provider!r} sent a completion without choices: {quoted(body, secret)}", provider=provider
        )
    return [*reply.take(last=True), reply.end()]


def _texts(content: Any) -> tuple[str, str]:
    """The text and the thinking in `content`: a string, null, or a list of parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    text: list[str] = []
    thinking: list[str] = []
    for part in content:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict) and part.get("type") == "thinking":
            thinking += _texts(part.get("thinking"))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), "".join(thinking)


def usage_of(read: Any, written: Any) -> Usage | None:
    """Usage of two counts as they were sent, None unless one of them is more than nothing."""
    tokens = [count if type(count) is int and 0 < count < _SANE else 0 for count in (read, written)]
    return Usage(input_tokens=tokens[0], output_tokens=tokens[1]) if any(tokens) else None


def _usage(content: Any) -> Usage | None:
    if not isinstance(content, dict):
        return None
    return usage_of(content.get("prompt_tokens"), content.get("completion_tokens"))


def _says_something(content: dict[str, Any]) -> bool:
    return any(content.get(key) for key in ("message", "detail"))


def _deeper_than(levels: int, content: Any) -> bool:
    if not isinstance(content, dict | list):
        return False
    inner = content.values() if isinstance(content, dict) else content
    return levels == 0 or any(_deeper_than(levels - 1, item) for item in inner)


def _loads(text: str) -> Any:
    """`text` as JSON, None if it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
