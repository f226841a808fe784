"""What `agentflow runs` and `agentflow events` do: tell which runs a store has, and what is in their logs.

They only read, page by page.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec

from agentflow import event_log
from agentflow.cli.output import print_lines, stdout_alone
from agentflow.cli.screen import one_line
from agentflow.errors import RequestError
from agentflow.event_log import PAGE
from agentflow.events import AgentEvent, State, StateEvent, encode
from agentflow.stores.base import RunRecord, Store


async def show_all(store: Store, *, only_open: bool, as_json: bool) -> int:
    """The runs, the newest first, a line each: when something last happened, what became of it, events, session."""
    write = stdout_alone() if as_json else None
    async for record in _records(store, only_open=only_open):
        last = await _last(store, record)
        state, at = _state(record, last), last.ts if last is not None else ""
        if write is not None:
            write(_line(record, state, at))
        else:
            session = one_line(record.session.session_id) if record.session is not None else "-"
            print_lines([f"{record.run_id}  {at[:19]:<19}  {state:<9}  {record.last:>5} events  {session}"])
    return 0


async def events(store: Store, run_id: str, after: int, *, follow: bool) -> int:
    """The events of a run behind `after`, a line each; with `follow` to its end. Raises `RequestError`."""
    await require(store, run_id)
    write = stdout_alone()
    log = event_log.follow(store, run_id, after) if follow else read(store, run_id, after)
    async with aclosing(log):
        async for event in log:
            write(encode(event))
    return 0


async def require(store: Store, run_id: str) -> None:
    """Raise `RequestError` unless the run has a log here."""
    if await store.last(run_id) is None:
        raise RequestError(f"no run {run_id!r}: `agentflow runs` shows which there are")


async def read(store: Store, run_id: str, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
    """The events of a run behind `after` that there are by now."""
    while page := await store.read(run_id, after, PAGE):
        for event in page:
            yield event
        after = page[-1].seq


async def _records(store: Store, *, only_open: bool) -> AsyncIterator[RunRecord]:
    before: int | None = None
    while page := await store.list_runs(before=before, open_only=only_open):
        for record in page:
            yield record
        before = page[-1].number


async def _last(store: Store, record: RunRecord) -> AgentEvent | None:
    page = await store.read(record.run_id, record.last - 1, 1) if record.last else ()
    return page[0] if page else None


def _state(record: RunRecord, last: AgentEvent | None) -> str:
    """How the run ended, or whether it waits for a person."""
    if record.ended and last is not None:
        return last.type.value
    waits = isinstance(last, StateEvent) and last.chain_id == last.run_id and last.current is State.SUSPENDED
    return "suspended" if waits else "open"


def _line(record: RunRecord, state: str, at: str) -> bytes:
    session = record.session
    fields = {
        "run_id": record.run_id,
        "session_id": session.session_id if session is not None else None,
        "user_id": session.user_id if session is not None else None,
        "state": state,
        "ended": record.ended,
        "events": record.last,
        "ts": at or None,
    }
    return msgspec.json.encode(fields)
