"""What of sessions is the SQLite store's own: a line of which some have gone. What all stores do is in the suite."""

import pytest

from agentflow.stores import sqlite_sessions
from agentflow.stores.base import SessionKey
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_runs import find_run
from agentflow.stores.sqlite_sessions import IN_LINE, Ticket
from agentflow.testing.store_probe import KEY, turn


@pytest.fixture
def file(tmp_path):
    file = SqliteFile(tmp_path / "store.db")
    yield file
    file.close()


def do(file, function, *args, **kwargs):
    (result,) = file.write([lambda db: function(db, *args, **kwargs)])
    if isinstance(result, Exception):
        raise result
    return result


def take(file, ticket, now):
    return do(file, sqlite_sessions.take, ticket, now=now, wall=0.0)


def close(file, run_id):
    do(file, sqlite_sessions.close_session, KEY, run_id, None, (), wall=0.0)


def test_who_asks_again_keeps_its_place_and_who_does_not_loses_it(file):
    holder, gone, stays = (Ticket(KEY, name, "queue") for name in ("holder", "gone", "stays"))
    assert [take(file, ticket, 100.0) for ticket in (holder, gone, stays)] == [True, False, False]
    assert not take(file, stays, 103.0)
    close(file, "holder")
    assert not take(file, stays, 100.0 + IN_LINE - 0.1)
    assert file.read(lambda db: find_run(db, "gone")) is not None
    assert take(file, stays, 100.0 + IN_LINE)
    assert file.read(lambda db: find_run(db, "gone")) is None
    assert not take(file, gone, 106.0)  # it was only slow, and is the last in line now


def test_a_place_from_before_the_machine_was_started_is_lost(file):
    holder, old, new = (Ticket(KEY, name, "queue") for name in ("holder", "old", "new"))
    assert [take(file, ticket, 90_000.0) for ticket in (holder, old)] == [True, False]
    close(file, "holder")
    assert take(file, new, 30.0)


def test_leaving_undoes_what_the_call_has_done_and_no_more(file):
    first, waits = Ticket(KEY, "a", "queue"), Ticket(KEY, "b", "queue")
    assert [take(file, first, 1.0), take(file, waits, 1.0)] == [True, False]
    again = Ticket(KEY, "a", "queue")
    assert take(file, again, 1.0)
    do(file, sqlite_sessions.leave, again)  # it held the session before
    assert not take(file, waits, 1.0)
    do(file, sqlite_sessions.leave, first)
    assert take(file, waits, 1.0)
    assert file.read(lambda db: find_run(db, "a")) is None


def test_what_was_dropped_leaves_no_row_of_its_own(file):
    ticket = Ticket(KEY, "a", "queue")
    assert take(file, ticket, 1.0)
    do(file, sqlite_sessions.close_session, KEY, "a", turn("a"), (), wall=0.0)
    do(file, sqlite_sessions.delete_session, KEY, wall=0.0)
    for table in ("sessions", "turns", "summaries", "waiting", "runs"):
        assert file.read(lambda db, t=table: db.execute(f"SELECT count(*) FROM {t}").fetchone()) == (0,)


def test_a_session_that_went_while_it_was_loaded_is_an_empty_one(file):
    session = file.read(lambda db: sqlite_sessions.load(db, SessionKey("gone"), None))
    assert (session.version, session.turns) == (0, ())
