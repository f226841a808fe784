"""The pure parser of Ollama's `/api/chat` replies, streamed or not: bytes of NDJSON in, `ModelChunk`s out.

It does no I/O, knows no clock and repairs nothing. The laws are those of `parsing`; a reply is whole when a line says
that it is done.
"""

from typing import Any

import msgspec

from agentflow.errors import ModelError, ModelProtocolError, ModelTruncatedError
from agentflow.messages import Usage
from agentflow.models.base import ModelChunk
from agentflow.models.calls import CallAssembly, CallPart
from agentflow.models.failures import error_from_object, quoted
from agentflow.models.finish import later_reason
from agentflow.models.framing import MAX_EVENT_BYTES, LineSplitter
from agentflow.models.parsing import usage_of
from agentflow.models.texts import Texts, decoded_leniently


class _Message(msgspec.Struct, gc=False):
    content: Any = None
    thinking: Any = None
    tool_calls: list[CallPart] | None = None


class _Line(msgspec.Struct, gc=False):
    message: _Message | None = None
    done: Any = False
    done_reason: Any = None
    error: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None


_decode = msgspec.json.Decoder(_Line).decode


class OllamaStreamParser:
    """One reply. Feed it bytes in any pieces; then `finish`. After `ended` nothing more is read.

    Each call comes whole, in a line of its own or with others; the arguments, which are objects, leave as the JSON that
    came.
    """

    def __init__(self, provider: str = "ollama", *, secret: str = "") -> None:
        self._provider = provider
        self._secret = secret
        self._lines = LineSplitter()
        self._texts = Texts()
        self._calls = CallAssembly()
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._done = False
        self._error: ModelError | None = None

    def copy(self) -> "OllamaStreamParser":
        """An independent parser at the same point of the same stream."""
        twin = object.__new__(OllamaStreamParser)
        twin.__dict__.update(self.__dict__)
        twin._lines, twin._texts, twin._calls = self._lines.copy(), self._texts.copy(), self._calls.copy()
        return twin

    @property
    def ended(self) -> bool:
        """Whether the rest of the body does not matter."""
        return self._done or self._error is not None

    @property
    def complete(self) -> bool:
        """Whether a line said that the reply is done, and none an error."""
        return self._done and self._error is None

    def feed(self, data: bytes) -> list[ModelChunk]:
        """The text and reasoning that `data` adds. Never raises: see `finish`."""
        for line in self._lines.feed(data):
            self._read(line)
        if self._lines.overflow and not self.ended:
            self._error = ModelProtocolError(f"{self._provider!r} sent a line of more than {MAX_EVENT_BYTES} bytes")
        return self._texts.take()

    def finish(self) -> list[ModelChunk]:
        """The end of the body has come: what was held back, and one chunk with calls, finish reason and usage.

        Raises `ModelTruncatedError` if no line said that the reply is done, and the `ModelError` that ended the
        reply: text given out before stays given out.
        """
        rest = self._lines.rest()
        if rest is not None and rest.endswith(b"}"):  # else it was cut
            self._read(rest, last=True)
        if self._error is None and not self._done:
            self._error = ModelTruncatedError(f"{self._provider!r} ended the reply without saying that it is done")
        if self._error is not None:
            self._error.provider = self._provider
            raise self._error
        end = ModelChunk(calls=self._calls.requests(), finish_reason=self._finish_reason, usage=self._usage, count=0)
        return [*self._texts.take(last=True), end]

    def _read(self, payload: bytes, *, last: bool = False) -> None:
        if self.ended:
            return
        try:
            line = self._decoded(payload)
            if line is not None:
                self._add(line)
            elif not last:  # the last one may have been cut
                words = quoted(payload, self._secret)
                raise ModelProtocolError(f"{self._provider!r} sent a line that is no part of a chat: {words}")
        except ModelError as error:
            self._error = error

    def _decoded(self, payload: bytes) -> _Line | None:
        try:
            return _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            pass  # perhaps only stricter than needed
        try:
            line = decoded_leniently(payload, _Line)
        except (ValueError, RecursionError):
            return None
        self._texts.halves = True
        return line

    def _add(self, line: _Line) -> None:
        if line.error:
            raise error_from_object(line.error, provider=self._provider, secret=self._secret)
        message = line.message
        if message is not None:
            if message.thinking and isinstance(message.thinking, str):
                self._texts.add("reasoning", message.thinking)
            if message.content and isinstance(message.content, str):
                self._texts.add("text", message.content)
            for part in message.tool_calls or ():
                self._calls.add_whole(part)
        if line.done is True:
            self._done = True
            self._finish_reason = later_reason(None, line.done_reason)
            self._usage = usage_of(line.prompt_eval_count, line.eval_count)
