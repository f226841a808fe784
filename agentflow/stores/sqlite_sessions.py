"""What the SQLite store does to sessions, outcomes and facts: functions of one connection.

Those that write are run by the writer in its transaction; none waits: a run whose session is busy gets a place in the
line, and its store asks again.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentflow.events import AgentEvent, encode
from agentflow.stores import refusals
from agentflow.stores.base import (
    MAX_FACTS,
    MAX_WAITING,
    BusyPolicy,
    Fact,
    Outcome,
    OutcomeKey,
    Session,
    SessionInfo,
    SessionKey,
    Summary,
    Turn,
    cancel_letter,
)
from agentflow.stores.sqlite_runs import check_lease, drop_if_empty, drop_runs, ensure_run, send_letter, user_column

IN_LINE = 5.0  # seconds after which a place in the line is lost, unless its store has asked again

_encode = msgspec.json.Encoder().encode
_turns = msgspec.json.Decoder(Turn)
_summaries = msgspec.json.Decoder(Summary)
_outcomes = msgspec.json.Decoder(Outcome)
_facts = msgspec.json.Decoder(Fact)

_INFO = "SELECT number, user, session_id, version, used_at, active_run FROM sessions WHERE NOT deleted"


@dataclass(slots=True)
class Ticket:
    """A call of `open_session`: what it wants, and whether it is its doing that the run holds the session."""

    key: SessionKey
    run_id: str
    busy: BusyPolicy
    asked: bool = False
    took: bool = False

    @property
    def at(self) -> tuple[str, str]:
        """The session as the tables name it."""
        return line_of(self.key)


def line_of(key: SessionKey) -> tuple[str, str]:
    """The session as the tables name it, and so the line of those who wait for it."""
    return user_column(key.user_id), key.session_id


def take(db: sqlite3.Connection, ticket: Ticket, *, now: float, wall: float) -> bool:
    """Give the session to the ticket's run if it is its turn, else keep its place in the line: whether it has it."""
    db.execute(
        "INSERT INTO sessions (user, session_id, used_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (*ticket.at, wall)
    )
    ((number, holder),) = db.execute(
        "SELECT number, active_run FROM sessions WHERE user = ? AND session_id = ?", ticket.at
    )
    if holder != ticket.run_id:
        line = _line(db, ticket.at, now)
        if holder is not None or (line and line[0] != ticket.run_id):
            _wait(db, ticket, holder or line[0], line, now)
            return False
        ticket.took = True
    ensure_run(db, ticket.run_id)
    db.execute("DELETE FROM waiting WHERE run_id = ?", (ticket.run_id,))
    db.execute("UPDATE sessions SET active_run = ?, used_at = ? WHERE number = ?", (ticket.run_id, wall, number))
    db.execute("UPDATE runs SET user = ?, session_id = ? WHERE run_id = ?", (*ticket.at, ticket.run_id))
    return True


def leave(db: sqlite3.Connection, ticket: Ticket) -> None:
    """Undo a `take` whose caller has gone: leave the line, or free the session."""
    db.execute("DELETE FROM waiting WHERE run_id = ?", (ticket.run_id,))
    if ticket.took:
        _free(db, ticket.at, ticket.run_id)
    drop_if_empty(db, ticket.run_id)


def load(db: sqlite3.Connection, key: SessionKey, last_turns: int | None) -> Session:
    """The session that a run has just taken."""
    number, version = db.execute(
        "SELECT number, version FROM sessions WHERE user = ? AND session_id = ?",
        line_of(key),
    ).fetchone() or (0, 0)  # deleted, and closed at once by whoever else works on this run
    after = 0 if last_turns is None else max(version - last_turns, 0)
    turns = db.execute("SELECT data FROM turns WHERE session = ? AND number > ? ORDER BY number", (number, after))
    summaries = db.execute("SELECT data FROM summaries WHERE session = ? ORDER BY first, last", (number,))
    return Session(
        key=key,
        version=version,
        turns=tuple(_turns.decode(data) for (data,) in turns),
        summaries=tuple(_summaries.decode(data) for (data,) in summaries),
        number=number,
    )


