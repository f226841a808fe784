"""What goes from a SQLite file with its age. It is done in small steps, so that no write waits long behind one."""

import sqlite3

from agentflow.stores.sqlite_runs import drop_runs
from agentflow.stores.sqlite_sessions import IN_LINE, drop_sessions

STEP = 20  # runs or sessions dropped at a time; each may be large


def expire(db: sqlite3.Connection, *, oldest: float, now: float) -> bool:
    """Drop finished runs, sessions and outcomes last used before `oldest`; whether there may be more to drop.

    With them go the places in lines of processes that have gone, and the runs that left nothing behind but letters.
    """
    db.execute("DELETE FROM waiting WHERE alive_until NOT BETWEEN ?1 AND ?1 + ?2", (now, IN_LINE))
    db.execute(
        "DELETE FROM runs WHERE last = 0 AND NOT (owner IS NOT NULL AND leased_until BETWEEN ?1 AND ?1 + lease)"
        " AND NOT EXISTS (SELECT 1 FROM sessions WHERE active_run = runs.run_id)"
        " AND NOT EXISTS (SELECT 1 FROM waiting WHERE waiting.run_id = runs.run_id)",
        (now,),
    )
    db.execute("DELETE FROM inbox WHERE run NOT IN (SELECT number FROM runs)")
    runs = _numbers(db, "SELECT number FROM runs WHERE ended_at < ? ORDER BY ended_at LIMIT ?", oldest)
    drop_runs(db, runs)
    sessions = _numbers(
        db, "SELECT number FROM sessions WHERE used_at < ? AND active_run IS NULL ORDER BY used_at LIMIT ?", oldest
    )
    drop_sessions(db, sessions)
    db.execute("DELETE FROM outcomes WHERE at < ?", (oldest,))
    return STEP in (len(runs), len(sessions))


def _numbers(db: sqlite3.Connection, query: str, oldest: float) -> list[int]:
    return [number for (number,) in db.execute(query, (oldest, STEP)).fetchall()]
