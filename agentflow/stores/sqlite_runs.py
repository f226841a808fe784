"""What the SQLite store does to runs, their events and their leases: functions of one connection.

Those that write are run by the writer in its transaction, and look before they write; none waits for anything.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from agentflow.events import TERMINAL_TYPES, AgentEvent, decode, encode
from agentflow.stores import letters, refusals
from agentflow.stores.base import Letter, RunRecord, SessionKey

PAGE_BYTES = 4 * 1024 * 1024  # encoded events after which a page ends, whatever its limit

_RECORD = "SELECT number, run_id, user, session_id, last, ended_at, closing FROM runs"


def user_column(user_id: str | None) -> str:
    """A user's id as the tables have it: nobody is not the user with the empty id."""
    return "" if user_id is None else f"={user_id}"


def ensure_run(db: sqlite3.Connection, run_id: str) -> int:
    """The number of the run; makes its record if there is none."""
    db.execute("INSERT INTO runs (run_id) VALUES (?) ON CONFLICT DO NOTHING", (run_id,))
    ((number,),) = db.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,))
    return int(number)


def drop_if_empty(db: sqlite3.Connection, run_id: str) -> None:
    """Forget a run of which there is nothing to know any more."""
    db.execute(
        "DELETE FROM runs WHERE run_id = ? AND last = 0 AND owner IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM sessions WHERE active_run = runs.run_id)"
        " AND NOT EXISTS (SELECT 1 FROM waiting WHERE waiting.run_id = runs.run_id)",
        (run_id,),
    )


def check_lease(db: sqlite3.Connection, run_id: str, token: int | None) -> None:
    """Raise `LeaseLostError` unless `token` is the last that was given for this run; None needs no lease."""
    held = "SELECT 1 FROM runs WHERE run_id = ? AND token = ? AND owner IS NOT NULL"
    if token is not None and db.execute(held, (run_id, token)).fetchone() is None:
        raise refusals.lease_lost(run_id, token)


def append(
    db: sqlite3.Connection, run_id: str, events: Sequence[AgentEvent], *, token: int | None, wall: float
) -> None:
    """See `EventLog.append`."""
    check_lease(db, run_id, token)
    ((last,),) = db.execute("SELECT last FROM runs WHERE run_id = ?", (run_id,)).fetchall() or ((0,),)
    for before, event in enumerate(events, last):
        if event.seq != before + 1:
            raise refusals.does_not_follow(run_id, event.seq, before)
    if not events:
        return
    number = ensure_run(db, run_id)
    rows = [(number, event.seq, encode(event)) for event in events]
    db.executemany("INSERT INTO events (run, seq, data) VALUES (?, ?, ?)", rows)
    ends = events[-1].type in TERMINAL_TYPES
    db.execute(
        "UPDATE runs SET last = ?, ended_at = ?, closing = iif(?, NULL, closing) WHERE number = ?",
        (events[-1].seq, wall if ends else None, ends, number),
    )
    if ends:
        db.execute("DELETE FROM inbox WHERE run = ?", (number,))


def read(db: sqlite3.Connection, run_id: str, after: int, limit: int) -> list[AgentEvent]:
    """See `EventLog.read`."""
    found: list[AgentEvent] = []
    size = 0
    rows = db.execute(
        "SELECT data FROM events WHERE run = (SELECT number FROM runs WHERE run_id = ?) AND seq > ?"
        " ORDER BY seq LIMIT ?",
        (run_id, after, limit),
    )
    for (data,) in rows:
        found.append(decode(data))
        size += len(data)
        if size >= PAGE_BYTES:
            break
    rows.close()
    return found