def close_session(
    db: sqlite3.Connection,
    key: SessionKey,
    run_id: str,
    turn: Turn | None,
    closing: Sequence[AgentEvent],
    *,
    token: int | None = None,
    wall: float,
) -> None:
    """See `SessionStore.close_session`."""
    check_lease(db, run_id, token)
    at = line_of(key)
    row = db.execute(
        "SELECT number, version FROM sessions WHERE user = ? AND session_id = ? AND active_run = ?",
        (*at, run_id),
    ).fetchone()
    if row is None:
        return
    number, version = row
    if turn is not None:  # of a session that was deleted it goes again, with the session, in `_free`
        version += db.execute(
            "INSERT INTO turns (session, number, run_id, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (number, version + 1, run_id, _encode(turn)),
        ).rowcount
    db.execute("UPDATE sessions SET version = ?, used_at = ? WHERE number = ?", (version, wall, number))
    db.execute(
        "UPDATE runs SET closing = ? WHERE run_id = ? AND ended_at IS NULL",
        (b"\n".join(map(encode, closing)) or None, run_id),
    )
    _free(db, at, run_id)
    drop_if_empty(db, run_id)


def read_turns(db: sqlite3.Connection, key: SessionKey, after: int, limit: int) -> list[Turn]:
    """See `SessionStore.read_turns`."""
    rows = db.execute(
        "SELECT data FROM turns WHERE session = (SELECT number FROM sessions WHERE user = ? AND session_id = ?)"
        " AND number > ? ORDER BY number LIMIT ?",
        (*line_of(key), after, limit),
    )
    return [_turns.decode(data) for (data,) in rows]


def list_sessions(db: sqlite3.Connection, user_id: str | None, before: int | None, limit: int) -> list[SessionInfo]:
    """See `SessionStore.list_sessions`."""
    rows = db.execute(
        f"{_INFO} AND user = ?1 AND (?2 IS NULL OR number < ?2) ORDER BY number DESC LIMIT ?3",
        (user_column(user_id), before, limit),
    )
    return [_info(row) for row in rows]


def find_session(db: sqlite3.Connection, key: SessionKey) -> SessionInfo | None:
    """See `SessionStore.find_session`."""
    row = db.execute(f"{_INFO} AND user = ? AND session_id = ?", line_of(key)).fetchone()
    return _info(row) if row else None


def delete_session(db: sqlite3.Connection, key: SessionKey, *, wall: float) -> None:
    """See `SessionStore.delete_session`."""
    at = line_of(key)
    row = db.execute("SELECT number, active_run FROM sessions WHERE user = ? AND session_id = ?", at).fetchone()
    if row is None:
        return
    number, holder = row
    drop_sessions(db, [number])
    ended = db.execute(
        "SELECT number FROM runs WHERE user = ? AND session_id = ? AND ended_at IS NOT NULL", at
    ).fetchall()
    drop_runs(db, [run for (run,) in ended])
    waiting = db.execute("SELECT run_id FROM waiting WHERE user = ? AND session_id = ?", at).fetchall()
    send_letter(db, [run_id for (run_id,) in waiting], cancel_letter("user"))
    if holder is not None:
        send_letter(db, [holder], cancel_letter("user"))
        db.execute(
            "INSERT INTO sessions (user, session_id, used_at, active_run, deleted) VALUES (?, ?, ?, ?, 1)",
            (*at, wall, holder),
        )


