import pytest

from agentflow.stores import sqlite_expiry, sqlite_runs, sqlite_sessions
from agentflow.stores.base import SessionKey, cancel_letter
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_sessions import IN_LINE, Ticket
from agentflow.testing.store_probe import KEY, end, log


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


def runs(file):
    return [record.run_id for record in file.read(lambda db: sqlite_runs.list_runs(db, None, 100, open_only=False))]


def test_it_goes_in_steps_the_oldest_first_and_says_whether_there_is_more(file, monkeypatch):
    monkeypatch.setattr(sqlite_expiry, "STEP", 2)
    for number in range(5):
        do(file, sqlite_runs.append, f"r{number}", [end(f"r{number}", 1)], token=None, wall=float(number))
    assert do(file, sqlite_expiry.expire, oldest=4.0, now=0.0)
    assert runs(file) == ["r4", "r3", "r2"]
    assert do(file, sqlite_expiry.expire, oldest=4.0, now=0.0)
    assert not do(file, sqlite_expiry.expire, oldest=4.0, now=0.0)
    assert runs(file) == ["r4"]


def test_a_session_that_is_held_stays_whatever_its_age(file):
    for name in ("held", "free"):
        assert do(file, sqlite_sessions.take, Ticket(SessionKey(name), name, "queue"), now=1.0, wall=1.0)
    do(file, sqlite_sessions.close_session, SessionKey("free"), "free", None, (), wall=1.0)
    do(file, sqlite_expiry.expire, oldest=100.0, now=1.0)
    found = [file.read(lambda db, n=name: sqlite_sessions.find_session(db, SessionKey(n))) for name in ("held", "free")]
    assert [info is not None for info in found] == [True, False]


def test_letters_to_a_run_that_left_nothing_go_with_it(file):
    token = do(file, sqlite_runs.acquire_lease, "r", "me", 15.0, now=0.0)
    do(file, sqlite_runs.append, "stays", log("stays"), token=None, wall=1.0)
    do(file, sqlite_runs.send_letter, ["r", "stays"], cancel_letter("user"))
    do(file, sqlite_runs.release_lease, "r", token)
    do(file, sqlite_expiry.expire, oldest=0.0, now=0.0)
    assert file.read(lambda db: db.execute("SELECT count(*) FROM inbox").fetchall()) == [(1,)]
    assert len(file.read(lambda db: sqlite_runs.list_letters(db, "stays"))) == 1


def test_what_dead_processes_left_goes_and_what_the_living_have_stays(file):
    for name in ("holder", "waits"):
        do(file, sqlite_sessions.take, Ticket(KEY, name, "queue"), now=100.0, wall=1.0)
    do(file, sqlite_runs.acquire_lease, "leased", "a", 60.0, now=100.0)
    do(file, sqlite_runs.append, "open", log("open"), token=None, wall=1.0)
    do(file, sqlite_expiry.expire, oldest=0.0, now=101.0)
    assert runs(file) == ["open", "leased", "waits", "holder"]
    do(file, sqlite_expiry.expire, oldest=0.0, now=100.0 + IN_LINE + 0.1)
    assert runs(file) == ["open", "leased", "holder"]
    do(file, sqlite_expiry.expire, oldest=0.0, now=161.0)
    assert runs(file) == ["open", "holder"]
