"""A model's reply while it comes: what it has said so far, within its bounds.

It knows neither events nor time limits; what a reply leads to is in `state`.
"""

from typing import Any

import msgspec

from agentflow.errors import ModelProtocolError
from agentflow.events import MAX_ANSWER_BYTES, MAX_DELTA_BYTES
from agentflow.messages import Usage, clean_text
from agentflow.models.base import CallRequest, ModelChunk, Tokenizer, estimate_tokens

MAX_CALLS = 128  # in one reply
MAX_CALL_BYTES = 1024 * 1024  # of names and arguments in one reply


class Reply:
    """A model's reply as far as it has come. `full` once it is cut at 512 KiB of encoded text."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.first_chunk: float | None = None
        self.texts: list[str] = []
        self._room = MAX_ANSWER_BYTES  # of encoded text that is left
        self._room_for_calls = MAX_CALL_BYTES
        self.full = False
        self.refused = False
        self.whole = False  # its `model_complete` is on its way
        self.calls: list[CallRequest] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.provider_data: dict[str, Any] | None = None

    @property
    def reason(self) -> str | None:
        """Why the reply ended; "refusal" for one that is whole and says no."""
        return "refusal" if self.refused and self.finish_reason in (None, "stop") else self.finish_reason

    def add(self, text: str) -> str:
        """More of the answer or of the reasoning: so much of it as there is room for, clean."""
        text = clean_text(checked(text, "text"))
        while (size := len(msgspec.json.encode(text)) - 2) > self._room:
            self.full = True
            text = text[: len(text) * self._room // size]
        self._room -= size
        self.texts.append(text)
        return text

    def take(self, chunk: ModelChunk) -> None:
        """What the chunk says besides its text."""
        for call in chunk.calls:
            self._room_for_calls -= len(checked(call.name, "tool name")) + len(checked(call.arguments, "call"))
            self.calls.append(call)
        if len(self.calls) > MAX_CALLS or self._room_for_calls < 0:
            raise ModelProtocolError(
                f"the model made more than {MAX_CALLS} calls, or calls of more than 1 MiB, at once"
            )
        if chunk.finish_reason:
            self.finish_reason = checked(chunk.finish_reason, "finish reason")
        if chunk.usage is not None:
            self.usage = _checked_usage(chunk.usage)
        self.provider_data = chunk.provider_data or self.provider_data

    def estimated_usage(self, input_tokens: int, count: Tokenizer = estimate_tokens) -> Usage:
        """What the call used, for a provider that does not say."""
        output = count("".join((*self.texts, *(call.arguments for call in self.calls))))
        return Usage(input_tokens=input_tokens, output_tokens=output, estimated=True)


def checked(value: Any, what: str) -> str:
    """`value` as the text it has to be; raises `ModelProtocolError`, since a model of the user's may give anything."""
    if not isinstance(value, str):
        raise ModelProtocolError(f"the model gave a {what} of type {type(value).__name__}, expected str")
    return value


def checked_count(value: Any) -> int:
    """How many pieces a chunk joins; 1 for what is no such number."""
    return value if type(value) is int and value >= 0 else 1


def _checked_usage(value: Any) -> Usage:
    counts = (getattr(value, "input_tokens", None), getattr(value, "output_tokens", None))
    if not isinstance(value, Usage) or not all(type(count) is int and count >= 0 for count in counts):
        raise ModelProtocolError(f"the model gave a usage that is none: {str(value)[:100]}; expected Usage with counts")
    return value


def pieces(text: str) -> list[str]:
    """`text` cut into deltas of the allowed size, between code points."""
    if len(text) * 6 <= MAX_DELTA_BYTES // 2 or len(msgspec.json.encode(text)) <= MAX_DELTA_BYTES - 4096:
        return [text]
    middle = len(text) // 2
    return pieces(text[:middle]) + pieces(text[middle:])