def drop_sessions(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Forget sessions with all that goes with them."""
    rows = [(number,) for number in numbers]
    for table, column in (("turns", "session"), ("summaries", "session"), ("sessions", "number")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", rows)  # noqa: S608  names of our own


def keep_summary(db: sqlite3.Connection, seen: Session | SessionInfo, summary: Summary) -> bool:
    """See `SessionStore.keep_summary`."""
    return bool(
        db.execute(
            "INSERT OR REPLACE INTO summaries (session, first, last, data)"
            " SELECT number, ?, ?, ? FROM sessions WHERE number = ? AND version = ? AND NOT deleted",
            (summary.first, summary.last, _encode(summary), seen.number, seen.version),
        ).rowcount
    )


def claim_outcome(db: sqlite3.Connection, key: OutcomeKey, call_id: str, *, wall: float) -> Outcome | None:
    """See `OutcomeIndex.claim_outcome`."""
    holder, outcome = _claim(db, key, call_id, wall)
    if outcome is not None:
        return _outcomes.decode(outcome)
    if holder != call_id:
        raise refusals.outcome_pending(key, holder)
    return None


def keep_outcome(db: sqlite3.Connection, key: OutcomeKey, call_id: str, outcome: Outcome, *, wall: float) -> None:
    """See `OutcomeIndex.keep_outcome`."""
    holder, _ = _claim(db, key, call_id, wall)
    if holder != call_id:
        raise refusals.outcome_pending(key, holder)
    db.execute(
        "UPDATE outcomes SET outcome = ifnull(outcome, ?) WHERE user = ? AND tool = ? AND key = ?",
        (_encode(outcome), *_at(key)),
    )


def release_outcome(db: sqlite3.Connection, key: OutcomeKey, call_id: str) -> None:
    """See `OutcomeIndex.release_outcome`."""
    db.execute(
        "DELETE FROM outcomes WHERE user = ? AND tool = ? AND key = ? AND call_id = ? AND outcome IS NULL",
        (*_at(key), call_id),
    )


def put_facts(db: sqlite3.Connection, facts: Sequence[Fact]) -> None:
    """See `FactStore.put_facts`."""
    db.executemany(
        "INSERT INTO facts (user_id, id, superseded, data) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET superseded = excluded.superseded, data = excluded.data",
        [(fact.user_id, fact.id, fact.superseded_by is not None, _encode(fact)) for fact in facts],
    )
    for user_id in {fact.user_id for fact in facts}:
        ((count,),) = db.execute("SELECT count(*) FROM facts WHERE user_id = ?", (user_id,))
        db.execute(
            "DELETE FROM facts WHERE number IN"
            " (SELECT number FROM facts WHERE user_id = ? ORDER BY superseded DESC, number LIMIT ?)",
            (user_id, max(count - MAX_FACTS, 0)),
        )


def list_facts(db: sqlite3.Connection, user_id: str, *, superseded: bool) -> list[Fact]:
    """See `FactStore.list_facts`."""
    rows = db.execute(
        "SELECT data FROM facts WHERE user_id = ? AND superseded <= ? ORDER BY number", (user_id, superseded)
    )
    return [_facts.decode(data) for (data,) in rows]


def delete_fact(db: sqlite3.Connection, user_id: str, fact_id: str) -> None:
    """See `FactStore.delete_fact`."""
    db.execute("DELETE FROM facts WHERE user_id = ? AND id = ?", (user_id, fact_id))


def _line(db: sqlite3.Connection, at: tuple[str, str], now: float) -> list[str]:
    """The runs that wait for the session, the first first, without those whose process has gone."""
    rows = db.execute(
        "SELECT run_id, alive_until FROM waiting WHERE user = ? AND session_id = ? ORDER BY position", at
    ).fetchall()
    # Who will be alive for longer than anybody can be waited before the machine was started.
    gone = [run_id for run_id, until in rows if not now < until <= now + IN_LINE]
    for run_id in gone:
        db.execute("DELETE FROM waiting WHERE run_id = ?", (run_id,))
        drop_if_empty(db, run_id)
    return [run_id for run_id, _ in rows if run_id not in gone]


def _wait(db: sqlite3.Connection, ticket: Ticket, holder: str, line: Sequence[str], now: float) -> None:
    """Take a place in the line, or stay in it."""
    if ticket.run_id in line:
        db.execute("UPDATE waiting SET alive_until = ? WHERE run_id = ?", (now + IN_LINE, ticket.run_id))
        return
    if ticket.busy == "reject" or len(line) >= MAX_WAITING:
        raise refusals.busy(ticket.key, holder, len(line))
    if ticket.busy == "supersede" and not ticket.asked:
        send_letter(db, [holder, *line], cancel_letter("superseded"))
        ticket.asked = True
    ensure_run(db, ticket.run_id)
    db.execute(
        "INSERT INTO waiting (user, session_id, run_id, alive_until) VALUES (?, ?, ?, ?)",
        (*ticket.at, ticket.run_id, now + IN_LINE),
    )


def _free(db: sqlite3.Connection, at: tuple[str, str], run_id: str) -> None:
    """The session is nobody's. One that was deleted is forgotten: who is next makes a new one."""
    row = db.execute(
        "SELECT number, deleted FROM sessions WHERE user = ? AND session_id = ? AND active_run = ?", (*at, run_id)
    ).fetchone()
    if row is not None and row[1]:
        drop_sessions(db, [row[0]])
    elif row is not None:
        db.execute("UPDATE sessions SET active_run = NULL WHERE number = ?", (row[0],))


def _claim(db: sqlite3.Connection, key: OutcomeKey, call_id: str, wall: float) -> tuple[str, bytes | None]:
    """Who has claimed the key, and its outcome; this call if nobody had."""
    db.execute(
        "INSERT INTO outcomes (user, tool, key, call_id, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*_at(key), call_id, wall),
    )
    ((holder, outcome),) = db.execute(
        "SELECT call_id, outcome FROM outcomes WHERE user = ? AND tool = ? AND key = ?", _at(key)
    )
    return holder, outcome


def _at(key: OutcomeKey) -> tuple[str, str, str]:
    return user_column(key.user_id), key.tool, key.key


def _info(row: Any) -> SessionInfo:
    number, user, session_id, version, used_at, active_run = row
    return SessionInfo(
        key=SessionKey(session_id, user[1:] if user else None),
        number=number,
        version=version,
        used_at=used_at,
        active_run=active_run,
    )
