"""What `agentflow sessions` does: shows, exports and deletes what a store has kept of conversations.

Everything is read in pages and written as it comes: a session may be larger than memory.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from agentflow.cli.output import print_lines, stdout_alone, written_file
from agentflow.cli.screen import call_line, cleaned, one_line
from agentflow.errors import RequestError
from agentflow.messages import ToolCall
from agentflow.stores.base import SessionInfo, SessionKey, Store, Turn

_PAGE = 50  # turns read at a time
_MAX_RESULT = 300  # characters of a tool's result that a person is shown


async def show_all(store: Store, user: str | None, *, as_json: bool) -> int:
    """The sessions of a user, the newest first, a line each."""
    write = stdout_alone() if as_json else None
    async for info in _sessions(store, user):
        if write is not None:
            write(_header(info))
        else:
            held = f"  held by run {info.active_run}" if info.active_run else ""
            print_lines([f"{_time(info.used_at)}  {info.version:>5} turns  {one_line(info.key.session_id)}{held}"])
    return 0


async def show(store: Store, key: SessionKey, *, as_json: bool) -> int:
    """The turns of a session. Raises `RequestError` for an unknown one."""
    await _found(store, key)
    write = stdout_alone() if as_json else None
    async for number, turn in _turns(store, key):
        if write is not None:
            write(_line(number, turn))
        else:
            print_lines(_told(number, turn))
    return 0


async def export(store: Store, key: SessionKey, output: Path | None) -> int:
    """A session as JSON lines, to `output` or to standard output. Raises `RequestError` for an unknown one."""
    info = await _found(store, key)
    if output is None:
        await _export(store, info, stdout_alone())
        return 0
    with written_file(output) as file:
        await _export(store, info, lambda line: file.writelines((line, b"\n")))
    print_lines([f"wrote {output}"])
    return 0


async def delete(store: Store, key: SessionKey) -> int:
    """Delete a session. Raises `RequestError` for an unknown one."""
    info = await _found(store, key)
    await store.delete_session(key)
    asked = f"; run {info.active_run} was asked to end" if info.active_run else ""
    print_lines([f"deleted session {key.session_id}{asked}"])
    return 0


async def _found(store: Store, key: SessionKey) -> SessionInfo:
    info = await store.find_session(key)
    if info is None:
        whose = "without a user" if key.user_id is None else f"of user {key.user_id!r}"
        raise RequestError(f"no session {key.session_id!r} {whose}: `agentflow sessions` shows which there are")
    return info


async def _sessions(store: Store, user: str | None) -> AsyncIterator[SessionInfo]:
    before: int | None = None
    while page := await store.list_sessions(user, before=before):
        for info in page:
            yield info
        before = page[-1].number


async def _turns(store: Store, key: SessionKey) -> AsyncIterator[tuple[int, Turn]]:
    """The turns with their numbers."""
    number = 0
    while page := await store.read_turns(key, number, _PAGE):
        for turn in page:
            number += 1
            yield number, turn


# -- for programs ----------------------------------------------------------------------------------------------


async def _export(store: Store, info: SessionInfo, write: Callable[[bytes], None]) -> None:
    write(_header(info))
    async for number, turn in _turns(store, info.key):
        write(_line(number, turn))


def _header(info: SessionInfo) -> bytes:
    key = {"session_id": info.key.session_id, "user_id": info.key.user_id}
    rest = {"turns": info.version, "used_at": _time(info.used_at), "active_run": info.active_run}
    return msgspec.json.encode(key | rest)


def _line(number: int, turn: Turn) -> bytes:
    fields = {"turn": number, "run_id": turn.run_id, "outcome": turn.outcome, "messages": turn.messages}
    return msgspec.json.encode(fields)


# -- for people ------------------------------------------------------------------------------------------------


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _told(number: int, turn: Turn) -> Iterator[str]:
    yield f"turn {number} ({turn.outcome}), run {turn.run_id}"
    for message in turn.messages:
        if message.role == "tool":
            yield f"  └ {one_line(message.name or '')}: {one_line(message.text, _MAX_RESULT)}"
        elif message.text:
            yield f"  {message.role}: " + cleaned(message.text).strip().replace("\n", "\n    ")
        yield from (f"  ● {_call(call)}" for call in message.tool_calls)


def _call(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.raw_arguments)
    except (ValueError, RecursionError):
        arguments = None
    return call_line(call.name, arguments if isinstance(arguments, dict) else None, call.raw_arguments)