def last(db: sqlite3.Connection, run_id: str) -> int | None:
    """See `EventLog.last`."""
    row = db.execute("SELECT last FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return row[0] or None if row else None


def find_run(db: sqlite3.Connection, run_id: str) -> RunRecord | None:
    """See `RunStore.find_run`."""
    row = db.execute(f"{_RECORD} WHERE run_id = ?", (run_id,)).fetchone()
    return _record(row) if row else None


def list_runs(db: sqlite3.Connection, before: int | None, limit: int, *, open_only: bool) -> list[RunRecord]:
    """See `RunStore.list_runs`."""
    rows = db.execute(
        f"{_RECORD} WHERE (?1 IS NULL OR number < ?1) AND NOT (?2 AND ended_at IS NOT NULL)"
        " ORDER BY number DESC LIMIT ?3",
        (before, open_only, limit),
    )
    return [_record(row) for row in rows]


def acquire_lease(db: sqlite3.Connection, run_id: str, owner: str, ttl: float, now: float) -> int | None:
    """See `RunStore.acquire_lease`."""
    number = ensure_run(db, run_id)
    ((holder, token, until, lease),) = db.execute(
        "SELECT owner, token, leased_until, lease FROM runs WHERE number = ?", (number,)
    )
    if holder != owner:
        # A lease that lasts for longer than it was given for is of a time before the machine was started.
        if holder is not None and now < until <= now + lease:
            return None
        ((token,),) = db.execute("UPDATE tokens SET last = last + 1 RETURNING last").fetchall()
    db.execute(
        "UPDATE runs SET owner = ?, token = ?, leased_until = ?, lease = ? WHERE number = ?",
        (owner, token, now + ttl, ttl, number),
    )
    return int(token)


def renew_lease(db: sqlite3.Connection, run_id: str, token: int, ttl: float, now: float) -> bool:
    """See `RunStore.renew_lease`."""
    rows = db.execute(
        "UPDATE runs SET leased_until = ?, lease = ? WHERE run_id = ? AND token = ? AND owner IS NOT NULL"
        " RETURNING EXISTS (SELECT 1 FROM inbox WHERE run = runs.number)",
        (now + ttl, ttl, run_id, token),
    ).fetchall()
    if not rows:
        raise refusals.lease_lost(run_id, token)
    return bool(rows[0][0])


def release_lease(db: sqlite3.Connection, run_id: str, token: int) -> None:
    """See `RunStore.release_lease`."""
    if db.execute("UPDATE runs SET owner = NULL WHERE run_id = ? AND token = ?", (run_id, token)).rowcount:
        drop_if_empty(db, run_id)


def send_letter(db: sqlite3.Connection, run_ids: Iterable[str], letter: Letter) -> None:
    """See `RunStore.send_letter`; the same letter to each of the runs."""
    for run_id in run_ids:
        rows = db.execute("SELECT number FROM runs WHERE run_id = ? AND ended_at IS NULL", (run_id,)).fetchall()
        for (number,) in rows:
            kept = dict(db.execute("SELECT id, length(data) FROM inbox WHERE run = ?", (number,)))
            if letter.id in kept:
                continue
            if not letters.has_room(letter, list(kept.values())):
                raise letters.no_room(run_id)
            db.execute(
                "INSERT INTO inbox (run, id, data) VALUES (?, ?, ?)", (number, letter.id, letters.encode(letter))
            )


def list_letters(db: sqlite3.Connection, run_id: str) -> list[Letter]:
    """See `RunStore.list_letters`."""
    rows = db.execute(
        "SELECT data FROM inbox WHERE run = (SELECT number FROM runs WHERE run_id = ?) ORDER BY number", (run_id,)
    )
    return [letters.decode(data) for (data,) in rows]


def delete_letters(db: sqlite3.Connection, run_id: str, ids: Iterable[str]) -> None:
    """See `RunStore.delete_letters`."""
    db.executemany(
        "DELETE FROM inbox WHERE run = (SELECT number FROM runs WHERE run_id = ?) AND id = ?",
        [(run_id, letter_id) for letter_id in ids],
    )


def mark_read(db: sqlite3.Connection, run_id: str, ttl: float, now: float) -> bool:
    """See `RunStore.mark_read`."""
    marked = db.execute(
        "UPDATE runs SET read_until = max(coalesce(read_until, 0), ?) WHERE run_id = ? AND ended_at IS NULL",
        (now + ttl, run_id),
    )
    return marked.rowcount > 0


def read_for(db: sqlite3.Connection, run_id: str, now: float) -> float:
    """See `RunStore.read_for`."""
    row = db.execute(
        "SELECT max(coalesce(read_until, 0) - ?, 0.0) FROM runs WHERE run_id = ? AND ended_at IS NULL", (now, run_id)
    ).fetchone()
    return float(row[0]) if row else 0.0


def drop_runs(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Forget runs with all their events."""
    rows = [(number,) for number in numbers]
    db.executemany("DELETE FROM events WHERE run = ?", rows)
    db.executemany("DELETE FROM runs WHERE number = ?", rows)


def _record(row: Any) -> RunRecord:
    number, run_id, user, session_id, last_seq, ended_at, closing = row
    return RunRecord(
        run_id=run_id,
        number=number,
        session=SessionKey(session_id, user[1:] if user else None) if session_id is not None else None,
        last=last_seq,
        ended=ended_at is not None,
        closing=tuple(decode(line) for line in closing.split(b"\n")) if closing else (),
    )
