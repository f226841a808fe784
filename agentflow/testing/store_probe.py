"""What the store suite's checks are made of: stores to open, records to put in, and expectations that say what failed.

It checks nothing by itself; the checks are in `store_log_checks` and `store_session_checks`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from agentflow.events import AgentEvent, DeltaEvent, FailedEvent, InputEvent, RunError
from agentflow.messages import ImagePart, Message, TextPart, ToolCall, Usage
from agentflow.stores.base import SessionKey, Store, Turn

Factory: TypeAlias = Callable[[], Store]
Check: TypeAlias = Callable[[Factory], Awaitable[None]]

KEY = SessionKey("s", "u")
LONG = 3600.0  # seconds of a lease that does not lapse during a check
SHORT = 0.05  # seconds of one that does
PATIENCE = 30.0  # seconds until something that has to happen is given up

# Texts that break whoever puts them into a query, a pattern, a key or a line by hand.
HOSTILE = (
    'it\'s "q"; DROP TABLE runs; --',
    "a:b*?[c]{d}",
    "%_\\",
    "line\nend\r\x00\x1f",
    "\u2028\u202e\ufffd",
    "日本😀",
)


@asynccontextmanager
async def clients(make: Factory, count: int = 2) -> AsyncGenerator[Sequence[Store], None]:
    """`count` stores on the same data, closed in the end."""
    stores = [make() for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.aclose()


def same(found: object, expected: object, what: str) -> None:
    """Raise `AssertionError` unless both are equal."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r:.1000}, but found {found!r:.1000}")


def true(condition: object, what: str) -> None:
    """Raise `AssertionError` unless `condition` is true."""
    if not condition:
        raise AssertionError(f"not so: {what}")


async def refused(call: Awaitable[Any], error: type[Exception], what: str) -> None:
    """Raise `AssertionError` unless `call` raises `error`."""
    try:
        result = await call
    except error:
        return
    raise AssertionError(f"{what}: expected {error.__name__}, but it gave {result!r:.1000}")


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait until `condition()` gives something true; asked again and again, since no store tells of everything."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110  what another process does sets no event
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"{what}: it did not happen within {PATIENCE:g} s") from None


async def in_line(store: Store, run_id: str) -> None:
    """Wait until `run_id`, which had no record before, waits for its session or holds it."""
    await until(lambda: store.find_run(run_id), f"run {run_id!r} comes to its session, or waits for it")


async def is_asked_to_end(store: Store, run_id: str, reason: str) -> None:
    """Wait until there is a letter to the run, and see that it asks it to end for this reason."""
    await until(lambda: store.list_letters(run_id), f"run {run_id!r} is asked to end")
    same([(letter.verb, letter.text) for letter in await store.list_letters(run_id)], [("cancel", reason)], "letters")


def log(run_id: str, first: int = 1, count: int = 1, text: str = "x") -> list[AgentEvent]:
    """`count` events of a run from number `first` on, each with a text."""
    return [
        InputEvent(text=text, **_header(run_id, seq)) if seq == 1 else DeltaEvent(text=text, **_header(run_id, seq))
        for seq in range(first, first + count)
    ]


def end(run_id: str, seq: int) -> AgentEvent:
    """A terminal event."""
    error = RunError(kind="x", message="it was to be")
    return FailedEvent(error=error, usage=Usage(), duration_ms=1.5, **_header(run_id, seq))


def turn(run_id: str, text: str = "hello") -> Turn:
    """A turn with words, a picture, a call with its result, and what a provider wants back."""
    call = ToolCall(call_id=f"{run_id}-1", name="look", raw_arguments='{"a": 1e999}')
    picture = ImagePart(data=b"\x00\xff", media_type="image/png")
    return Turn(
        run_id=run_id,
        outcome="final",
        messages=(
            Message(role="user", content=(TextPart(text), picture)),
            Message(role="assistant", tool_calls=(call,), provider_data={"opaque": [1, None, "x"]}),
            Message(role="tool", call_id=call.call_id, name="look", content=text),
            Message(role="assistant", content=text, reasoning="so"),
        ),
    )


async def fill(store: Store, key: SessionKey, *run_ids: str) -> None:
    """One turn of each run, put into the session one after another."""
    for run_id in run_ids:
        await store.open_session(key, run_id)
        await store.close_session(key, run_id, turn(run_id))


def _header(run_id: str, seq: int) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "chain_id": run_id,
        "session_id": "s",
        "path": ("agent",),
        "trace_id": "0" * 32,
        "seq": seq,
        "ts": "2026-01-01T00:00:00.000000Z",
    }
