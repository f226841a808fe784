"""A model that says what it was told to say: for tests and for trying things without a provider.

It keeps the protocol's rules (it refuses an unpaired history, as strict providers do) but understands nothing.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any, TypeAlias

from agentflow.errors import ModelError
from agentflow.messages import Usage, unpaired
from agentflow.models.base import CallRequest, ModelChunk, ModelRequest, estimate_request_tokens, estimate_tokens

Step: TypeAlias = str | ModelChunk | CallRequest | Exception
Turn: TypeAlias = str | Iterable[Step]

_WORDS = re.compile(r"\S+\s*|\s+")


def call(name: str, /, *, id: str | None = None, **arguments: Any) -> CallRequest:  # noqa: A002  the wire's name
    """A tool call as a step of a turn."""
    return CallRequest(name=name, arguments=json.dumps(arguments, ensure_ascii=False), id=id)


class ScriptedModel:
    """Plays its turns in order, one per call, whoever calls.

    A turn is text, streamed in words, or its steps: text, chunks, calls, an exception to raise at that point. A
    last chunk carries the calls and what the script left out: a finish reason, estimated usage. `delay` seconds
    pass before each chunk. `requests` are the requests so far. A call after the last turn raises `ModelError`.
    """

    provider = "scripted"
    name = "scripted"

    def __init__(self, *turns: Turn, delay: float = 0.0) -> None:
        self.requests: list[ModelRequest] = []
        self._turns = turns
        self._delay = delay

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Play the next turn."""
        fault = unpaired(request.messages)
        if fault is not None:
            raise ModelError(f"the history is not paired: {fault}", provider=self.provider)
        self.requests.append(request)
        number = len(self.requests)
        if number > len(self._turns):
            raise ModelError(
                f"the script has {len(self._turns)} turns and this is call {number}: give it another turn",
                provider=self.provider,
            )
        turn = self._turns[number - 1]
        for step in _chunks([turn] if isinstance(turn, str) else turn, request):
            if isinstance(step, Exception):
                raise step
            if self._delay:
                await asyncio.sleep(self._delay)
            yield step


def _chunks(steps: Iterable[Step], request: ModelRequest) -> Iterator[ModelChunk | Exception]:
    said = ""
    calls: list[CallRequest] = []
    finish_reason: str | None = None
    usage: Usage | None = None
    for step in steps:
        if isinstance(step, str):
            said += step
            yield from (ModelChunk(text=word) for word in _WORDS.findall(step))
        elif isinstance(step, CallRequest):
            said += step.name + step.arguments
            calls.append(step)
        elif isinstance(step, ModelChunk):
            said += step.text + step.reasoning
            finish_reason = step.finish_reason or finish_reason
            usage = step.usage or usage
            yield step
        else:
            yield step
    yield ModelChunk(
        calls=tuple(calls),
        finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
        usage=usage or _estimate(request, said),
        count=0,
    )


def _estimate(request: ModelRequest, said: str) -> Usage:
    return Usage(input_tokens=estimate_request_tokens(request), output_tokens=estimate_tokens(said), estimated=True)
