"""The text of a reply while it comes: joins adjacent fragments of one channel into chunks, within a bound.

Pure; it knows no wire. What cannot be decoded strictly is read here too: halves of surrogate pairs are the reason.
"""

import json
from typing import Any, TypeVar

import msgspec

from agentflow.errors import ModelProtocolError
from agentflow.messages import clean_text
from agentflow.models.base import ModelChunk

T = TypeVar("T")

MAX_TEXT = 4 * 1024 * 1024  # characters of answer, reasoning, refusal and opaque details of one reply


class Texts:
    """Answer, reasoning and refusal of one reply.

    The attributes are open because the usual fragment of an answer is added by its parser without a call: there is
    one for every token. `halves` says whether a surrogate half can be among the fragments.
    """

    __slots__ = ("channel", "chunks", "count", "halves", "length", "run")

    def __init__(self) -> None:
        self.channel = "text"
        self.run: list[str] = []  # adjacent fragments of one channel
        self.count = 0  # how many provider chunks they are
        self.length = 0
        self.halves = False
        self.chunks: list[ModelChunk] = []  # ready to be taken

    def copy(self) -> "Texts":
        """An independent one with the same content."""
        twin = Texts()
        twin.channel, twin.count, twin.length, twin.halves = self.channel, self.count, self.length, self.halves
        twin.run, twin.chunks = self.run.copy(), self.chunks.copy()
        return twin

    def add(self, channel: str, text: str) -> None:
        """One fragment of a channel: "text", "reasoning" or "refusal". Raises `ModelProtocolError` over the bound."""
        if channel != self.channel:
            self.switch(channel)
        self.grow(len(text))
        self.run.append(text)
        self.count += 1

    def grow(self, size: int) -> None:
        """Count `size` more characters. Raises `ModelProtocolError` over the bound."""
        self.length += size
        if self.length > MAX_TEXT:
            raise ModelProtocolError(f"the reply is longer than {MAX_TEXT} characters")

    def switch(self, channel: str) -> None:
        """What follows belongs to another channel."""
        if self.run:
            self._flush(last=True)
        self.channel = channel

    def take(self, *, last: bool = False) -> list[ModelChunk]:
        """The chunks that are ready. A trailing half of a surrogate pair is held back until `last`."""
        if self.run:
            self._flush(last=last)
        chunks, self.chunks = self.chunks, []
        return chunks

    def _flush(self, *, last: bool) -> None:
        text, self.run = "".join(self.run), []
        held = 0
        if self.halves:
            if not last and "\ud800" <= text[-1] <= "\udbff":
                self.run.append(text[-1])
                text = text[:-1]
                held = 1  # the fragment counts when its half comes out, which may be never
            text = clean_text(text)
        if text:
            chunk = ModelChunk(count=self.count - held)
            setattr(chunk, self.channel, text)
            self.chunks.append(chunk)
            self.count = held


def decoded_leniently(payload: bytes, kind: type[T]) -> T:
    """What msgspec refuses and some servers send: NaN, and halves of surrogate pairs. Raises ValueError if that fails.

    So it does for a key that is given twice, whose first value would be lost. RecursionError is raised for what is
    nested too deeply.
    """
    return msgspec.convert(_with_raw_arguments(json.loads(payload.decode(), object_pairs_hook=_object)), kind)


_ON_THE_WAY = ("choices", "delta", "message", "tool_calls", "function", "function_call")  # to the arguments of calls


def _with_raw_arguments(node: Any) -> Any:
    """`node` with the arguments of its calls as JSON again, which is how `calls` reads them."""
    if isinstance(node, list):
        return [_with_raw_arguments(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _with_raw_arguments(item) if key in _ON_THE_WAY else item for key, item in node.items()}
    if "arguments" in node:
        copy["arguments"] = msgspec.Raw(_dumped(node["arguments"]))
    return copy


def _dumped(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is given twice")
    return content
