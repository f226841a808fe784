"""What clients of OpenAI's chat completions send: the model of the body, and the conversation in it.

Who is to answer and what becomes of it is the business of `openai_api`.
"""

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from agentflow.chain.request import Input
from agentflow.errors import RequestError
from agentflow.messages import Message, Part, TextPart, ToolCall
from agentflow.stores.base import SessionKey, SessionStore, Turn
from agentflow.transports.conversation import linked_picture
from agentflow.transports.refusals import Refused

Messages: TypeAlias = tuple[Message, ...]

# What a model is asked beside its messages: it is the agent that says so here, hence this is accepted and left alone.
_LEFT_ALONE = frozenset((
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "max_tokens", "max_completion_tokens",
    "seed", "stop", "logit_bias", "user", "store", "service_tier", "parallel_tool_calls", "reasoning_effort",
    "verbosity", "prediction", "top_logprobs", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "web_search_options",
    # of other servers, which chat pages send to all
    "top_k", "min_p", "typical_p", "repetition_penalty",
))  # fmt: skip
# What an answer would have to show: only these values are served.
_SERVED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
}


class Unfit(Refused):
    """A parameter that is not known, or is not served with this value."""

    def __init__(self, code: str, message: str, param: str, status: int = 400) -> None:
        super().__init__(status, code, message)
        self.param = param


class _Part(BaseModel):
    """A part of a message."""

    class Link(BaseModel):
        """Where a picture is."""

        url: str

    type: str
    text: str = ""
    image_url: Link | None = None

    def part(self) -> Part:
        """What we call it. Raises `RequestError`."""
        if self.type == "text":
            return TextPart(self.text)
        if self.type != "image_url" or self.image_url is None:
            raise RequestError(f"a part of the type {self.type[:40]!r} is not understood here: send text and image_url")
        return linked_picture(self.image_url.url)


class _Call(BaseModel):
    """A call that an assistant has made."""

    class Function(BaseModel):
        """What was called."""

        name: str
        arguments: str = ""

    id: str
    function: Function


class ChatMessage(BaseModel):
    """A message of the conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    def message(self) -> Message:
        """What we call it; instructions of a client are what its user says. Raises `RequestError`."""
        if self.role in ("assistant", "tool"):
            return Message(
                role="assistant" if self.role == "assistant" else "tool",
                content=self._text(),
                call_id=self.tool_call_id if self.role == "tool" else None,
                tool_calls=tuple(
                    ToolCall(call_id=call.id, name=call.function.name, raw_arguments=call.function.arguments)
                    for call in self.tool_calls or ()
                ),
            )
        content = self.content or ""
        return Message(role="user", content=content if isinstance(content, str) else tuple(map(_Part.part, content)))

    def _text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class StreamOptions(BaseModel):
    """How a stream is told."""

    include_usage: bool = False


class ChatCompletion(BaseModel):
    """What is asked. `metadata` may hold `session_id` and `user_id`, which mean what they do on the other routes."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: Annotated[str, Field(description="The name of an agent; with `-raw` behind it the agent without its tools.")]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    tool_choice: Any = None

    def check(self) -> None:
        """Raise `Unfit` (400) for the first parameter that cannot be served."""
        for name, value in ({"tool_choice": self.tool_choice} | (self.model_extra or {})).items():
            if name in _LEFT_ALONE or value is None:
                continue
            if name not in _SERVED:
                raise Unfit("unknown_parameter", f"Unknown parameter: {name[:140]!r}.", name[:140])
            offered = name in ("tools", "functions") and self.uses_no_tools
            if not offered and value not in _SERVED[name]:
                raise Unfit("unsupported_value", _unserved(name), name)

    @property
    def uses_no_tools(self) -> bool:
        """Whether the client will have no tool used."""
        return isinstance(self.tool_choice, str) and self.tool_choice == "none"


def _unserved(name: str) -> str:
    if name in ("tools", "functions"):
        return f"{name!r} are not used here: the agent has its own, and uses none of them with 'tool_choice': 'none'."
    served = " or ".join(map(repr, _SERVED[name]))
    return f"Unsupported value: {name!r} may be {served} here." if served else f"{name!r} is not supported here."


def conversation(messages: Sequence[ChatMessage]) -> tuple[list[Messages], Input]:
    """The turns that were, and what the user says now. Raises `RequestError`.

    What was said one after another without an answer is one message.
    """
    merged = list(_merged([message.message() for message in messages]))
    if merged[-1].role != "user":
        raise RequestError("the last message must be the user's")
    turns: list[list[Message]] = []
    for message in merged[:-1]:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return [tuple(turn) for turn in turns], merged[-1].content


def _merged(messages: Sequence[Message]) -> Iterator[Message]:
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "user":
            yield Message(role="user", content=_joined([message.content for message in group]))
        else:
            yield from group


def _joined(contents: Sequence[Input]) -> Input:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(map(str, contents))
    return tuple(chain.from_iterable((TextPart(one),) if isinstance(one, str) else one for one in contents))


async def keep(store: SessionStore, key: SessionKey, turns: Sequence[Messages], most: int | None) -> None:
    """Let a new session have had these turns, joined to at most `most`, the oldest first."""
    if most is not None and len(turns) > most:
        turns = [tuple(chain.from_iterable(turns[: 1 - most or None])), *turns[len(turns) - most + 1 :]]
    for messages in turns:
        run_id = str(uuid.uuid4())
        await store.open_session(key, run_id, last_turns=0)
        await store.close_session(key, run_id, Turn(run_id=run_id, outcome="final", messages=messages))
