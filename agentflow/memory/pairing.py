"""Histories that every provider accepts: each call of a tool with exactly one result, directly after it.

It neither chooses nor shortens messages, and says nothing about who wrote them; what is told of a history that is
right already is `messages.unpaired`.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import msgspec

from agentflow.messages import Message, ToolCall

_LOST = "[error: unknown_outcome]\nThe result of this call was lost; whether the call had an effect is not known."

_Place: TypeAlias = tuple[int, int]  # of a call: its message, and where in it


def repair(messages: Sequence[Message], taken: Collection[str] = ()) -> tuple[Message, ...]:
    """The same messages, paired: what is right stays as it is, so that repairing twice changes nothing.

    Each call is followed by its result, in the order of the calls; results without a call and second results are
    dropped; a call without a result gets one that says so. A result belongs to the last message before it that asked
    with its id, the first result to the first such call. Ids that are blank, used before in `messages` or in `taken`
    are replaced by new ones. Blank arguments, and null, become an empty object.
    """
    results = _results(messages)
    rename = _Names(messages, taken)
    return tuple(_paired(messages, results, rename))


def _results(messages: Sequence[Message]) -> dict[_Place, Message]:
    """The result of each call that has one."""
    found: dict[_Place, Message] = {}
    waiting: dict[str | None, deque[_Place]] = {}
    for position, message in enumerate(messages):
        if message.role == "assistant":
            asked: defaultdict[str | None, deque[_Place]] = defaultdict(deque)
            for number, call in enumerate(message.tool_calls):
                asked[call.call_id].append((position, number))
            waiting |= asked
        elif message.role == "tool" and waiting.get(message.call_id):
            found[waiting[message.call_id].popleft()] = message
    return found


class _Names:
    """Gives every call an id of its own; ids that stand anywhere are never made anew."""

    def __init__(self, messages: Sequence[Message], taken: Collection[str]) -> None:
        self._used = set(taken)
        self._reserved = {call.call_id for message in messages for call in message.tool_calls} | self._used
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))

    def __call__(self, call_id: str) -> str:
        unique = call_id
        if not call_id.strip() or call_id in self._used:
            base = call_id.strip() or "call"
            fresh = (f"{base}-{number}" for number in self._numbers[base])
            unique = next(name for name in fresh if name not in self._reserved)
            self._reserved.add(unique)
        self._used.add(unique)
        return unique


def _paired(messages: Sequence[Message], results: dict[_Place, Message], rename: _Names) -> Iterator[Message]:
    for position, message in enumerate(messages):
        if message.role == "tool":
            continue
        if message.role != "assistant" or not message.tool_calls:
            yield _with_calls(message, ())
            continue
        calls = tuple(_readable(call, rename(call.call_id)) for call in message.tool_calls)
        yield _with_calls(message, calls)
        for number, call in enumerate(calls):
            yield _result(results.get((position, number)), call)


def _readable(call: ToolCall, call_id: str) -> ToolCall:
    arguments = "{}" if call.raw_arguments.strip() in ("", "null") else call.raw_arguments
    if (call_id, arguments) == (call.call_id, call.raw_arguments):
        return call
    return msgspec.structs.replace(call, call_id=call_id, raw_arguments=arguments)


def _with_calls(message: Message, calls: tuple[ToolCall, ...]) -> Message:
    return message if message.tool_calls == calls else msgspec.structs.replace(message, tool_calls=calls)


def _result(result: Message | None, call: ToolCall) -> Message:
    if result is None:
        return Message(role="tool", content=_LOST, call_id=call.call_id, name=call.name)
    if result.call_id == call.call_id and not result.tool_calls:
        return result
    return msgspec.structs.replace(result, call_id=call.call_id, tool_calls=())
